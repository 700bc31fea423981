// Every site's columns times its gate: zhat = z * c sc * c ss, and its gradient.
#include "gates.h"

namespace comt {
namespace {

// body(site, its first column) for every site of a block; one without a gate is copied from its columns instead.
template <class T, class F>
void sites_of(const Block& block, int64_t first, Rows<const T> ungated, Rows<T> to, F&& body) {
  int64_t m = 0;
  for (int s = 0; s < block.gates.sites; m += block.gates.widths[s++]) {
    if (block.gates.is_gated(s)) {
      body(s, m);
      continue;
    }
    for (int64_t t = first; t < first + block.rows; ++t) std::copy_n(ungated[t] + m, block.gates.widths[s], to[t] + m);
  }
}

template <class T>
void forward(const Gates& gates, Rows<const T> product, Rows<T> zhat) {
  forward_of(gates, product.from(gates.width), [&](Block& block, int64_t first) {
    sites_of(block, first, product, zhat, [&](int s, int64_t m) {
      chunks_of_site(block, s, CHUNK, [&](int64_t start, int64_t width, int i, auto gate) {
        const T* z = product[first + i] + m + start;
        T* to = zhat[first + i] + m + start;
        columns(width, [&](int64_t n, auto part) { store(to + n, load(z + n, part) * gate(n), part); });
      });
    });
  });
}

// dz = G c sc c ss; h = G zhat = dz z; ec = h (1 - sc).
template <class T>
void backward(const Gates& gates, Rows<const T> G, Rows<const T> product, const Gradients<T>& to) {
  backward_of(gates, product.from(gates.width), to, [&](Block& block, int64_t first) {
    sites_of(block, first, G, to.dproduct, [&](int s, int64_t m) {
      chunks_of_site(block, s, CHUNK, [&](int64_t start, int64_t width, int i, auto gate) {
        const T *from = G[first + i] + m + start, *zs = product[first + i] + m + start;
        T* dz_to = to.dproduct[first + i] + m + start;
        V row_sum{};
        columns(width, [&](int64_t n, auto part) {
          const V dz = load(from + n, part) * gate(n), h = dz * load(zs + n, part);
          store(dz_to + n, dz, part);
          row_sum += h;
          gate.keep(n, h);
        });
        block.add_to_row_sum(s, i, row_sum);
      });
    });
  });
}

// body(G, the gates, the product, its type) with the arguments of either direction.
template <class F>
void with_arguments(Arguments& in, bool is_backward, F&& body) {
  const Matrix G = is_backward ? in.matrix() : Matrix{}, product = in.matrix();
  const Modulation modulation = in.modulation();
  const Integers widths = in.integers();
  const Gates gates(modulation, {widths.data, widths.data + widths.count}, product.rows, in.threads, is_backward);
  with_type(product.type, [&](auto tag) { body(G, gates, gates.product<const decltype(tag)>(product), tag); });
}

}  // namespace
}  // namespace comt

using namespace comt;

OPERATION(modulate) {
  with_arguments(in, false, [&](auto&, auto& gates, auto product, auto tag) {
    using T = decltype(tag);
    forward<T>(gates, product, {in.result<T>(), gates.width});
  });
}

OPERATION(modulate_backward) {
  with_arguments(in, true, [&](auto& G, auto& gates, auto product, auto tag) {
    using T = decltype(tag);
    backward<T>(gates, G.template of<const T>(gates.rows, gates.width, "G"), product, in.gradients<T>());
  });
}
