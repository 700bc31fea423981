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

std::vector<int64_t> vector_of(Integers widths) { return {widths.data, widths.data + widths.count}; }

}  // namespace
}  // namespace comt

using namespace comt;

OPERATION(modulate) {
  const Matrix product = in.matrix();
  const Modulation modulation = in.modulation();
  const auto widths = vector_of(in.integers());
  const int64_t M = std::accumulate(widths.begin(), widths.end(), int64_t(0));
  const Gates gates(modulation, widths, product.rows, useful_threads(in.threads, product.rows, M), false);
  with_type(product.type, [&](auto tag) {
    using T = decltype(tag);
    forward<T>(gates, gates.product<const T>(product), {in.result<T>(), M});
  });
}

OPERATION(modulate_backward) {
  const Matrix G = in.matrix(), product = in.matrix();
  const Modulation modulation = in.modulation();
  const auto widths = vector_of(in.integers());
  const int64_t M = std::accumulate(widths.begin(), widths.end(), int64_t(0));
  const Gates gates(modulation, widths, product.rows, useful_threads(in.threads, product.rows, M), true);
  with_type(product.type, [&](auto tag) {
    using T = decltype(tag);
    backward<T>(gates, G.of<const T>(product.rows, M, "G"), gates.product<const T>(product), in.gradients<T>());
  });
}
