// The batch norm behind a convolution with CoMT's gates in it, forward and backward, on channels-last rows (training).
//     g = sigmoid(sigmoid(u) . w)     z = g q     mean, var over the P rows     n = (z - mean) rstd
//     s = sigmoid(n A^T)     f = sigmoid(s . b)     y = act(f weight n + bias + skip)
// and with dm = dy where act let it through, dn = f weight dm + ds A (the gate reads n too):
//     dlogit = f (1-f) rowsum(dm weight n)     ds = dlogit b s (1-s)     db = sum dlogit s     dA = ds^T n
//     dweight = sum dm f n     dbias = sum dm     dskip = dm     dz = rstd (dn - mean(dn) - n mean(dn n))
//     sum(dn) = weight sum(f dm) + sum(ds) A     sum(dn n) = weight dweight + the sum over A's rows of A dA
//     dq = g dz     dlogit = g (1-g) rowsum(q dz)     dw = sum dlogit p     du = dlogit w p (1-p), p = sigmoid(u)
// so each direction takes two passes over the rows: one to sum over them, one to write. Gates are computed anew.
#include <cmath>
#include <memory>

#include "gates.h"

namespace comt {

// As Python passes it. A null pointer is an operand that is not there; `type` is that of product, skip, dy, y, dskip.
struct NormArguments {
  const void *product, *u, *skip, *dy, *y;
  const float *window, *A, *b, *weight, *bias;
  float *mean, *var;  // written forward, read backward
  void *y_out, *dproduct, *du, *dskip;
  float *dwindow, *dA, *db, *dweight, *dbias;
  int64_t rows, channels, window_width, pixel_width;
  int64_t product_stride, skip_stride, dy_stride, y_stride, dproduct_stride;
  int64_t u_row, u_column, du_row, du_column;
  int32_t type, u_type, relu;
  float epsilon;
};

namespace {

constexpr int SUMMED = 4 * ROWS;  // rows whose sums are taken in registers before they are added to the thread's
constexpr int GROUP = 4;          // vectors of columns that are summed together

// The memory of a call: what every row or column needs between the passes, then sums and tiles of each thread.
struct Memory {
  Memory(const NormArguments& a, int threads, bool backward)
      : stride(padded(a.channels)),
        sums_of_columns(backward ? (a.A ? 3 + a.pixel_width : 2) : 2),
        scalars(backward ? padded(2 * a.pixel_width + a.window_width) : 0),
        constants_of_columns(backward ? 4 + a.pixel_width : 4),
        per_row((a.window ? 1 : 0) + (backward && a.A ? 1 + a.pixel_width : 0)),
        rows(padded((a.rows + ROWS - 1) / ROWS * ROWS)),
        tile_floats(a.A ? ROWS * stride : 0),
        thread_floats(sums_of_columns * stride + scalars + tile_floats +
                      ROWS * std::max(a.window_width, a.pixel_width)),
        all(new float[constants_of_columns * stride + per_row * rows + threads * thread_floats]) {}

  const int64_t stride;
  const int64_t sums_of_columns, scalars, constants_of_columns, per_row, rows, tile_floats, thread_floats;
  std::unique_ptr<float[]> all;

  float* constants(int64_t which) const { return all.get() + which * stride; }
  float* of_rows(int64_t which) const { return all.get() + constants_of_columns * stride + which * rows; }
  float* sums(int thread, int64_t which = 0) const {
    return of_rows(per_row) + thread * thread_floats + which * stride;
  }
  float* scalar_sums(int thread) const { return sums(thread, sums_of_columns); }
  float* tile(int thread) const { return scalar_sums(thread) + scalars; }             // n: [ROWS, C]
  float* hidden(int thread) const { return tile(thread) + tile_floats; }              // a gate's: [h or r, ROWS]
};

// body(first_row, row_count) for the blocks of `size` rows that are this thread's: whole blocks of ROWS.
template <class F>
INLINE void rows_of(const NormArguments& a, Thread thread, int size, F&& body) {
  const int64_t blocks = (a.rows + ROWS - 1) / ROWS;
  const int64_t end = std::min<int64_t>(thread.end(blocks) * ROWS, a.rows);
  for (int64_t row = thread.begin(blocks) * ROWS; row < end; row += size)
    body(row, int(std::min<int64_t>(size, end - row)));
}

// body(n, part, count) for groups of `count` vectors of columns, known to the compiler.
template <class F>
INLINE void groups_of(int64_t width, F&& body) {
  int64_t n = 0;
  for (; n + GROUP * W <= width; n += GROUP * W) body(n, Whole{}, std::integral_constant<int, GROUP>{});
  for (; n + W <= width; n += W) body(n, Whole{}, std::integral_constant<int, 1>{});
  if (n < width) body(n, Part{int(width - n)}, std::integral_constant<int, 1>{});
}

INLINE V rectified(V x) { return x < 0 ? V{} : x; }           // a NaN stays one
INLINE V let_through(V dy, V y) { return y <= 0 ? V{} : dy; }

// ---- the window gate of a block of at most ROWS rows; p: [h, ROWS], wanted where it is not null

template <class U>
void window_gate(const NormArguments& a, int64_t first, int rows, float* gate, float* p) {
  float logits[ROWS] = {};
  for (int64_t k = 0; k < a.window_width; ++k) {
    float u[ROWS] = {};
    const U* from = static_cast<const U*>(a.u) + first * a.u_row + k * a.u_column;
    for (int i = 0; i < rows; ++i) u[i] = widen(from[i * a.u_row]);
    for (int i = 0; i < ROWS; i += W) {
      const V of_u = sigmoid(load(u + i));
      if (p) store(p + k * ROWS + i, of_u);
      store(logits + i, load(logits + i) + of_u * a.window[k]);
    }
  }
  for (int i = 0; i < ROWS; i += W) store(gate + i, sigmoid(load(logits + i)));
}

void window_gate(const NormArguments& a, int64_t first, int rows, float* gate, float* p = nullptr) {
  with_type(a.u_type, [&](auto tag) { window_gate<decltype(tag)>(a, first, rows, gate, p); });
}

// ---- the pixel gate of a block: tile = n, then s: [r, ROWS] and f: [ROWS]

template <class T>
void normalised(const NormArguments& a, const Memory& memory, const float* mean, const float* rstd, const float* gate,
                int64_t first, int rows, float* tile) {
  const T* q = static_cast<const T*>(a.product);
  for (int i = 0; i < rows; ++i) {
    const T* from = q + (first + i) * a.product_stride;
    const float g = gate ? gate[i] : 1;
    columns(a.channels, [&](int64_t n, auto part) {
      // Zeros behind the last column: the mean and rstd there are zeros too.
      store(tile + i * memory.stride + n, (load(from + n, part) * g - load(mean + n)) * load(rstd + n));
    });
  }
}

void pixel_gate(const NormArguments& a, const Memory& memory, const float* A, const float* tile, int rows, float* s,
                float* f) {
  float logits[ROWS] = {};
  for (int64_t k = 0; k < a.pixel_width; ++k) {
    float dots[ROWS * W] = {}, dot[ROWS];
    for (int i = 0; i < rows; ++i) {
      V sum{};
      for (int64_t n = 0; n < memory.stride; n += W)
        sum += load(tile + i * memory.stride + n) * load(A + k * memory.stride + n);
      store(dots + i * W, sum);
    }
    lane_sums(dots, dot);
    for (int i = 0; i < ROWS; i += W) {
      const V of_dot = sigmoid(load(dot + i));
      store(s + k * ROWS + i, of_dot);
      store(logits + i, load(logits + i) + of_dot * a.b[k]);
    }
  }
  for (int i = 0; i < ROWS; i += W) store(f + i, sigmoid(load(logits + i)));
}

// A with its rows padded by zeros to whole vectors; nothing if it has whole ones already.
struct Padded {
  Padded(const NormArguments& a, int64_t stride) : data(a.A) {
    if (!a.A || stride == a.channels) return;
    own.reset(new float[a.pixel_width * stride]());
    for (int64_t k = 0; k < a.pixel_width; ++k)
      std::copy_n(a.A + k * a.channels, a.channels, own.get() + k * stride);
    data = own.get();
  }
  std::unique_ptr<float[]> own;
  const float* data;
};

// ---- forward

// Rows whose mean the sums are taken from: one alone may be an outlier.
constexpr int64_t SAMPLES = 16;

// Sums over the rows of d = z - shift and of d^2, shift being near the mean: they lose nothing where |mean| >> std.
template <class T>
void moments(const NormArguments& a, const Memory& memory, Thread thread, const float* shift) {
  const T* q = static_cast<const T*>(a.product);
  float *sums = memory.sums(thread.index), *squares = memory.sums(thread.index, 1);
  std::fill_n(sums, 2 * memory.stride, 0.f);
  float* gates = a.window ? memory.of_rows(0) : nullptr;
  rows_of(a, thread, SUMMED, [&](int64_t first, int rows) {
    for (int i = 0; gates && i < rows; i += ROWS)
      window_gate(a, first + i, std::min(ROWS, rows - i), gates + first + i);
    with_flag(gates, [&](auto gated) {
      groups_of(a.channels, [&](int64_t n, auto part, auto count) {
        V sum[count], square[count], base[count];
        for (int j = 0; j < count; ++j) sum[j] = square[j] = V{}, base[j] = load(shift + n + j * W);
        for (int i = 0; i < rows; ++i) {
          const T* from = q + (first + i) * a.product_stride + n;
          for (int j = 0; j < count; ++j) {
            V z = load(from + j * W, part);
            if (gated) z *= gates[first + i];
            const V d = z - base[j];
            sum[j] += d;
            square[j] += d * d;
          }
        }
        for (int j = 0; j < count; ++j) {
          store(sums + n + j * W, load(sums + n + j * W) + sum[j]);
          store(squares + n + j * W, load(squares + n + j * W) + square[j]);
        }
      });
    });
  });
}

template <class T>
void forward(const NormArguments& a, int threads) {
  const Memory memory(a, threads, false);
  const Padded A(a, memory.stride);
  const T *q = static_cast<const T*>(a.product), *skips = static_cast<const T*>(a.skip);
  T* outputs = static_cast<T*>(a.y_out);
  float *shift = memory.constants(0), *mean = memory.constants(1), *factor = memory.constants(2),
        *bias = memory.constants(3);
  const float* gates = a.window ? memory.of_rows(0) : nullptr;
  std::fill_n(memory.constants(0), memory.constants_of_columns * memory.stride, 0.f);
  const int64_t samples = std::min<int64_t>(SAMPLES, a.rows);
  float sampled[SAMPLES];
  for (int64_t k = 0; k < samples; ++k) {
    float gate[ROWS] = {1};
    if (a.window) window_gate(a, k * a.rows / samples, 1, gate);
    sampled[k] = gate[0];
  }
  for (int64_t n = 0; n < a.channels; ++n) {
    double sum = 0;  // of equal numbers exactly so many times one: a constant channel has no variance
    for (int64_t k = 0; k < samples; ++k) sum += widen(q[k * a.rows / samples * a.product_stride + n]) * sampled[k];
    shift[n] = float(sum / double(samples));
  }
  parallel(threads, [&](Thread thread) {
    moments<T>(a, memory, thread, shift);
    thread.wait();
    for (int64_t n = thread.begin(a.channels); n < thread.end(a.channels); ++n) {
      float sum = 0, square = 0;
      for (int t = 0; t < thread.count; ++t) sum += memory.sums(t)[n], square += memory.sums(t, 1)[n];
      const float d = sum / float(a.rows);
      a.mean[n] = mean[n] = shift[n] + d;
      a.var[n] = std::max(square / float(a.rows) - d * d, 0.f);
      const float rstd = 1 / std::sqrt(a.var[n] + a.epsilon);
      factor[n] = a.A || !a.weight ? rstd : rstd * a.weight[n];  // the pixel gate reads n, without the weight
      bias[n] = a.bias[n];
    }
    thread.wait();
    with_flag(a.A, [&](auto pixel) { with_flag(a.skip, [&](auto skipped) { with_flag(a.relu, [&](auto relu) {
      rows_of(a, thread, ROWS, [&](int64_t first, int rows) {
        float* tile = memory.tile(thread.index);
        float f[ROWS], *s = memory.hidden(thread.index);
        if (pixel) {
          normalised<T>(a, memory, mean, factor, gates ? gates + first : nullptr, first, rows, tile);
          pixel_gate(a, memory, A.data, tile, rows, s, f);
        }
        for (int i = 0; i < rows; ++i) {
          const T* from = q + (first + i) * a.product_stride;
          const T* skip = skipped ? skips + (first + i) * a.skip_stride : nullptr;
          T* to = outputs + (first + i) * a.channels;
          const float g = gates ? gates[first + i] : 1;
          columns(a.channels, [&](int64_t n, auto part) {
            V m;
            if (pixel) {
              m = load(tile + i * memory.stride + n) * f[i];
              if (a.weight) m *= load(a.weight + n, part);
            } else {
              m = (load(from + n, part) * g - load(mean + n)) * load(factor + n);
            }
            m += load(bias + n);
            if (skipped) m += load(skip + n, part);
            store(to + n, relu ? rectified(m) : m, part);
          });
        }
      });
    }); }); });
  });
}

// ---- backward

// Where the sums of columns, the constants of columns and the numbers of rows lie.
enum { SUM, SUM_N, SUM_F, SUM_A };                     // of dm; of f dm n; of f dm; of ds n, one for each row of A
enum { MEAN, RSTD, OFFSET, SLOPE, OF_A };              // dz = dm f weight rstd + ds A rstd - OFFSET - (z - mean) SLOPE

template <class T>
struct Backward {
  Backward(const NormArguments& a, int threads)
      : a(a),
        memory(a, threads, true),
        A(a, memory.stride),
        q(static_cast<const T*>(a.product)),
        dys(static_cast<const T*>(a.dy)),
        ys(static_cast<const T*>(a.y)),
        dskip(static_cast<T*>(a.dskip)),
        mean(memory.constants(MEAN)),
        rstd(memory.constants(RSTD)),
        gates(a.window ? memory.of_rows(0) : nullptr),
        f(memory.of_rows(a.window ? 1 : 0)) {
    std::fill_n(memory.constants(0), memory.constants_of_columns * memory.stride, 0.f);
    for (int64_t n = 0; n < a.channels; ++n) mean[n] = a.mean[n], rstd[n] = 1 / std::sqrt(a.var[n] + a.epsilon);
  }

  const NormArguments& a;
  const Memory memory;
  const Padded A;
  const T *q, *dys, *ys;
  T* dskip;
  float *mean, *rstd, *gates, *f;

  float* ds(int64_t k) const { return f + (1 + k) * memory.rows; }
  float gate(int64_t row) const { return gates ? gates[row] : 1; }

  template <class R, class P>
  INLINE V dm(int64_t row, int64_t n, P part, R rectify) const {
    const V dy = load(dys + row * a.dy_stride + n, part);
    return rectify ? let_through(dy, load(ys + row * a.y_stride + n, part)) : dy;
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
            product[j] += d * (load(q + (first + i) * a.product_stride + n + j * W, part) * g - centre[j]);
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
      normalised<T>(a, memory, mean, rstd, gates ? gates + first : nullptr, first, rows, tile);
      pixel_gate(a, memory, A.data, tile, rows, s, f + first);
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
      a.dbias[n] = total(SUM, n);
      if (a.dweight) a.dweight[n] = product;
      for (int64_t k = 0; k < r; ++k) {
        const float A_kn = A.data[k * memory.stride + n], dA = total(SUM_A + k, n);
        a.dA[k * a.channels + n] = dA;
        float ds_sum = 0;
        for (int t = 0; t < thread.count; ++t) ds_sum += memory.scalar_sums(t)[k];
        of_dn += A_kn * ds_sum;
        of_dn_n += A_kn * dA;
        memory.constants(OF_A + k)[n] = A_kn * rstd[n];
      }
      memory.constants(OFFSET)[n] = of_dn / float(a.rows) * rstd[n];
      memory.constants(SLOPE)[n] = of_dn_n / float(a.rows) * rstd[n] * rstd[n];
    }
    if (thread.index == 0)
      for (int64_t k = 0; k < r; ++k) {
        a.db[k] = 0;
        for (int t = 0; t < thread.count; ++t) a.db[k] += memory.scalar_sums(t)[r + k];
      }
  }

  template <class R, class X>
  void write(Thread thread, R rectify, X pixel) const {
    T* to = static_cast<T*>(a.dproduct);
    const float *offset = memory.constants(OFFSET), *slope = memory.constants(SLOPE);
    const int64_t r = a.pixel_width;
    rows_of(a, thread, ROWS, [&](int64_t first, int rows) {
      float totals[ROWS * W] = {};
      for (int i = 0; i < rows; ++i) {
        const int64_t row = first + i;
        const float g = gate(row), f_row = pixel ? f[row] : 1;
        V total{};
        columns(a.channels, [&](int64_t n, auto part) {
          const V from = load(q + row * a.product_stride + n, part);
          V d = dskip ? load(dskip + row * a.channels + n, part) : dm(row, n, part, rectify);
          d *= load(rstd + n) * f_row;
          if (a.weight) d *= load(a.weight + n, part);
          if (pixel)
            for (int64_t k = 0; k < r; ++k) d += load(memory.constants(OF_A + k) + n) * ds(k)[row];
          const V dz = d - load(offset + n) - (from * g - load(mean + n)) * load(slope + n);
          store(to + row * a.dproduct_stride + n, dz * g, part);
          if (gates) total += dz * from;
        });
        if (gates) store(totals + i * W, total);
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
      with_type(a.u_type, [&](auto tag) {
        using U = decltype(tag);
        U* du = static_cast<U*>(a.du) + first * a.du_row + k * a.du_column;
        for (int i = 0; i < rows; ++i) {
          const float dlogit = total[i] * g[i] * (1 - g[i]), of_u = p[k * ROWS + i];
          dw[k] += dlogit * of_u;
          U value[W];
          store(value, splat(dlogit * a.window[k] * of_u * (1 - of_u)));
          du[i * a.du_row] = value[0];
        }
      });
  }

  void run(int threads) const {
    parallel(threads, [&](Thread thread) {
      std::fill_n(memory.sums(thread.index), memory.sums_of_columns * memory.stride + memory.scalars, 0.f);
      if (gates)
        rows_of(a, thread, ROWS, [&](int64_t first, int rows) { window_gate(a, first, rows, gates + first); });
      with_flag(a.relu, [&](auto rectify) { a.A ? sum_pixel(thread, rectify) : sum_plain(thread, rectify); });
      thread.wait();
      combine(thread);
      thread.wait();
      with_flag(a.relu, [&](auto rectify) {
        with_flag(a.A, [&](auto pixel) { write(thread, rectify, pixel); });
      });
      if (!gates) return;
      thread.wait();
      if (thread.index) return;
      for (int64_t k = 0; k < a.window_width; ++k) {
        a.dwindow[k] = 0;
        for (int t = 0; t < thread.count; ++t) a.dwindow[k] += memory.scalar_sums(t)[2 * a.pixel_width + k];
      }
    });
  }
};

}  // namespace
}  // namespace comt

using namespace comt;

EXPORT comt_modulated_norm(int threads, const NormArguments* arguments) {
  return guarded([&] {
    with_type(arguments->type, [&](auto tag) {
      forward<decltype(tag)>(*arguments, useful_threads(threads, arguments->rows, arguments->channels));
    });
  });
}

EXPORT comt_modulated_norm_backward(int threads, const NormArguments* arguments) {
  return guarded([&] {
    threads = useful_threads(threads, arguments->rows, arguments->channels);
    with_type(arguments->type, [&](auto tag) { Backward<decltype(tag)>(*arguments, threads).run(threads); });
  });
}
