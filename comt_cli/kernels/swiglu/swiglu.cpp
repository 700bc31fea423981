// silu(gate) * up of two gated sites, F columns each; the gradient computes the gates again from the product.
//     a = zg * gate, b = zu * gate, s = sigmoid(a)     out = a s b
//     db = dout a s     da = dout b (s + a s (1 - s))
#include "gates.h"

namespace comt {
namespace {

// One site's gate in one row: sc of the tile's columns, and the rest of the gate.
struct Site {
  const float* sc;
  float k;
};

template <bool CHANNEL>
INLINE V gate(const Site& site, int64_t n) {
  V result = splat(site.k);
  if (CHANNEL) result *= load(site.sc + n);
  return result;
}

Site site_of(const Block& block, int s, int row) {
  return {block.tile_row(s, row), block.gates.is_gated(s) ? block.factor(s, row) : 1};
}

// a s, s = sigmoid(a). That s does not fall below 2^-126 must not show where a is far below: there it is 0, or NaN.
INLINE V silu_of(V a, V s) { return a > -90 ? a * s : a * 0; }

// An ungated site of a product whose other site has a channel gate: its tile is all ones, so that one loop serves both.
void fill_tiles(const Block& block, int64_t start, int64_t width) {
  for (int s = 0; s < 2; ++s)
    if (block.gates.is_gated(s))
      block.channel_gate(s, start, width, s);
    else
      for (int i = 0; i < block.rows; ++i) std::fill_n(block.tile_row(s, i), padded(width), 1.0f);
}

template <class T>
void forward(const Gates& gates, Rows<const T> product, Rows<T> h, int64_t F, int64_t rest) {
  parallel(gates.threads, [&](Thread thread) {
    gates.pack(thread);
    Block block(gates, thread);
    blocks_of(gates, thread, [&](int64_t first, int rows) {
      block.open(Rows<const T>{product.data + 2 * F, product.stride}, first, rows);
      with_flag(gates.channel, [&](auto channel) {
        constexpr bool CHANNEL = decltype(channel)::value;
        chunks_of(F, channel, CHUNK, [&](int64_t start, int64_t width) {
          if (CHANNEL) fill_tiles(block, start, width);
          for (int i = 0; i < rows; ++i) {
            const T* z = product[first + i] + start;
            T* to = h[first + i] + start;
            const Site one = site_of(block, 0, i), two = site_of(block, 1, i);
            columns(width, [&](int64_t n, auto part) {
              const V a = load(z + n, part) * gate<CHANNEL>(one, n);
              const V b = load(z + F + n, part) * gate<CHANNEL>(two, n);
              store(to + n, silu_of(a, sigmoid(a)) * b, part);
            });
          }
        });
      });
      for (int64_t t = first; t < first + rows; ++t) std::memset(h[t] + F, 0, size_t(rest) * sizeof(T));
    });
  });
}

template <class T>
void backward(const Gates& gates, Rows<const T> dh, Rows<const T> product, Rows<T> dproduct, int64_t F, int64_t rest,
              float* dWc, float* dws) {
  parallel(gates.threads, [&](Thread thread) {
    gates.pack(thread);
    Block block(gates, thread);
    blocks_of(gates, thread, [&](int64_t first, int rows) {
      block.open(Rows<const T>{product.data + 2 * F, product.stride}, first, rows);
      for (int s = 0; s < 2; ++s)
        if (gates.is_gated(s)) block.begin_site(s);
      with_flag(gates.channel, [&](auto channel) {
        constexpr bool CHANNEL = decltype(channel)::value;
        chunks_of(F, channel, CHUNK, [&](int64_t start, int64_t width) {
          if (CHANNEL) fill_tiles(block, start, width);
          for (int i = 0; i < rows; ++i) {
            const T *z = product[first + i] + start, *from = dh[first + i] + start;
            T* to = dproduct[first + i] + start;
            const Site one = site_of(block, 0, i), two = site_of(block, 1, i);
            V sum_one{}, sum_two{};
            columns(width, [&](int64_t n, auto part) {
              const V gate_one = gate<CHANNEL>(one, n), gate_two = gate<CHANNEL>(two, n);
              const V a = load(z + n, part) * gate_one, b = load(z + F + n, part) * gate_two;
              const V s = sigmoid(a), silu = silu_of(a, s), dout = load(from + n, part);
              const V db = dout * silu, da = dout * b * (s + silu - silu * s);
              store(to + n, da * gate_one, part);
              store(to + F + n, db * gate_two, part);
              const V h_one = da * a, h_two = db * b;
              sum_one += h_one;
              sum_two += h_two;
              if (CHANNEL) {
                store(block.tile_row(0, i) + n, h_one - h_one * load(one.sc + n));
                store(block.tile_row(1, i) + n, h_two - h_two * load(two.sc + n));
              }
            });
            if (gates.is_gated(0)) block.add_to_row_sum(0, i, sum_one);
            if (gates.is_gated(1)) block.add_to_row_sum(1, i, sum_two);
          }
          for (int s = 0; s < 2; ++s)
            if (gates.is_gated(s)) block.channel_gradient(s, start, width, s, s);
        });
      });
      for (int s = 0; s < 2; ++s)
        if (gates.is_gated(s)) block.end_site(s, s);
      block.close(Rows<T>{dproduct.data + 2 * F, dproduct.stride}, first, rest);
    });
    gates.reduce(thread, dWc, dws, nullptr);
  });
}

}  // namespace
}  // namespace comt

using namespace comt;

EXPORT comt_swiglu(int threads, int32_t type, const GateArguments* arguments, int64_t rows, const void* product,
                   int64_t product_stride, int64_t F, void* h, int64_t padded_width) {
  return guarded([&] {
    const int64_t widths[2] = {F, F};
    const Gates gates(*arguments, 2, widths, rows, useful_threads(threads, rows, 2 * F), false);
    with_type(type, [&](auto tag) {
      using T = decltype(tag);
      forward<T>(gates, {static_cast<const T*>(product), product_stride}, {static_cast<T*>(h), padded_width}, F,
                 padded_width - F);
    });
  });
}

EXPORT comt_swiglu_backward(int threads, int32_t type, const GateArguments* arguments, int64_t rows, const void* dh,
                            int64_t dh_stride, const void* product, int64_t product_stride, int64_t F, void* dproduct,
                            int64_t columns, float* dWc, float* dws) {
  return guarded([&] {
    const int64_t widths[2] = {F, F};
    const Gates gates(*arguments, 2, widths, rows, useful_threads(threads, rows, 2 * F), true);
    with_type(type, [&](auto tag) {
      using T = decltype(tag);
      backward<T>(gates, {static_cast<const T*>(dh), dh_stride}, {static_cast<const T*>(product), product_stride},
                  {static_cast<T*>(dproduct), columns}, F, columns - 2 * F - gates.columns, dWc, dws);
    });
  });
}
