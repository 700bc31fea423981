// The backward pass: see modulated_norm.h.
#include "modulated_norm.h"

namespace comt {
namespace {

// Where the sums of columns, the constants of columns and the numbers of rows lie.
enum { SUM, SUM_N, SUM_F, SUM_A };                     // of dm; of f dm n; of f dm; of ds n, one for each row of A
enum { MEAN, RSTD, OFFSET, SLOPE, OF_A };              // dz = dm f weight rstd + ds A rstd - OFFSET - (z - mean) SLOPE

// What the backward pass is given besides, and writes. dskip may be absent, and y where no ReLU follows.
template <class T>
struct Gradient {
  Rows<const T> dy, y;
  const float *mean, *var;
  bool relu;
  float epsilon;
  Rows<T> dproduct;
  int64_t columns;  // of dproduct
  float *dwindow, *dA, *db, *dweight, *dbias;
  T* dskip;
};

template <class T>
struct Backward {
  Backward(const Norm& a, Rows<const T> q, const Gradient<T>& of, int threads)
      : a(a),
        q(q),
        of(of),
        memory(a, threads, true),
        dskip(of.dskip),
        mean(memory.constants(MEAN)),
        rstd(memory.constants(RSTD)),
        gates(a.window ? memory.of_rows(0) : nullptr),
        f(memory.of_rows(a.window ? 1 : 0)) {
    std::fill_n(memory.constants(0), memory.constants_of_columns * memory.stride, 0.f);
    for (int64_t n = 0; n < a.channels; ++n) mean[n] = of.mean[n], rstd[n] = 1 / std::sqrt(of.var[n] + of.epsilon);
  }

  const Norm& a;
  const Rows<const T> q;
  const Gradient<T>& of;
  const Memory memory;
  T* const dskip;
  float *mean, *rstd, *gates, *f;

  float* ds(int64_t k) const { return f + (1 + k) * memory.rows; }
  float gate(int64_t row) const { return gates ? gates[row] : 1; }

  template <class R, class P>
  INLINE V dm(int64_t row, int64_t n, P part, R rectify) const {
    const V dy = load(of.dy[row] + n, part);
    return rectify ? let_through(dy, load(of.y[row] + n, part)) : dy;
  }

  // The sums over the rows where there is no pixel gate.
  template <class R>
  void sum_plain(Thread thread, R rectify) const {
    float *sums = memory.sums(thread.index, SUM), *products = memory.sums(thread.index, SUM_N);
    rows_of(a, thread, SUMMED, [&](int64_t first, int rows) {
      groups_of(a.channels, [&](int64_t n, auto part, auto count) {
        V sum[count], product[count], centre[count];
        for (int j = 0; j < count; ++j) sum[j] = product[j] = V{}, centre[j] = load(mean + n + j * W);
        for (int i = 0; i < rows; ++i) {
          const float g = gate(first + i);
          for (int j = 0; j < count; ++j) {
            const V d = dm(first + i, n + j * W, part, rectify);
            if (dskip) store(dskip + (first + i) * a.channels + n + j * W, d, part);
            sum[j] += d;
            product[j] += d * (load(q[first + i] + n + j * W, part) * g - centre[j]);
          }
        }
        for (int j = 0; j < count; ++j) {
          const int64_t at = n + j * W;
          store(sums + at, load(sums + at) + sum[j]);
          store(products + at, load(products + at) + product[j] * load(rstd + at));
        }
      });
    });
  }

  // The same with one; it leaves f and ds of every row.
  template <class R>
  void sum_pixel(Thread thread, R rectify) const {
    float* tile = memory.tile(thread.index);
    float* scalars = memory.scalar_sums(thread.index);
    const int64_t r = a.pixel_width, stride = memory.stride;
    rows_of(a, thread, ROWS, [&](int64_t first, int rows) {
      float totals[ROWS * W] = {}, total[ROWS], dlogit[ROWS] = {}, *s = memory.hidden(thread.index);
      normalised(a, q, mean, rstd, gates ? gates + first : nullptr, first, rows, tile);
      pixel_gate(a, tile, rows, s, f + first);
      for (int i = 0; i < rows; ++i) {
        V sum{};
        columns(a.channels, [&](int64_t n, auto part) {
          const V d = dm(first + i, n, part, rectify);
          if (dskip) store(dskip + (first + i) * a.channels + n, d, part);
          const V product = d * load(tile + i * stride + n);
          sum += a.weight ? product * load(a.weight + n, part) : product;
        });
        store(totals + i * W, sum);
      }
      lane_sums(totals, total);
      for (int i = 0; i < rows; ++i) dlogit[i] = total[i] * f[first + i] * (1 - f[first + i]);
      for (int64_t k = 0; k < r; ++k)
        for (int i = 0; i < rows; ++i) {
          const float of_s = s[k * ROWS + i], d = dlogit[i] * a.b[k] * of_s * (1 - of_s);
          ds(k)[first + i] = d;
          scalars[k] += d;
          scalars[r + k] += dlogit[i] * of_s;
        }
      columns(a.channels, [&](int64_t n, auto part) {
        V sum{}, product{}, gated{};
        for (int i = 0; i < rows; ++i) {
          const V d = dm(first + i, n, part, rectify), d_f = d * f[first + i];
          sum += d;
          gated += d_f;
          product += d_f * load(tile + i * stride + n);
        }
        add(thread, SUM, n, sum);
        add(thread, SUM_F, n, gated);
        add(thread, SUM_N, n, product);
        for (int64_t k = 0; k < r; ++k) {
          V of_A{};
          for (int i = 0; i < rows; ++i) of_A += load(tile + i * stride + n) * ds(k)[first + i];
          add(thread, SUM_A + k, n, of_A);
        }
      });
    });
  }

  INLINE void add(Thread thread, int64_t which, int64_t n, V sum) const {
    float* to = memory.sums(thread.index, which) + n;
    store(to, load(to) + sum);
  }

  // From the sums of all threads, in their order: the gradients of the parameters, and what dz needs of each column.
  void combine(Thread thread) const {
    const int64_t r = a.A ? a.pixel_width : 0;
    auto total = [&](int64_t which, int64_t n) {
      float sum = 0;
      for (int t = 0; t < thread.count; ++t) sum += memory.sums(t, which)[n];
      return sum;
    };
    for (int64_t n = thread.begin(a.channels); n < thread.end(a.channels); ++n) {
      const float weight = a.weight ? a.weight[n] : 1, product = total(SUM_N, n);
      float of_dn = weight * total(r ? SUM_F : SUM, n), of_dn_n = weight * product;
      of.dbias[n] = total(SUM, n);
      if (a.weight) of.dweight[n] = product;
      for (int64_t k = 0; k < r; ++k) {
        const float A_kn = a.A[k * a.stride + n], dA = total(SUM_A + k, n);
        of.dA[k * a.channels + n] = dA;
        float ds_sum = 0;
        for (int t = 0; t < thread.count; ++t) ds_sum += memory.scalar_sums(t)[k];
        of_dn += A_kn * ds_sum;
        of_dn_n += A_kn * dA;
        memory.constants(OF_A + k)[n] = A_kn * rstd[n];
      }
      memory.constants(OFFSET)[n] = of_dn / float(a.rows) * rstd[n];
      memory.constants(SLOPE)[n] = of_dn_n / float(a.rows) * rstd[n] * rstd[n];
    }
    if (thread.index == 0) add_scalars(thread, r, r, of.db);
  }

  // Of all threads, in their order: `count` of what each has added up from `first` on.
  void add_scalars(Thread thread, int64_t first, int64_t count, float* results) const {
    for (int64_t k = 0; k < count; ++k) {
      results[k] = 0;
      for (int t = 0; t < thread.count; ++t) results[k] += memory.scalar_sums(t)[first + k];
    }
  }

  template <class R, class X>
  void write(Thread thread, R rectify, X pixel) const {
    const float *offset = memory.constants(OFFSET), *slope = memory.constants(SLOPE);
    const int64_t r = a.pixel_width;
    rows_of(a, thread, ROWS, [&](int64_t first, int rows) {
      float totals[ROWS * W] = {};
      for (int i = 0; i < rows; ++i) {
        const int64_t row = first + i;
        const float g = gate(row), f_row = pixel ? f[row] : 1;
        T* to = of.dproduct[row];
        V total{};
        columns(a.channels, [&](int64_t n, auto part) {
          const V from = load(q[row] + n, part);
          V d = dskip ? load(dskip + row * a.channels + n, part) : dm(row, n, part, rectify);
          d *= load(rstd + n) * f_row;
          if (a.weight) d *= load(a.weight + n, part);
          if (pixel)
            for (int64_t k = 0; k < r; ++k) d += load(memory.constants(OF_A + k) + n) * ds(k)[row];
          const V dz = d - load(offset + n) - (from * g - load(mean + n)) * load(slope + n);
          store(to + n, dz * g, part);
          if (gates) total += dz * from;
        });
        if (gates) store(totals + i * W, total);
        std::fill(to + a.used, to + of.columns, T{});
      }
      if (gates) close_window(thread, first, rows, totals);
    });
  }

  // dw and du from the sums over the lanes of dz q.
  void close_window(Thread thread, int64_t first, int rows, const float* totals) const {
    float* dw = memory.scalar_sums(thread.index) + 2 * a.pixel_width;
    float total[ROWS], g[ROWS], *p = memory.hidden(thread.index);
    lane_sums(totals, total);
    window_gate(a, first, rows, g, p);
    for (int64_t k = 0; k < a.window_width; ++k)
      for (int i = 0; i < rows; ++i) {
        const float dlogit = total[i] * g[i] * (1 - g[i]), of_u = p[k * ROWS + i];
        dw[k] += dlogit * of_u;
        T value[W];
        store(value, splat(dlogit * a.window[k] * of_u * (1 - of_u)));
        of.dproduct[first + i][a.channels + k] = value[0];
      }
  }

  void run(int threads) const {
    parallel(threads, [&](Thread thread) {
      std::fill_n(memory.sums(thread.index), memory.sums_of_columns * memory.stride + memory.scalars, 0.f);
      if (gates)
        rows_of(a, thread, ROWS, [&](int64_t first, int rows) { window_gate(a, first, rows, gates + first); });
      with_flag(of.relu, [&](auto rectify) { a.A ? sum_pixel(thread, rectify) : sum_plain(thread, rectify); });
      thread.wait();
      combine(thread);
      thread.wait();
      with_flag(of.relu, [&](auto rectify) {
        with_flag(a.A, [&](auto pixel) { write(thread, rectify, pixel); });
      });
      if (!gates) return;
      thread.wait();
      if (thread.index == 0) add_scalars(thread, 2 * a.pixel_width, a.window_width, of.dwindow);
    });
  }
};

}  // namespace
}  // namespace comt

using namespace comt;

OPERATION(modulated_norm_backward) {
  const Matrix dy = in.matrix(), y = in.matrix();
  const auto given = in.read<Norm::Given>();
  const Matrix mean_of = in.matrix(), var_of = in.matrix();
  const int64_t C = mean_of.columns;
  const Floats mean(mean_of, C, "mean"), var(var_of, C, "var");
  const Norm norm(given, C);
  const bool relu = in.integer();
  const float epsilon = float(in.number());
  in.integer();  // whether there is a dskip: its tensor says so too
  require(!relu || y.columns, "the output is needed where a ReLU follows");
  with_type(norm.product.type, [&](auto tag) {
    using T = decltype(tag);
    const auto q = norm.product.of<const T>(norm.rows, norm.product.columns, "the product");
    const auto of_y = y.columns ? y.of<const T>(norm.rows, C, "y") : Rows<const T>{};
    const Matrix dproduct = in.matrix();
    float *dwindow = in.result<float>(), *dA = in.result<float>(), *db = in.result<float>();
    float *dweight = in.result<float>(), *dbias = in.result<float>();
    T* dskip = in.result<T>();
    const Gradient<T> to{dy.of<const T>(norm.rows, C, "dy"), of_y, mean, var, relu, epsilon,
                         {static_cast<T*>(dproduct.data), dproduct.columns}, dproduct.columns,
                         dwindow, dA, db, dweight, dbias, dskip};
    const int threads = useful_threads(in.threads, norm.rows, C);
    Backward<T>(norm, q, to, threads).run(threads);
  });
}
