// Vectors of floats, what they are loaded from and stored to, the exponential and the logistic function.
//
// A vector type of the compiler (GCC and Clang), as wide as the processor has registers for: no order of summing is
// left to the compiler, so the same bits come out of every run.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace comt {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float V __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));
typedef uint16_t H __attribute__((vector_size(2 * W)));

struct bf16 {
  uint16_t bits;
};

INLINE int64_t padded(int64_t count) { return (count + W - 1) / W * W; }

INLINE V splat(float x) { return x - V{}; }

// ---- bf16: the upper half of a float, rounded to nearest, ties to even; a NaN stays a NaN

INLINE float widen(float x) { return x; }

INLINE float widen(bf16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

INLINE V widen(H x) {
#if defined(__AVX512F__)
  return (V)((U)_mm512_cvtepu16_epi32((__m256i)x) << 16);  // one instruction: GCC makes six of the conversion below
#elif defined(__AVX2__)
  return (V)((U)_mm256_cvtepu16_epi32((__m128i)x) << 16);
#else
  return (V)(__builtin_convertvector(x, U) << 16);
#endif
}

INLINE H narrow(V x) {
#if defined(__AVX512BF16__)
  return (H)_mm512_cvtneps_pbh((__m512)x);
#else
  const U bits = (U)x;
  const U rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const U quiet = (bits >> 16) | 0x40;
  return __builtin_convertvector((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded, H);
#endif
}

// ---- loads and stores of W elements, or of the first few where a row ends

struct Whole {};
struct Part {
  int count;
};

INLINE V load(const float* from, Whole = {}) {
  V x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

INLINE V load(const bf16* from, Whole = {}) {
  H x;
  std::memcpy(&x, from, sizeof x);
  return widen(x);
}

template <class T>
INLINE V load(const T* from, Part part) {
  float x[W] = {};
  for (int i = 0; i < part.count; ++i) x[i] = widen(from[i]);
  return load(x);
}

// A store returns what then reads back: `x` itself, or rounded to bf16.
INLINE V store(float* to, V x, Whole = {}) {
  std::memcpy(to, &x, sizeof x);
  return x;
}

INLINE V store(bf16* to, V x, Whole = {}) {
  const H half = narrow(x);
  std::memcpy(to, &half, sizeof half);
  return widen(half);
}

template <class T>
INLINE V store(T* to, V x, Part part) {
  T all[W];
  x = store(all, x);
  for (int i = 0; i < part.count; ++i) to[i] = all[i];
  return x;
}

// body(n, part) for n = 0, W, 2W ..., and for the rest of `width` columns.
template <class F>
INLINE void columns(int64_t width, F&& body) {
  int64_t n = 0;
  for (; n + W <= width; n += W) body(n, Whole{});
  if (n < width) body(n, Part{int(width - n)});
}

// body(std::true_type or std::false_type): a flag that the compiler knows within.
template <class F>
INLINE void with_flag(bool flag, F&& body) {
  flag ? body(std::true_type{}) : body(std::false_type{});
}

// ---- the logistic function

constexpr float LOG2E = 1.44269504088896341f;

// COARSE: for results in bf16, whose rounding error is ten times and more as large.
template <bool COARSE = false>
INLINE V reciprocal(V x) {
#if defined(__AVX512F__)
  const V r = (V)_mm512_rcp14_ps((__m512)x);  // 14 bits; one step of Newton's method makes them 28
  return COARSE ? r : r * (2 - x * r);
#else
  return 1 / x;
#endif
}

INLINE V clamp(V t, float limit) {
#if defined(__AVX512F__)
  // The second operand is returned where either is NaN.
  return (V)_mm512_max_ps((__m512)splat(-limit), _mm512_min_ps((__m512)splat(limit), (__m512)t));
#else
  t = t > limit ? splat(limit) : t;
  return t < -limit ? splat(-limit) : t;
#endif
}

// 2^t = 2^f 2^n, n integer, |f| <= 1/2: 2^f by a polynomial (relative error 8e-8, coarse 8e-5), 2^n by its bits. Beyond
// -126 and 126 it is as there.
template <bool COARSE = false>
INLINE V power_of_two(V t) {
  constexpr float SHIFT = 12582912 + 127;  // 1.5 * 2^23: what is added is rounded to an integer in the lowest bits
  t = clamp(t, 126);
  const V shifted = t + SHIFT;
  const V f = t - (shifted - SHIFT);
  const V power = (V)((I)shifted << 23);
  if (COARSE) return (((f * 5.51716672e-2f + 2.42611122e-1f) * f + 6.93260986e-1f) * f + 9.99928074e-1f) * power;
  V y = f * 1.3276472e-3f + 9.67554148e-3f;
  y = y * f + 5.55071327e-2f;
  y = y * f + 2.40221197e-1f;
  y = y * f + 6.93146967e-1f;
  y = y * f + 1.00000007f;
  return y * power;
}

// 1 / (1 + 2^t), so sigmoid(x) for t = -x log2(e). Absolute error below 2e-7, coarse 1e-4; 2^-126 for t beyond 126.
template <bool COARSE = false>
INLINE V logistic(V t) {
  return reciprocal<COARSE>(power_of_two<COARSE>(t) + 1);
}

INLINE V sigmoid(V x) { return logistic(x * -LOG2E); }

// The same for |t| <= SMALL (|x| <= 3) without a reciprocal: 1/2 plus an odd polynomial, absolute error below 6e-7,
// coarse 5e-5. Logits are that small where the weights of a gate are, which is known before any row is read.
constexpr float SMALL = 3 * LOG2E;

template <bool COARSE = false>
INLINE V logistic_of_small(V t) {
  const V t2 = t * t;
  if (COARSE) {
    V y = t2 * -1.21127845e-7f + 8.54751927e-6f;
    y = y * t2 - 2.85280614e-4f;
    y = y * t2 + 6.80298602e-3f;
    y = y * t2 - 1.73176705e-1f;
    return y * t + 0.5f;
  }
  V y = t2 * 4.10653326e-12f - 4.25445706e-10f;
  y = y * t2 + 2.04870112e-8f;
  y = y * t2 - 6.37476433e-7f;
  y = y * t2 + 1.53994843e-5f;
  y = y * t2 - 3.30877141e-4f;
  y = y * t2 + 6.93438482e-3f;
  y = y * t2 - 1.73285067e-1f;
  return y * t + 0.5f;
}

// ---- sums of two products in bf16

#if defined(__AVX512BF16__)
// Of two vectors, rounded: the first in the lower halves of the lanes, as `_mm512_dpbf16_ps` takes them.
INLINE __m512bh pairs(V first, V second) {
  const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
  const U lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return (__m512bh)_mm512_permutexvar_epi16((__m512i)(lane | (lane + W) << 16), rounded);
}
#endif

// ---- sums over the lanes of many vectors at once

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define COMT_SHUFFLEVECTOR
#endif
#endif

template <int... L>
INLINE V add_neighbours(V a, V b, std::integer_sequence<int, L...>) {
#if defined(COMT_SHUFFLEVECTOR)
  return __builtin_shufflevector(a, b, (2 * L)...) + __builtin_shufflevector(a, b, (2 * L + 1)...);
#else
  return __builtin_shuffle(a, b, I{(2 * L)...}) + __builtin_shuffle(a, b, I{(2 * L + 1)...});
#endif
}

// Lane j of the result is the sum over the lanes of x[j]. Overwrites x.
INLINE V sums(V (&x)[W]) {
  for (int count = W; count > 1; count /= 2)
    for (int i = 0; i < count / 2; ++i)
      x[i] = add_neighbours(x[2 * i], x[2 * i + 1], std::make_integer_sequence<int, W>{});
  return x[0];
}

}  // namespace comt
