// The batch norm behind a convolution with CoMT's gates in it, forward and backward, on channels-last rows (training).
//     g = sigmoid(sigmoid(u) . w)     z = g q     mean, var over the P rows     n = (z - mean) rstd
//     s = sigmoid(n A^T)     f = sigmoid(s . b)     y = act(f weight n + bias + skip)
// and with dm = dy where act let it through, dn = f weight dm + ds A (the gate reads n too):
//     dlogit = f (1-f) rowsum(dm weight n)     ds = dlogit b s (1-s)     db = sum dlogit s     dA = ds^T n
//     dweight = sum dm f n     dbias = sum dm     dskip = dm     dz = rstd (dn - mean(dn) - n mean(dn n))
//     sum(dn) = weight sum(f dm) + sum(ds) A     sum(dn n) = weight dweight + the sum over A's rows of A dA
//     dq = g dz     dlogit = g (1-g) rowsum(q dz)     dw = sum dlogit p     du = dlogit w p (1-p), p = sigmoid(u)
// so each direction takes two passes over the rows: one to sum over them, one to write. Gates are computed anew.
#pragma once

#include "gates.h"

namespace comt {

// What both directions begin with; absent are what has no data. The window gate reads the product's columns behind the
// C. A's rows are padded by zeros to whole vectors.
struct Norm {
  struct Given {
    Matrix product, window, A, b, weight;
  };

  Norm(const Given& given, int64_t channels)
      : product(given.product),
        rows(product.rows),
        channels(channels),
        window_width(given.window.columns),
        pixel_width(given.b.columns),
        used(channels + window_width),
        stride(padded(channels)),
        window(given.window, window_width, "window"),
        A(given.A, pixel_width, channels, stride, "A"),
        b(given.b, pixel_width, "b"),
        weight(given.weight, channels, "weight") {
    require(!A == !b, "a pixel gate has both matrices, A and b");
    require(rows > 0 && product.columns >= used, "a product of the shape (", rows, ", ", product.columns, ") for ", used,
            " columns");
  }

  const Matrix product;
  const int64_t rows, channels, window_width, pixel_width;
  const int64_t used, stride;  // columns of the product that are read; floats of a padded row
  const Floats window, A, b, weight;
};

constexpr int SUMMED = 4 * ROWS;  // rows whose sums are taken in registers before they are added to the thread's
constexpr int GROUP = 4;          // vectors of columns that are summed together

// The memory of a call: what every row or column needs between the passes, then sums and tiles of each thread.
struct Memory {
  Memory(const Norm& a, int threads, bool backward)
      : stride(a.stride),
        sums_of_columns(backward ? (a.A ? 3 + a.pixel_width : 2) : 2),
        scalars(backward ? padded(2 * a.pixel_width + a.window_width) : 0),
        constants_of_columns(backward ? 4 + a.pixel_width : 4),
        per_row((a.window ? 1 : 0) + (backward && a.A ? 1 + a.pixel_width : 0)),
        rows(padded((a.rows + ROWS - 1) / ROWS * ROWS)),
        tile_floats(a.A ? ROWS * stride : 0),
        thread_floats(sums_of_columns * stride + scalars + tile_floats +
                      ROWS * std::max(a.window_width, a.pixel_width)),
        all(new float[constants_of_columns * stride + per_row * rows + threads * thread_floats]) {}

  const int64_t stride;
  const int64_t sums_of_columns, scalars, constants_of_columns, per_row, rows, tile_floats, thread_floats;
  std::unique_ptr<float[]> all;

  float* constants(int64_t which) const { return all.get() + which * stride; }
  float* of_rows(int64_t which) const { return all.get() + constants_of_columns * stride + which * rows; }
  float* sums(int thread, int64_t which = 0) const {
    return of_rows(per_row) + thread * thread_floats + which * stride;
  }
  float* scalar_sums(int thread) const { return sums(thread, sums_of_columns); }
  float* tile(int thread) const { return scalar_sums(thread) + scalars; }             // n: [ROWS, C]
  float* hidden(int thread) const { return tile(thread) + tile_floats; }              // a gate's: [h or r, ROWS]
};

// body(first_row, row_count) for the blocks of `size` rows that are this thread's: whole blocks of ROWS.
template <class F>
INLINE void rows_of(const Norm& a, Thread thread, int size, F&& body) {
  const int64_t blocks = (a.rows + ROWS - 1) / ROWS;
  const int64_t end = std::min<int64_t>(thread.end(blocks) * ROWS, a.rows);
  for (int64_t row = thread.begin(blocks) * ROWS; row < end; row += size)
    body(row, int(std::min<int64_t>(size, end - row)));
}

// body(n, part, count) for groups of `count` vectors of columns, known to the compiler.
template <class F>
INLINE void groups_of(int64_t width, F&& body) {
  int64_t n = 0;
  for (; n + GROUP * W <= width; n += GROUP * W) body(n, Whole{}, std::integral_constant<int, GROUP>{});
  for (; n + W <= width; n += W) body(n, Whole{}, std::integral_constant<int, 1>{});
  if (n < width) body(n, Part{int(width - n)}, std::integral_constant<int, 1>{});
}

INLINE V rectified(V x) { return x < 0 ? V{} : x; }           // a NaN stays one
INLINE V let_through(V dy, V y) { return y <= 0 ? V{} : dy; }

// ---- the window gate of a block of at most ROWS rows; p: [h, ROWS], wanted where it is not null

template <class T>
void window_gate(const Norm& a, int64_t first, int rows, float* gate, float* p) {
  float logits[ROWS] = {};
  for (int64_t k = 0; k < a.window_width; ++k) {
    float u[ROWS] = {};
    const T* from = static_cast<const T*>(a.product.data) + first * a.product.row_stride + a.channels + k;
    for (int i = 0; i < rows; ++i) u[i] = widen(from[i * a.product.row_stride]);
    for (int i = 0; i < ROWS; i += W) {
      const V of_u = sigmoid(load(u + i));
      if (p) store(p + k * ROWS + i, of_u);
      store(logits + i, load(logits + i) + of_u * a.window[k]);
    }
  }
  for (int i = 0; i < ROWS; i += W) store(gate + i, sigmoid(load(logits + i)));
}

inline void window_gate(const Norm& a, int64_t first, int rows, float* gate, float* p = nullptr) {
  with_type(a.product.type, [&](auto tag) { window_gate<decltype(tag)>(a, first, rows, gate, p); });
}

// ---- the pixel gate of a block: tile = n, then s: [r, ROWS] and f: [ROWS]

template <class T>
void normalised(const Norm& a, Rows<const T> q, const float* mean, const float* rstd, const float* gate, int64_t first,
                int rows, float* tile) {
  for (int i = 0; i < rows; ++i) {
    const T* from = q[first + i];
    const float g = gate ? gate[i] : 1;
    columns(a.channels, [&](int64_t n, auto part) {
      // Zeros behind the last column: the mean and rstd there are zeros too.
      store(tile + i * a.stride + n, (load(from + n, part) * g - load(mean + n)) * load(rstd + n));
    });
  }
}

inline void pixel_gate(const Norm& a, const float* tile, int rows, float* s, float* f) {
  float logits[ROWS] = {};
  for (int64_t k = 0; k < a.pixel_width; ++k) {
    float dots[ROWS * W] = {}, dot[ROWS];
    for (int i = 0; i < rows; ++i) {
      V sum{};
      for (int64_t n = 0; n < a.stride; n += W)
        sum += load(tile + i * a.stride + n) * load(a.A + (k * a.stride + n));
      store(dots + i * W, sum);
    }
    lane_sums(dots, dot);
    for (int i = 0; i < ROWS; i += W) {
      const V of_dot = sigmoid(load(dot + i));
      store(s + k * ROWS + i, of_dot);
      store(logits + i, load(logits + i) + of_dot * a.b[k]);
    }
  }
  for (int i = 0; i < ROWS; i += W) store(f + i, sigmoid(load(logits + i)));
}

}  // namespace comt
