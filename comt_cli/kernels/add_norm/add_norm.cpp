// The stream plus one gated site, and its RMSNorm, in one pass; and the gradient.
//     y = x + zhat     rstd = 1 / sqrt(mean(y^2) + epsilon)     n = y rstd gain
//     yhat = y rstd     dx = dy + rstd (dn gain - yhat mean(dn gain yhat))     dgain = sum_t dn yhat     G = dx
// X is the type of the stream (x, y, dy, dx), T that of the product (product, n, dn, dproduct). dproduct is null where it
// would be dx: without a gate, in one type.
#include <cmath>

#include "gates.h"

namespace comt {
namespace {

template <class X, class T>
void forward(const Gates& gates, Rows<const X> x, Rows<const T> product, const float* gain, float epsilon, int64_t D,
             Rows<X> y, Rows<T> n_out, float* rstd_out) {
  const bool gated = gates.is_gated(0);
  parallel(gates.threads, [&](Thread thread) {
    gates.pack(thread);
    Block block(gates, thread);
    blocks_of(gates, thread, [&](int64_t first, int rows) {
      block.open(Rows<const T>{product.data + D, product.stride}, first, rows);
      float squares[ROWS * W] = {}, rstds[ROWS];  // of every row: W sums of squares
      with_flag(gates.channel, [&](auto channel) {
        chunks_of(D, channel, CHUNK, [&](int64_t start, int64_t width) {
          if (channel) block.channel_gate(0, start, width);
          for (int i = 0; i < rows; ++i) {
            const X* xs = x[first + i] + start;
            const T* z = product[first + i] + start;
            X* to = y[first + i] + start;
            const float* sc = block.tile_row(0, i);
            const float k = gated ? block.factor(0, i) : 1;
            V square = load(squares + i * W);
            columns(width, [&](int64_t n, auto part) {
              V gate = splat(k);
              if (channel) gate *= load(sc + n);
              const V sum = store(to + n, load(xs + n, part) + load(z + n, part) * gate, part);
              square += sum * sum;
            });
            store(squares + i * W, square);
          }
        });
      });
      lane_sums(squares, rstds);
      for (int i = 0; i < rows; ++i) {
        const float rstd = 1 / std::sqrt(rstds[i] / float(D) + epsilon);
        rstd_out[first + i] = rstd;
        const X* from = y[first + i];
        T* to = n_out[first + i];
        columns(D, [&](int64_t n, auto part) {
          store(to + n, load(from + n, part) * rstd * load(gain + n, part), part);
        });
      }
    });
  });
}

template <class X, class T>
void backward(const Gates& gates, Rows<const X> dy, Rows<const T> dn, Rows<const X> y, const float* rstds,
              Rows<const T> product, const float* gain, int64_t D, Rows<X> dx, Rows<T> dproduct, int64_t rest,
              float* dWc, float* dws, float* dgain) {
  const bool gated = gates.is_gated(0);
  parallel(gates.threads, [&](Thread thread) {
    gates.pack(thread);
    Block block(gates, thread);
    float* gain_sums = gates.extra_sums(thread.index);
    blocks_of(gates, thread, [&](int64_t first, int rows) {
      block.open(Rows<const T>{product.data + D, product.stride}, first, rows);
      float totals[ROWS * W] = {}, means[ROWS];  // of dn gain yhat
      for (int i = 0; i < rows; ++i) {
        const X* ys = y[first + i];
        const T* from = dn[first + i];
        const float rstd = rstds[first + i];
        V total{};
        columns(D, [&](int64_t n, auto part) {
          const V product_of = load(from + n, part) * (load(ys + n, part) * rstd);
          store(gain_sums + n, load(gain_sums + n, part) + product_of, part);
          total += product_of * load(gain + n, part);
        });
        store(totals + i * W, total);
      }
      lane_sums(totals, means);
      if (gated) block.begin_site();
      with_flag(gates.channel, [&](auto channel) {
        chunks_of(D, channel, CHUNK, [&](int64_t start, int64_t width) {
          if (channel) block.channel_gate(0, start, width);
          for (int i = 0; i < rows; ++i) {
            const X *ys = y[first + i] + start, *dys = dy[first + i] + start;
            const T *dns = dn[first + i] + start, *z = product[first + i] + start;
            X* to = dx[first + i] + start;
            T* dz_to = dproduct.data ? dproduct[first + i] + start : nullptr;
            float* sc = block.tile_row(0, i);
            const float k = gated ? block.factor(0, i) : 1, rstd = rstds[first + i], mean = means[i] / float(D) * rstd;
            V row_sum{};
            columns(width, [&](int64_t n, auto part) {
              const V inner = load(dns + n, part) * load(gain + start + n, part) - load(ys + n, part) * mean;
              const V G = load(dys + n, part) + inner * rstd;
              store(to + n, G, part);
              if (!dz_to) return;
              V gate = splat(k);
              if (channel) gate *= load(sc + n);
              const V dz = G * gate;
              store(dz_to + n, dz, part);
              if (!gated) return;
              const V h = dz * load(z + n, part);
              row_sum += h;
              if (channel) store(sc + n, h - h * load(sc + n));
            });
            if (gated) block.add_to_row_sum(0, i, row_sum);
          }
          if (channel) block.channel_gradient(0, start, width);
        });
      });
      if (gated) block.end_site(0);
      if (dproduct.data) block.close(Rows<T>{dproduct.data + D, dproduct.stride}, first, rest);
    });
    gates.reduce(thread, dWc, dws, dgain);
  });
}

// body(X(), T()): the two types may differ.
template <class F>
void with_types(int32_t stream, int32_t type, F&& body) {
  with_type(stream, [&](auto x) { with_type(type, [&](auto t) { body(x, t); }); });
}

}  // namespace
}  // namespace comt

using namespace comt;

EXPORT comt_add_norm(int threads, int32_t stream, int32_t type, const GateArguments* arguments, int64_t rows, int64_t D,
                     const void* x, int64_t x_stride, const void* product, int64_t product_stride, const float* gain,
                     double epsilon, void* y, void* n, float* rstd) {
  return guarded([&] {
    const Gates gates(*arguments, 1, &D, rows, useful_threads(threads, rows, D), false);
    with_types(stream, type, [&](auto stream_tag, auto tag) {
      using X = decltype(stream_tag);
      using T = decltype(tag);
      forward<X, T>(gates, {static_cast<const X*>(x), x_stride}, {static_cast<const T*>(product), product_stride}, gain,
                    float(epsilon), D, {static_cast<X*>(y), D}, {static_cast<T*>(n), D}, rstd);
    });
  });
}

EXPORT comt_add_norm_backward(int threads, int32_t stream, int32_t type, const GateArguments* arguments, int64_t rows,
                              int64_t D, const void* dy, int64_t dy_stride, const void* dn, int64_t dn_stride,
                              const void* y, int64_t y_stride, const float* rstd, const void* product,
                              int64_t product_stride, const float* gain, void* dx, void* dproduct, int64_t columns,
                              float* dWc, float* dws, float* dgain) {
  return guarded([&] {
    const Gates gates(*arguments, 1, &D, rows, useful_threads(threads, rows, D), true, CHUNK, D);
    with_types(stream, type, [&](auto stream_tag, auto tag) {
      using X = decltype(stream_tag);
      using T = decltype(tag);
      backward<X, T>(gates, {static_cast<const X*>(dy), dy_stride}, {static_cast<const T*>(dn), dn_stride},
                     {static_cast<const X*>(y), y_stride}, rstd, {static_cast<const T*>(product), product_stride}, gain,
                     D, {static_cast<X*>(dx), D}, {static_cast<T*>(dproduct), columns}, columns - D - gates.columns,
                     dWc, dws, dgain);
    });
  });
}
