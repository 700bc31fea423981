// The forward pass: see modulated_norm.h.
#include "modulated_norm.h"

namespace comt {
namespace {

// Rows whose mean the sums are taken from: one alone may be an outlier.
constexpr int64_t SAMPLES = 16;

// Sums over the rows of d = z - shift and of d^2, shift being near the mean: they lose nothing where |mean| >> std.
template <class T>
void moments(const Norm& a, Rows<const T> q, const Memory& memory, Thread thread, const float* shift) {
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
          const T* from = q[first + i] + n;
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

// What the forward pass is given besides, and writes.
template <class T>
struct Outputs {
  const float* bias;
  Rows<const T> skip;
  bool relu;
  float epsilon;
  T* y;
  float *mean, *var;
};

template <class T>
void forward(const Norm& a, Rows<const T> q, const Outputs<T>& out, int threads) {
  const Memory memory(a, threads, false);
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
    for (int64_t k = 0; k < samples; ++k) sum += widen(q[k * a.rows / samples][n]) * sampled[k];
    shift[n] = float(sum / double(samples));
  }
  parallel(threads, [&](Thread thread) {
    moments(a, q, memory, thread, shift);
    thread.wait();
    for (int64_t n = thread.begin(a.channels); n < thread.end(a.channels); ++n) {
      float sum = 0, square = 0;
      for (int t = 0; t < thread.count; ++t) sum += memory.sums(t)[n], square += memory.sums(t, 1)[n];
      const float d = sum / float(a.rows);
      out.mean[n] = mean[n] = shift[n] + d;
      out.var[n] = std::max(square / float(a.rows) - d * d, 0.f);
      const float rstd = 1 / std::sqrt(out.var[n] + out.epsilon);
      factor[n] = a.A || !a.weight ? rstd : rstd * a.weight[n];  // the pixel gate reads n, without the weight
      bias[n] = out.bias[n];
    }
    thread.wait();
    with_flag(a.A, [&](auto pixel) { with_flag(out.skip.data, [&](auto skipped) { with_flag(out.relu, [&](auto relu) {
      rows_of(a, thread, ROWS, [&](int64_t first, int rows) {
        float* tile = memory.tile(thread.index);
        float f[ROWS], *s = memory.hidden(thread.index);
        if (pixel) {
          normalised(a, q, mean, factor, gates ? gates + first : nullptr, first, rows, tile);
          pixel_gate(a, tile, rows, s, f);
        }
        for (int i = 0; i < rows; ++i) {
          const T* from = q[first + i];
          const T* skip = skipped ? out.skip[first + i] : nullptr;
          T* to = out.y + (first + i) * a.channels;
          const float g = gates ? gates[first + i] : 1;
          columns(a.channels, [&](int64_t n, auto part) {
            V m;
            if (pixel) {
              m = load(tile + i * a.stride + n) * f[i];
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

}  // namespace
}  // namespace comt

using namespace comt;

OPERATION(modulated_norm) {
  const auto given = in.read<Norm::Given>();
  const Matrix bias_of = in.matrix(), skip = in.matrix();
  const int64_t C = bias_of.columns;
  const Floats bias(bias_of, C, "bias");
  const Norm norm(given, C);
  const bool relu = in.integer();
  const float epsilon = float(in.number());
  with_type(norm.product.type, [&](auto tag) {
    using T = decltype(tag);
    const auto q = norm.product.of<const T>(norm.rows, norm.product.columns, "the product");
    const auto skips = skip.columns ? skip.of<const T>(norm.rows, C, "skip") : Rows<const T>{};
    T* y = in.result<T>();
    float *mean = in.result<float>(), *var = in.result<float>();
    forward<T>(norm, q, {bias, skips, relu, epsilon, y, mean, var}, useful_threads(in.threads, norm.rows, C));
  });
}
