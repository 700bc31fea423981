// Queries and keys, gated and rotated, and gated values; and the gradient, which needs nothing but these outputs.
//
// Channels j and j + E/2 of a head of width E turn by the angle of their row: (a cos - b sin, b cos + a sin). A
// rotation's transpose is its inverse, so turning q and dq back gives zhat and G.
#include "gates.h"

namespace comt {
namespace {

struct Rotation {
  Rotation(const Matrix& cos, const Matrix& sin)
      : cos(cos, cos.rows, cos.columns, cos.columns, "cos"),
        sin(sin, cos.rows, cos.columns, cos.columns, "sin"),
        period(cos.rows),
        half(cos.columns) {}
  const Floats cos, sin;  // [P, E/2]; row t uses row t % P
  const int64_t period, half;
};

// Whole heads, so that both channels of every pair are in the tile, and whole vectors, so that no two tiles share one.
int64_t chunk_of(int64_t head) {
  const int64_t least = std::lcm(head, int64_t(W));
  return std::max<int64_t>(1, CHUNK / least) * least;
}

// body(site, its first column, whether it turns) for queries, keys and values.
template <class F>
INLINE void sites_of(const Gates& gates, F&& body) {
  int64_t m = 0;
  for (int s = 0; s < 3; m += gates.widths[s++]) body(s, m, s < 2);
}

template <class T>
void forward(const Gates& gates, Rows<const T> product, const Rotation& rotation, const Rows<T>* outputs, Rows<T> u_out) {
  const int64_t half = rotation.half, head = 2 * half;
  forward_of(gates, product.from(gates.width), [&](Block& block, int64_t first) {
    for (int64_t t = first; t < first + block.rows; ++t) std::copy_n(product[t] + gates.width, gates.columns, u_out[t]);
    sites_of(gates, [&](int s, int64_t m, bool turns) {
      chunks_of_site(block, s, chunk_of(head), [&](int64_t start, int64_t width, int i, auto gate) {
        const int64_t t = first + i, position = t % rotation.period * half;
        const T* z = product[t] + m + start;
        T* to = outputs[s][t] + start;
        const auto zhat = [&](int64_t n, auto part) { return load(z + n, part) * gate(n); };
        if (!turns) {
          columns(width, [&](int64_t n, auto part) { store(to + n, zhat(n, part), part); });
          return;
        }
        const float *cos = rotation.cos + position, *sin = rotation.sin + position;
        for (int64_t e = 0; e < width; e += head)
          columns(half, [&](int64_t j, auto part) {
            const V a = zhat(e + j, part), b = zhat(e + half + j, part);
            const V c = load(cos + j, part), d = load(sin + j, part);
            store(to + e + j, a * c - b * d, part);
            store(to + e + half + j, b * c + a * d, part);
          });
      });
    });
  });
}

template <class T>
void backward(const Gates& gates, const Rows<const T>* gradients, const Rows<const T>* outputs, Rows<const T> u,
              const Rotation& rotation, const Gradients<T>& out) {
  const int64_t half = rotation.half, head = 2 * half;
  backward_of(gates, u, out, [&](Block& block, int64_t first) {
    sites_of(gates, [&](int s, int64_t m, bool turns) {
      chunks_of_site(block, s, chunk_of(head), [&](int64_t start, int64_t width, int i, auto gate) {
        const int64_t t = first + i, position = t % rotation.period * half;
        const T *G = gradients[s][t] + start, *zhat = outputs[s][t] + start;
        T* to = out.dproduct[t] + m + start;
        V row_sum{};
        const auto finish = [&](int64_t n, V G, V zhat, auto part) {
          const V h = G * zhat, factor = gate(n);
          gate.keep(n, h, part);
          store(to + n, G * factor, part);
          row_sum += h;
        };
        if (turns) {
          const float *cos = rotation.cos + position, *sin = rotation.sin + position;
          for (int64_t e = 0; e < width; e += head)
            columns(half, [&](int64_t j, auto part) {
              const V c = load(cos + j, part), d = load(sin + j, part);
              const V da = load(G + e + j, part), db = load(G + e + half + j, part);
              const V a = load(zhat + e + j, part), b = load(zhat + e + half + j, part);
              finish(e + j, da * c + db * d, a * c + b * d, part);
              finish(e + half + j, db * c - da * d, b * c - a * d, part);
            });
        } else {
          columns(width, [&](int64_t n, auto part) { finish(n, load(G + n, part), load(zhat + n, part), part); });
        }
        if (gates.is_gated(s)) block.add_to_row_sum(s, i, row_sum);
      });
    });
  });
}

// What both directions begin with: the gates of the three sites.
struct Call {
  Call(Arguments& in, int64_t rows, bool backward)
      : modulation(in.modulation()),
        cos(in.matrix()),
        rotation(cos, in.matrix()),
        wide(in.integer() * 2 * rotation.half),
        narrow(in.integer() * 2 * rotation.half),
        gates(modulation, {wide, narrow, narrow}, rows, in.threads, backward, chunk_of(2 * rotation.half) + W) {}
  const Modulation modulation;
  const Matrix cos;
  const Rotation rotation;
  const int64_t wide, narrow;
  const Gates gates;
};

}  // namespace
}  // namespace comt

using namespace comt;

OPERATION(heads) {
  const Matrix product = in.matrix();
  const Call call(in, product.rows, false);
  with_type(product.type, [&](auto tag) {
    using T = decltype(tag);
    T *q = in.result<T>(), *k = in.result<T>(), *v = in.result<T>(), *u = in.result<T>();
    const Rows<T> outputs[3] = {{q, call.wide}, {k, call.narrow}, {v, call.narrow}};
    forward<T>(call.gates, call.gates.product<const T>(product), call.rotation, outputs, {u, call.gates.columns});
  });
}

OPERATION(heads_backward) {
  Matrix given[6];  // dq, dk, dv, q, k and v
  for (Matrix& each : given) each = in.matrix();
  const Matrix u = in.matrix();
  const int64_t rows = given[0].rows;
  const Call call(in, rows, true);
  const int64_t columns = in.integer(), used = call.gates.width + call.gates.columns;
  require(columns >= used, columns, " columns, fewer than the ", used, " of the sites and gates");
  with_type(given[0].type, [&](auto tag) {
    using T = decltype(tag);
    const auto matrix = [&](int i, const char* name) {
      return given[i].of<const T>(rows, call.gates.widths[i % 3], name);
    };
    const Rows<const T> gradients[3] = {matrix(0, "dq"), matrix(1, "dk"), matrix(2, "dv")};
    const Rows<const T> outputs[3] = {matrix(3, "q"), matrix(4, "k"), matrix(5, "v")};
    backward<T>(call.gates, gradients, outputs, u.of<const T>(rows, call.gates.columns, "u"), call.rotation,
                in.gradients<T>());
  });
}
