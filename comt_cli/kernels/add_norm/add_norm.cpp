// The stream plus one gated site, and its RMSNorm, in one pass; and the gradient.
//     y = x + zhat     rstd = 1 / sqrt(mean(y^2) + epsilon)     n = y rstd gain
//     yhat = y rstd     dx = dy + rstd (dn gain - yhat mean(dn gain yhat))     dgain = sum_t dn yhat     G = dx
// X is the type of the stream (x, y, dy, dx), T that of the product (product, n, dn, dproduct). dproduct is null where it
// would be dx: without a gate, in one type.
#include "gates.h"

namespace comt {
namespace {

template <class X, class T>
void forward(const Gates& gates, Rows<const X> x, Rows<const T> product, const float* gain, float epsilon, int64_t D,
             Rows<X> y, Rows<T> n_out, float* rstd_out) {
  forward_of(gates, product.from(D), [&](Block& block, int64_t first) {
    float squares[ROWS * W] = {}, rstds[ROWS];  // of every row: W sums of squares
    chunks_of_site(block, 0, CHUNK, [&](int64_t start, int64_t width, int i, auto gate) {
      const X* xs = x[first + i] + start;
      const T* z = product[first + i] + start;
      X* to = y[first + i] + start;
      V square = load(squares + i * W);
      columns(width, [&](int64_t n, auto part) {
        const V sum = store(to + n, load(xs + n, part) + load(z + n, part) * gate(n), part);
        square += sum * sum;
      });
      store(squares + i * W, square);
    });
    lane_sums(squares, rstds);
    for (int i = 0; i < block.rows; ++i) {
      const float rstd = 1 / std::sqrt(rstds[i] / float(D) + epsilon);
      rstd_out[first + i] = rstd;
      const X* from = y[first + i];
      T* to = n_out[first + i];
      columns(D, [&](int64_t n, auto part) {
        store(to + n, load(from + n, part) * rstd * load(gain + n, part), part);
      });
    }
  });
}

template <class X, class T>
void backward(const Gates& gates, Rows<const X> dy, Rows<const T> dn, Rows<const X> y, const float* rstds,
              Rows<const T> product, const float* gain, int64_t D, Rows<X> dx, const Gradients<T>& out) {
  const bool gated = gates.is_gated(0);
  backward_of(gates, product.from(D), out, [&](Block& block, int64_t first) {
    float totals[ROWS * W] = {}, means[ROWS];  // of dn gain yhat
    for (int i = 0; i < block.rows; ++i) {
      const X* ys = y[first + i];
      const T* from = dn[first + i];
      const float rstd = rstds[first + i];
      V total{};
      columns(D, [&](int64_t n, auto part) {
        const V product_of = load(from + n, part) * (load(ys + n, part) * rstd);
        store(block.extra + n, load(block.extra + n, part) + product_of, part);
        total += product_of * load(gain + n, part);
      });
      store(totals + i * W, total);
    }
    lane_sums(totals, means);
    chunks_of_site(block, 0, CHUNK, [&](int64_t start, int64_t width, int i, auto gate) {
      const X *ys = y[first + i] + start, *dys = dy[first + i] + start;
      const T *dns = dn[first + i] + start, *z = product[first + i] + start;
      X* to = dx[first + i] + start;
      T* dz_to = out.dproduct.data ? out.dproduct[first + i] + start : nullptr;
      const float rstd = rstds[first + i], mean = means[i] / float(D) * rstd;
      V row_sum{};
      columns(width, [&](int64_t n, auto part) {
        const V inner = load(dns + n, part) * load(gain + start + n, part) - load(ys + n, part) * mean;
        const V G = load(dys + n, part) + inner * rstd;
        store(to + n, G, part);
        if (!dz_to) return;
        const V dz = G * gate(n);
        store(dz_to + n, dz, part);
        if (!gated) return;
        const V h = dz * load(z + n, part);
        row_sum += h;
        gate.keep(n, h);
      });
      if (gated) block.add_to_row_sum(0, i, row_sum);
    });
  });
}

// body(X(), T()): the two types may differ.
template <class F>
void with_types(int64_t stream, int64_t type, F&& body) {
  with_type(stream, [&](auto x) { with_type(type, [&](auto t) { body(x, t); }); });
}

}  // namespace
}  // namespace comt

using namespace comt;

OPERATION(add_norm) {
  const Matrix x = in.matrix(), product = in.matrix();
  const Modulation modulation = in.modulation();
  const int64_t T_ = x.rows, D = x.columns;
  const Floats gain(in.matrix(), D, "the gain");
  const float epsilon = float(in.number());
  const Gates gates(modulation, {D}, T_, in.threads, false);
  with_types(x.type, product.type, [&](auto stream_tag, auto tag) {
    using X = decltype(stream_tag);
    using T = decltype(tag);
    X* y = in.result<X>();
    T* n = in.result<T>();
    forward<X, T>(gates, x.of<const X>(T_, D, "x"), gates.product<const T>(product), gain, epsilon, D, {y, D}, {n, D},
                  in.result<float>());
  });
}

OPERATION(add_norm_backward) {
  const Matrix dy = in.matrix(), dn = in.matrix(), y = in.matrix(), rstd_of = in.matrix(), given = in.matrix();
  const Modulation modulation = in.modulation();
  const int64_t T_ = y.rows, D = y.columns;
  const Floats gain(in.matrix(), D, "the gain"), rstd(rstd_of, T_, "rstd");
  const Matrix& product = given.columns ? given : y;  // without it: of D columns, in the type of the stream
  const Gates gates(modulation, {D}, T_, in.threads, true, CHUNK, D);
  with_types(y.type, product.type, [&](auto stream_tag, auto tag) {
    using X = decltype(stream_tag);
    using T = decltype(tag);
    X* dx = in.result<X>();
    backward<X, T>(gates, dy.of<const X>(T_, D, "dy"), dn.of<const T>(T_, D, "dn"), y.of<const X>(T_, D, "y"), rstd,
                   gates.product<const T>(product), gain, D, {dx, D}, in.gradients<T>(true));
  });
}
