// The cross entropy of rows of logits, and its gradient in their place. V words, e the label smoothing:
//     x = z + b    p = softmax(x)    loss = log sum_v exp(x_v) - (1 - e) x_target - e mean_v(x_v)
//     dz = p - e / V - (1 - e) onehot(target)    db = the sum of dz over rows
// Three walks along a row, which the nearest caches hold: its maximum, the exponentials and their sum, the gradient.
// A row without a target (its number is negative) is not looked at: its loss and its gradient are 0.
#include <limits>

#include "gates.h"

namespace comt {

namespace {

// Of `words` logits in each row. bias and dbias, [V], may be absent.
struct CrossEntropy {
  const float* bias;
  const int64_t* targets;
  float *losses, *dbias;
  int64_t rows, words;
  float smoothing;
  bool gradient;  // whether z becomes dz
};

constexpr float INFINITE = std::numeric_limits<float>::infinity();

template <class T>
INLINE V load_or(const T* from, float, Whole) {
  return load(from);
}

template <class T>
INLINE V load_or(const T* from, float otherwise, Part part) {
  float x[W];
  for (int i = 0; i < W; ++i) x[i] = i < part.count ? widen(from[i]) : otherwise;
  return load(x);
}

INLINE float sum_of_lanes(V x) {
  float sum = 0;
  for (int i = 0; i < W; ++i) sum += x[i];
  return sum;
}

template <class T>
struct Row {
  const CrossEntropy& a;
  T* z;
  float* x;  // [V]: a thread's own: x, then its exponentials

  // x, its maximum, and its sum where that is asked for.
  template <bool WITH_SUM>
  float read(float& sum) const {
    V most = splat(-INFINITE), total{};
    columns(a.words, [&](int64_t v, auto part) {
      V value = load_or(z + v, -INFINITE, part);
      if (a.bias) value += load_or(a.bias + v, 0, part);
      store(x + v, value, part);
      most = value > most ? value : most;
      if (WITH_SUM) total += load(x + v, part);
    });
    sum = sum_of_lanes(total);
    float result = -INFINITE;
    for (int i = 0; i < W; ++i) result = std::max(result, most[i]);
    return result;
  }

  // exp(x - most) in the place of x, and their sum.
  float exponentials(float most) const {
    V total{};
    columns(a.words, [&](int64_t v, auto part) {
      const V e = power_of_two((load_or(x + v, -INFINITE, part) - most) * LOG2E);
      store(x + v, e, part);
      total += load(x + v, part);
    });
    return sum_of_lanes(total);
  }

  float loss(int64_t target, float* dbias) const {
    float sum_x;
    const float e = a.smoothing, most = e > 0 ? read<true>(sum_x) : read<false>(sum_x);
    const float mean = sum_x / float(a.words), x_target = x[target], total = exponentials(most);
    const float result = std::log(total) + (most - (e > 0 ? x_target + e * (mean - x_target) : x_target));
    if (!a.gradient) return result;
    const float scale = 1 / total, spread = e / float(a.words);
    x[target] -= total * (1 - e);
    columns(a.words, [&](int64_t v, auto part) {
      const V dz = load(x + v, part) * scale - spread;
      store(z + v, dz, part);
      if (dbias) store(dbias + v, load(dbias + v, part) + dz, part);
    });
    return result;
  }
};

template <class T>
void losses_of(const CrossEntropy& a, Rows<T> z, Thread thread, float* x, float* dbias) {
  for (int64_t t = thread.begin(a.rows); t < thread.end(a.rows); ++t) {
    a.losses[t] = a.targets[t] < 0 ? 0 : Row<T>{a, z[t], x}.loss(a.targets[t], dbias);
    if (a.targets[t] < 0 && a.gradient) std::fill_n(z[t], a.words, T{});
  }
}

}  // namespace
}  // namespace comt

using namespace comt;

OPERATION(cross_entropy) {
  const Matrix z = in.matrix(), targets = in.matrix(), bias = in.matrix(), dbias = in.matrix();
  const float smoothing = float(in.number());
  const bool gradient = in.integer();
  const int64_t rows = z.rows, words = z.columns;
  const auto of_words = [&](const Matrix& each) {
    return each.data ? each.of<float>(1, words, "a bias").data : nullptr;
  };
  const int64_t* of_targets = targets.of<const int64_t>(1, rows, "the targets").data;
  const CrossEntropy a{of_words(bias), of_targets, in.result<float>(), gradient ? of_words(dbias) : nullptr,
                       rows, words, smoothing, gradient};
  // One row is enough for a thread, unless all of them are less work than waking it.
  const int threads = rows * words < 16384 ? 1 : int(std::max<int64_t>(1, std::min<int64_t>(in.threads, rows)));
  const int64_t floats = padded(words), each = a.dbias ? 2 * floats : floats;
  const std::unique_ptr<float[]> memory(new float[threads * each]);
  with_type(z.type, [&](auto tag) {
    const auto logits = z.of<decltype(tag)>(rows, words, "z");
    parallel(threads, [&](Thread thread) {
      float* x = memory.get() + thread.index * each;
      if (!a.dbias) return losses_of(a, logits, thread, x, nullptr);
      std::fill_n(x + floats, floats, 0.f);
      losses_of(a, logits, thread, x, x + floats);
      thread.wait();
      for (int64_t v = thread.begin(words); v < thread.end(words); ++v)
        for (int i = 0; i < thread.count; ++i) a.dbias[v] += memory[i * each + floats + v];
    });
  });
}
