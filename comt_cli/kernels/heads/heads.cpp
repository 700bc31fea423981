// Queries and keys, gated and rotated, and gated values; and the gradient, which needs nothing but these outputs.
//
// Channels j and j + E/2 of a head of width E turn by the angle of their row: (a cos - b sin, b cos + a sin). A
// rotation's transpose is its inverse, so turning q and dq back gives zhat and G.
#include <numeric>

#include "gates.h"

namespace comt {
namespace {

struct Rotation {
  Rows<const float> cos, sin;  // [P, E/2]; row t uses row t % P
  int64_t period;
};

// Whole heads, so that both channels of every pair are in the tile, and whole vectors, so that no two tiles share one.
int64_t chunk_of(int64_t head) {
  const int64_t least = std::lcm(head, int64_t(W));
  return std::max<int64_t>(1, CHUNK / least) * least;
}

template <class T>
void forward(const Gates& gates, Rows<const T> product, const Rotation& rotation, int64_t head, T* const* outputs,
             T* u_out) {
  const int64_t M = gates.widths[0] + gates.widths[1] + gates.widths[2], half = head / 2, SR = gates.columns;
  parallel(gates.threads, [&](Thread thread) {
    gates.pack(thread);
    Block block(gates, thread);
    blocks_of(gates, thread, [&](int64_t first, int rows) {
      block.open(Rows<const T>{product.data + M, product.stride}, first, rows);
      for (int64_t t = first; t < first + rows; ++t) std::copy_n(product[t] + M, SR, u_out + t * SR);
      int64_t m = 0;
      for (int s = 0; s < 3; m += gates.widths[s++]) {
        const int64_t N = gates.widths[s];
        const bool gated = gates.is_gated(s);
        with_flag(gated && gates.channel, [&](auto channel) {
          chunks_of(N, channel, chunk_of(head), [&](int64_t start, int64_t width) {
            if (channel) block.channel_gate(s, start, width);
            for (int i = 0; i < rows; ++i) {
              const int64_t t = first + i;
              const T* z = product[t] + m + start;
              T* to = outputs[s] + t * N + start;
              const float* sc = block.tile_row(0, i);
              const float k = gated ? block.factor(s, i) : 1;
              const auto zhat = [&](int64_t n, auto part) {
                V gate = splat(k);
                if (channel) gate *= load(sc + n);
                return load(z + n, part) * gate;
              };
              if (s == 2) {
                columns(width, [&](int64_t n, auto part) { store(to + n, zhat(n, part), part); });
                continue;
              }
              const float *cos = rotation.cos[t % rotation.period], *sin = rotation.sin[t % rotation.period];
              for (int64_t e = 0; e < width; e += head)
                columns(half, [&](int64_t j, auto part) {
                  const V a = zhat(e + j, part), b = zhat(e + half + j, part);
                  const V c = load(cos + j, part), d = load(sin + j, part);
                  store(to + e + j, a * c - b * d, part);
                  store(to + e + half + j, b * c + a * d, part);
                });
            }
          });
        });
      }
    });
  });
}

template <class T>
void backward(const Gates& gates, const Rows<const T>* gradients, const Rows<const T>* outputs, Rows<const T> u,
              const Rotation& rotation, int64_t head, Rows<T> dproduct, int64_t rest, float* dWc, float* dws) {
  const int64_t M = gates.widths[0] + gates.widths[1] + gates.widths[2], half = head / 2;
  parallel(gates.threads, [&](Thread thread) {
    gates.pack(thread);
    Block block(gates, thread);
    blocks_of(gates, thread, [&](int64_t first, int rows) {
      block.open(u, first, rows);
      int64_t m = 0;
      for (int s = 0; s < 3; m += gates.widths[s++]) {
        const bool gated = gates.is_gated(s);
        if (gated) block.begin_site();
        with_flag(gated && gates.channel, [&](auto channel) {
          chunks_of(gates.widths[s], channel, chunk_of(head), [&](int64_t start, int64_t width) {
            if (channel) block.channel_gate(s, start, width);
            for (int i = 0; i < rows; ++i) {
              const int64_t t = first + i;
              const T *from = gradients[s][t] + start, *out = outputs[s][t] + start;
              T* to = dproduct[t] + m + start;
              float* sc = block.tile_row(0, i);
              const float k = gated ? block.factor(s, i) : 1;
              V row_sum{};
              const auto finish = [&](int64_t n, V G, V zhat, auto part) {
                const V h = G * zhat;
                V gate = splat(k);
                if (channel) {
                  const V gamma = load(sc + n, part);
                  gate *= gamma;
                  store(sc + n, h - h * gamma, part);
                }
                store(to + n, G * gate, part);
                row_sum += h;
              };
              if (s == 2) {
                columns(width, [&](int64_t n, auto part) {
                  finish(n, load(from + n, part), load(out + n, part), part);
                });
              } else {
                const float *cos = rotation.cos[t % rotation.period], *sin = rotation.sin[t % rotation.period];
                for (int64_t e = 0; e < width; e += head)
                  columns(half, [&](int64_t j, auto part) {
                    const V c = load(cos + j, part), d = load(sin + j, part);
                    const V da = load(from + e + j, part), db = load(from + e + half + j, part);
                    const V a = load(out + e + j, part), b = load(out + e + half + j, part);
                    finish(e + j, da * c + db * d, a * c + b * d, part);
                    finish(e + half + j, db * c - da * d, b * c - a * d, part);
                  });
              }
              if (gated) block.add_to_row_sum(s, i, row_sum);
            }
            if (channel) block.channel_gradient(s, start, width);
          });
        });
        if (gated) block.end_site(s);
      }
      block.close(Rows<T>{dproduct.data + M, dproduct.stride}, first, rest);
    });
    gates.reduce(thread, dWc, dws, nullptr);
  });
}

}  // namespace
}  // namespace comt

using namespace comt;

EXPORT comt_heads(int threads, int32_t type, const GateArguments* arguments, int64_t rows, const void* product,
                  int64_t product_stride, const float* cos, int64_t cos_stride, const float* sin, int64_t sin_stride,
                  int64_t period, int64_t head, int64_t heads, int64_t kv_heads, void* q, void* k, void* v, void* u) {
  return guarded([&] {
    const int64_t widths[3] = {heads * head, kv_heads * head, kv_heads * head};
    const int used = useful_threads(threads, rows, widths[0] + 2 * widths[1]);
    const Gates gates(*arguments, 3, widths, rows, used, false, chunk_of(head) + W);
    const Rotation rotation{{cos, cos_stride}, {sin, sin_stride}, period};
    with_type(type, [&](auto tag) {
      using T = decltype(tag);
      T* const outputs[3] = {static_cast<T*>(q), static_cast<T*>(k), static_cast<T*>(v)};
      forward<T>(gates, {static_cast<const T*>(product), product_stride}, rotation, head, outputs, static_cast<T*>(u));
    });
  });
}

EXPORT comt_heads_backward(int threads, int32_t type, const GateArguments* arguments, int64_t rows, const void* dq,
                           int64_t dq_stride, const void* dk, int64_t dk_stride, const void* dv, int64_t dv_stride,
                           const void* q, int64_t q_stride, const void* k, int64_t k_stride, const void* v,
                           int64_t v_stride, const void* u, int64_t u_stride, const float* cos, int64_t cos_stride,
                           const float* sin, int64_t sin_stride, int64_t period, int64_t head, int64_t heads,
                           int64_t kv_heads, void* dproduct, int64_t columns, float* dWc, float* dws) {
  return guarded([&] {
    const int64_t widths[3] = {heads * head, kv_heads * head, kv_heads * head}, M = widths[0] + 2 * widths[1];
    const Gates gates(*arguments, 3, widths, rows, useful_threads(threads, rows, M), true, chunk_of(head) + W);
    const Rotation rotation{{cos, cos_stride}, {sin, sin_stride}, period};
    with_type(type, [&](auto tag) {
      using T = decltype(tag);
      const auto matrix = [](const void* data, int64_t stride) {
        return Rows<const T>{static_cast<const T*>(data), stride};
      };
      const Rows<const T> gradients[3] = {matrix(dq, dq_stride), matrix(dk, dk_stride), matrix(dv, dv_stride)};
      const Rows<const T> outputs[3] = {matrix(q, q_stride), matrix(k, k_stride), matrix(v, v_stride)};
      backward<T>(gates, gradients, outputs, matrix(u, u_stride), rotation, head, {static_cast<T*>(dproduct), columns},
                  columns - M - gates.columns, dWc, dws);
    });
  });
}
