// Every site's columns times its gate: zhat = z * c sc * c ss, and its gradient.
#include "gates.h"

namespace comt {
namespace {

template <class T>
void forward(const Gates& gates, Rows<const T> product, Rows<T> zhat, int64_t M) {
  parallel(gates.threads, [&](Thread thread) {
    gates.pack(thread);
    Block block(gates, thread);
    blocks_of(gates, thread, [&](int64_t first, int rows) {
      block.open(Rows<const T>{product.data + M, product.stride}, first, rows);
      int64_t m = 0;
      for (int s = 0; s < gates.sites; m += gates.widths[s++]) {
        const int64_t N = gates.widths[s];
        if (!gates.is_gated(s)) {
          for (int64_t t = first; t < first + rows; ++t) std::copy_n(product[t] + m, N, zhat[t] + m);
          continue;
        }
        with_flag(gates.channel, [&](auto channel) {
          chunks_of(N, channel, CHUNK, [&](int64_t start, int64_t width) {
            block.channel_gate(s, start, width);
            for (int i = 0; i < rows; ++i) {
              const T* z = product[first + i] + m + start;
              T* to = zhat[first + i] + m + start;
              const float* sc = block.tile_row(0, i);
              const float k = block.factor(s, i);
              columns(width, [&](int64_t n, auto part) {
                V gate = splat(k);
                if (channel) gate *= load(sc + n);
                store(to + n, load(z + n, part) * gate, part);
              });
            }
          });
        });
      }
    });
  });
}

// dz = G c sc c ss; h = G zhat = dz z; ec = h (1 - sc).
template <class T>
void backward(const Gates& gates, Rows<const T> G, Rows<const T> product, Rows<T> dproduct, int64_t M, int64_t rest,
              float* dWc, float* dws) {
  parallel(gates.threads, [&](Thread thread) {
    gates.pack(thread);
    Block block(gates, thread);
    blocks_of(gates, thread, [&](int64_t first, int rows) {
      block.open(Rows<const T>{product.data + M, product.stride}, first, rows);
      int64_t m = 0;
      for (int s = 0; s < gates.sites; m += gates.widths[s++]) {
        const int64_t N = gates.widths[s];
        if (!gates.is_gated(s)) {
          for (int64_t t = first; t < first + rows; ++t) std::copy_n(G[t] + m, N, dproduct[t] + m);
          continue;
        }
        block.begin_site();
        with_flag(gates.channel, [&](auto channel) {
          chunks_of(N, channel, CHUNK, [&](int64_t start, int64_t width) {
            block.channel_gate(s, start, width);
            for (int i = 0; i < rows; ++i) {
              const T *from = G[first + i] + m + start, *zs = product[first + i] + m + start;
              T* to = dproduct[first + i] + m + start;
              float* sc = block.tile_row(0, i);
              const float k = block.factor(s, i);
              V row_sum{};
              columns(width, [&](int64_t n, auto part) {
                V gate = splat(k);
                if (channel) gate *= load(sc + n);
                const V dz = load(from + n, part) * gate, h = dz * load(zs + n, part);
                store(to + n, dz, part);
                row_sum += h;
                if (channel) store(sc + n, h - h * load(sc + n));
              });
              block.add_to_row_sum(s, i, row_sum);
            }
            block.channel_gradient(s, start, width);
          });
        });
        block.end_site(s);
      }
      block.close(Rows<T>{dproduct.data + M, dproduct.stride}, first, rest);
    });
    gates.reduce(thread, dWc, dws, nullptr);
  });
}

int64_t total(int sites, const int64_t* widths) {
  int64_t M = 0;
  for (int s = 0; s < sites; ++s) M += widths[s];
  return M;
}

}  // namespace
}  // namespace comt

using namespace comt;

EXPORT comt_modulate(int threads, int32_t type, const GateArguments* arguments, int sites, const int64_t* widths,
                     int64_t rows, const void* product, int64_t product_stride, void* zhat, int64_t zhat_stride) {
  return guarded([&] {
    const int64_t M = total(sites, widths);
    const Gates gates(*arguments, sites, widths, rows, useful_threads(threads, rows, M), false);
    with_type(type, [&](auto tag) {
      using T = decltype(tag);
      forward<T>(gates, {static_cast<const T*>(product), product_stride}, {static_cast<T*>(zhat), zhat_stride}, M);
    });
  });
}

EXPORT comt_modulate_backward(int threads, int32_t type, const GateArguments* arguments, int sites,
                              const int64_t* widths, int64_t rows, const void* G, int64_t G_stride,
                              const void* product, int64_t product_stride, void* dproduct, int64_t columns, float* dWc,
                              float* dws) {
  return guarded([&] {
    const int64_t M = total(sites, widths);
    const Gates gates(*arguments, sites, widths, rows, useful_threads(threads, rows, M), true);
    with_type(type, [&](auto tag) {
      using T = decltype(tag);
      backward<T>(gates, {static_cast<const T*>(G), G_stride}, {static_cast<const T*>(product), product_stride},
                  {static_cast<T*>(dproduct), columns}, M, columns - M - gates.columns, dWc, dws);
    });
  });
}
