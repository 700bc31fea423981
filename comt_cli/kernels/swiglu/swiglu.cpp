// silu(gate) * up of two gated sites, F columns each; the gradient computes the gates again from the product.
//     a = zg * gate, b = zu * gate, s = sigmoid(a)     out = a s b
//     db = dout a s     da = dout b (s + a s (1 - s))
#include "gates.h"

namespace comt {
namespace {

// a s, s = sigmoid(a). That s does not fall below 2^-126 must not show where a is far below: there it is 0, or NaN.
INLINE V silu_of(V a, V s) { return a > -90 ? a * s : a * 0; }

template <class T>
void forward(const Gates& gates, Rows<const T> product, Rows<T> h, int64_t F) {
  forward_of(gates, product.from(2 * F), [&](Block& block, int64_t first) {
    const auto body = [&](int64_t start, int64_t width, int i, auto gate, auto up) {
      const T* z = product[first + i] + start;
      T* to = h[first + i] + start;
      columns(width, [&](int64_t n, auto part) {
        const V a = load(z + n, part) * gate(n);
        const V b = load(z + F + n, part) * up(n);
        store(to + n, silu_of(a, sigmoid(a)) * b, part);
      });
    };
    chunks_of_sites(block, CHUNK, body, 0, 1);
    for (int64_t t = first; t < first + block.rows; ++t) std::memset(h[t] + F, 0, size_t(h.stride - F) * sizeof(T));
  });
}

template <class T>
void backward(const Gates& gates, Rows<const T> dh, Rows<const T> product, int64_t F, const Gradients<T>& to) {
  backward_of(gates, product.from(2 * F), to, [&](Block& block, int64_t first) {
    const auto body = [&](int64_t start, int64_t width, int i, auto gate, auto up) {
      const T *z = product[first + i] + start, *from = dh[first + i] + start;
      T* dz = to.dproduct[first + i] + start;
      V sum_a{}, sum_b{};
      columns(width, [&](int64_t n, auto part) {
        const V gate_a = gate(n), gate_b = up(n);
        const V a = load(z + n, part) * gate_a, b = load(z + F + n, part) * gate_b;
        const V s = sigmoid(a), silu = silu_of(a, s), dout = load(from + n, part);
        const V db = dout * silu, da = dout * b * (s + silu - silu * s);
        store(dz + n, da * gate_a, part);
        store(dz + F + n, db * gate_b, part);
        const V h_a = da * a, h_b = db * b;
        sum_a += h_a;
        sum_b += h_b;
        gate.keep(n, h_a);
        up.keep(n, h_b);
      });
      if (gates.is_gated(0)) block.add_to_row_sum(0, i, sum_a);
      if (gates.is_gated(1)) block.add_to_row_sum(1, i, sum_b);
    };
    chunks_of_sites(block, CHUNK, body, 0, 1);
  });
}

}  // namespace
}  // namespace comt

using namespace comt;

OPERATION(swiglu) {
  const Matrix product = in.matrix();
  const Modulation modulation = in.modulation();
  const int64_t F = in.integer(), width = in.integer();
  require(width >= F, F, " channels do not fit in ", width);
  const Gates gates(modulation, {F, F}, product.rows, in.threads, false);
  with_type(product.type, [&](auto tag) {
    using T = decltype(tag);
    forward<T>(gates, gates.product<const T>(product), {in.result<T>(), width}, F);
  });
}

OPERATION(swiglu_backward) {
  const Matrix dh = in.matrix(), product = in.matrix();
  const Modulation modulation = in.modulation();
  const int64_t F = in.integer();
  require(dh.columns >= F, "the gradient has ", dh.columns, " columns, fewer than ", F);
  const Gates gates(modulation, {F, F}, product.rows, in.threads, true);
  with_type(product.type, [&](auto tag) {
    using T = decltype(tag);
    backward<T>(gates, dh.of<const T>(product.rows, dh.columns, "dh"), gates.product<const T>(product), F,
                in.gradients<T>());
  });
}
