// The gates of a block of rows, forward and backward. See gates.h for the formulas.
#include "gates.h"

#include <new>

namespace comt {
namespace {

// Working memory of the calling thread: kept between calls, since asking the system for it costs as much as using it.
float* memory(int64_t floats) {
  struct Free {
    void operator()(float* data) const { ::operator delete(data, std::align_val_t(64)); }
  };
  thread_local std::unique_ptr<float, Free> kept;
  thread_local int64_t size = 0;
  if (size < floats) {
    kept.reset();
    size = 0;
    kept.reset(static_cast<float*>(::operator new(size_t(floats) * sizeof(float), std::align_val_t(64))));
    size = floats;
  }
  return kept.get();
}

int64_t lines(int64_t floats) { return (floats + 15) / 16 * 16; }

constexpr int TOGETHER = 16;  // columns of Wc that are read before they are packed

// block[c] = `count` rows, at most W, of column `column` + c; zeros in the lanes behind them.
template <class T>
INLINE void read(const Matrix& Wc, int64_t row, int count, int column, int columns, float (*block)[comt::W]) {
  const T* from = static_cast<const T*>(Wc.data) + row * Wc.row_stride + column * Wc.column_stride;
  if (Wc.row_stride == 1) {
    for (int c = 0; c < columns; ++c) {
      const T* whole = from + c * Wc.column_stride;
      store(block[c], count == comt::W ? load(whole) : load(whole, Part{count}));
    }
    return;
  }
  if (count < comt::W) std::memset(block, 0, size_t(columns) * sizeof *block);
  for (int lane = 0; lane < count; ++lane)
    for (int c = 0; c < columns; ++c) block[c][lane] = widen(from[lane * Wc.row_stride + c * Wc.column_stride]);
}

// Packs the rows of Wc from `first` + `begin` on and gives the largest |p W| that any p within 0 and 1 can make, of the
// channels that are numbers: one with a NaN is NaN by either logistic function.
template <class T>
float transpose(const Matrix& Wc, int64_t first, int64_t begin, int64_t end, int rank, float* W, int64_t stride) {
  alignas(64) float block[TOGETHER][comt::W];
  V largest{};
  for (int64_t n = begin; n < end; n += comt::W) {
    const int count = int(std::min<int64_t>(comt::W, end - n));
    V above{}, below{};
    for (int r = 0; r < rank; ++r) {
      if (r % TOGETHER == 0) read<T>(Wc, first + n, count, r, std::min(rank - r, TOGETHER), block);
      const V w = -LOG2E * load(block[r % TOGETHER]);
      float* to = W + r * stride + n;
      count == comt::W ? store(to, w) : store(to, w, Part{count});
      above += w > 0 ? w : V{};
      below -= w > 0 ? V{} : w;  // a NaN goes here
    }
    const V larger = above > below ? above : below;
    largest = larger > largest ? larger : largest;
  }
  float limit = 0;
  for (int lane = 0; lane < comt::W; ++lane) limit = std::max(limit, largest[lane]);
  return limit;
}

// ---- a tile's kernels. R is the number of columns of p that are taken together.

struct Tile {
  const float* p;      // of the first row
  int64_t p_stride;
  float* values;       // sc or ec
  int64_t stride;
  int rows;
  int64_t width;       // whole vectors
};

template <bool SMALL_LOGITS, bool COARSE>
INLINE V gate_of(V t) {
  return SMALL_LOGITS ? logistic_of_small<COARSE>(t) : logistic<COARSE>(t);
}

// sc = logistic(p W) for N rows from `row` on: each loaded vector of W serves N rows. R = 0: any rank.
template <int R, int N, bool SMALL_LOGITS, bool COARSE>
INLINE void gate_rows(const Tile& t, const float* W, int64_t stride, int rank, int row) {
#if defined(__AVX512BF16__)
  // Two products an instruction, of p and W rounded to bf16, which of large logits would show. R is even.
  if constexpr (COARSE && SMALL_LOGITS && R > 1) {
    uint32_t p[N][comt::W / 2];
    for (int i = 0; i < N; ++i) store((bf16*)p[i], load(t.p + (row + i) * t.p_stride));
    for (int64_t n = 0; n < t.width; n += comt::W) {
      __m512 x[N] = {};
#pragma GCC unroll 8
      for (int r = 0; r < R / 2; ++r) {
        const __m512bh w = pairs(load(W + 2 * r * stride + n), load(W + (2 * r + 1) * stride + n));
#pragma GCC unroll 8
        for (int i = 0; i < N; ++i) x[i] = _mm512_dpbf16_ps(x[i], (__m512bh)_mm512_set1_epi32(int(p[i][r])), w);
      }
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) store(t.values + (row + i) * t.stride + n, gate_of<true, true>((V)x[i]));
    }
    return;
  }
#endif
  const int R_ = R ? R : rank;
  const float* p[N];
  for (int i = 0; i < N; ++i) p[i] = t.p + (row + i) * t.p_stride;
  for (int64_t n = 0; n < t.width; n += comt::W) {
    V x[N];
    const V first = load(W + n);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) x[i] = p[i][0] * first;
#pragma GCC unroll 16
    for (int r = 1; r < R_; ++r) {
      const V w = load(W + r * stride + n);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) x[i] += p[i][r] * w;
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) store(t.values + (row + i) * t.stride + n, gate_of<SMALL_LOGITS, COARSE>(x[i]));
  }
}

template <int R, int N, bool SMALL_LOGITS, bool COARSE>
void gate(const Tile& t, const float* W, int64_t stride, int rank) {
  int row = 0;
  for (; row + N <= t.rows; row += N) gate_rows<R, N, SMALL_LOGITS, COARSE>(t, W, stride, rank, row);
  for (; row < t.rows; ++row) gate_rows<R, 1, SMALL_LOGITS, COARSE>(t, W, stride, rank, row);
}

template <bool SMALL_LOGITS, bool COARSE>
void gate_of_rank(const Tile& t, const float* W, int64_t stride, int rank) {
  switch (rank) {
    case 1: return gate<1, 4, SMALL_LOGITS, COARSE>(t, W, stride, rank);
    case 2: return gate<2, 4, SMALL_LOGITS, COARSE>(t, W, stride, rank);
    case 4: return gate<4, 4, SMALL_LOGITS, COARSE>(t, W, stride, rank);
    case 8: return gate<8, 4, SMALL_LOGITS, COARSE>(t, W, stride, rank);
    case 16: return gate<16, 2, SMALL_LOGITS, COARSE>(t, W, stride, rank);
    default: return gate<0, 4, SMALL_LOGITS, COARSE>(t, W, stride, rank);
  }
}

// partial[row, r] += ec W, lane by lane, for N rows from `row` on.
template <int R, int N>
INLINE void project_rows(const Tile& t, const float* W, int64_t stride, float* partial, int rank, int row) {
  V sum[N][R];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[i][r] = load(partial + ((row + i) * rank + r) * comt::W);
  for (int64_t n = 0; n < t.width; n += comt::W) {
    V e[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) e[i] = load(t.values + (row + i) * t.stride + n);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const V w = load(W + r * stride + n);
#pragma GCC unroll 8
      for (int i = 0; i < N; ++i) sum[i][r] += e[i] * w;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) store(partial + ((row + i) * rank + r) * comt::W, sum[i][r]);
}

template <int R>
void project(const Tile& t, const float* W, int64_t stride, float* partial, int rank) {
  constexpr int N = 16 / R < 8 ? 16 / R : 8;
  int row = 0;
  for (; row + N <= t.rows; row += N) project_rows<R, N>(t, W, stride, partial, rank, row);
  for (; row < t.rows; ++row) project_rows<R, 1>(t, W, stride, partial, rank, row);
}

// dW[r, n] += ec^T p, for N rows from `row` on and M vectors of columns.
template <int R, int N, int M>
INLINE void outer_vectors(const Tile& t, float* dW, int64_t stride, int row, int64_t n) {
  V e[N][M];
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i)
#pragma GCC unroll 2
    for (int m = 0; m < M; ++m) e[i][m] = load(t.values + (row + i) * t.stride + n + m * comt::W);
  const float* p = t.p + row * t.p_stride;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    float* to = dW + r * stride + n;
    V sum[M];
#pragma GCC unroll 2
    for (int m = 0; m < M; ++m) sum[m] = load(to + m * comt::W);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      const V weight = splat(p[i * t.p_stride + r]);
#pragma GCC unroll 2
      for (int m = 0; m < M; ++m) sum[m] += e[i][m] * weight;
    }
#pragma GCC unroll 2
    for (int m = 0; m < M; ++m) store(to + m * comt::W, sum[m]);
  }
}

template <int R, int N>
INLINE void outer_rows(const Tile& t, float* dW, int64_t stride, int row) {
  int64_t n = 0;
  for (; n + 2 * comt::W <= t.width; n += 2 * comt::W) outer_vectors<R, N, 2>(t, dW, stride, row, n);
  if (n < t.width) outer_vectors<R, N, 1>(t, dW, stride, row, n);
}

template <int R>
void outer(const Tile& t, float* dW, int64_t stride) {
  int row = 0;
  for (; row + 8 <= t.rows; row += 8) outer_rows<R, 8>(t, dW, stride, row);
  for (; row < t.rows; ++row) outer_rows<R, 1>(t, dW, stride, row);
}

template <int R>
void gradient(Tile t, const float* W, float* dW, int64_t stride, float* partial, int rank, int r) {
  t.p += r;
  project<R>(t, W + r * stride, stride, partial + r * comt::W, rank);
  outer<R>(t, dW + r * stride, stride);
}

}  // namespace

std::string& message() {
  thread_local std::string last;
  return last;
}

Gates::Gates(const Modulation& m, std::vector<int64_t> all, int64_t rows, int most_threads, bool backward,
             int64_t tile_columns, int64_t extra)
    : modulation(m), widths(std::move(all)), width(std::accumulate(widths.begin(), widths.end(), int64_t(0))),
      channels(0), sites(int(widths.size())), count(0), rank(m.rank), threads(useful_threads(most_threads, rows, width)),
      rows(rows), stride(0), extra(extra) {
  require(m.gated.count == sites && sites <= MOST_SITES, m.gated.count, " marks of gated sites for ", sites, " widths");
  for (int s = 0; s < sites; ++s) count += m.gated.data[s] != 0;
  channel = count && m.Wc.data, scalar = count && m.ws.data;
  for (int s = 0, next = 0; s < sites; ++s) {
    ordinal[s] = m.gated.data[s] ? next++ : -1;
    offset[s] = stride;
    if (ordinal[s] >= 0) channels += widths[s];
    if (ordinal[s] >= 0 && channel) stride += padded(widths[s]);
  }
  if (!count) rank = 0;
  require(rank > 0 || !(channel || scalar), "gates of rank ", rank);
  if (channel) m.Wc.check(channels, rank, "Wc");
  if (scalar) m.ws.check(count, rank, "ws");
  columns = count * rank;
  tile_stride = padded(tile_columns);
  const int64_t packed = lines(rank * stride) + lines(columns);
  const int64_t block = 2 * padded(ROWS * columns) + (2 + comt::W) * count * ROWS + 2 * (ROWS * tile_stride + comt::W) +
                        2 * ROWS * rank * comt::W;
  thread_floats = lines((backward ? sums_floats() : 0) + block + 16);
  W = memory(packed + lines(threads * count) + threads * thread_floats);
  w = W + lines(rank * stride);
  limits = w + lines(columns);
  thread_memory = limits + lines(threads * count);
  std::fill_n(limits, threads * count, 0.0f);
  with_sums = backward;
}

void Gates::pack(Thread thread) const {
  if (with_sums) std::fill_n(sums(thread.index), sums_floats(), 0.0f);
  int64_t from = 0;  // the row of Wc where the site begins
  for (int s = 0; s < sites && channel; ++s) {
    if (!is_gated(s)) continue;
    const int64_t N = widths[s], begin = thread.begin(N), end = thread.end(N);
    with_type(modulation.Wc.type, [&](auto tag) {
      limits[thread.index * count + ordinal[s]] =
          transpose<decltype(tag)>(modulation.Wc, from, begin, end, rank, W + offset[s], stride);
    });
    if (thread.index == 0)
      for (int r = 0; r < rank; ++r) std::fill_n(W + r * stride + offset[s] + N, padded(N) - N, 0.0f);
    from += N;
  }
  if (scalar && thread.index == 0) {
    const Floats ws(modulation.ws, count, rank, rank, "ws");
    for (int i = 0; i < columns; ++i) w[i] = -LOG2E * ws[i];
  }
  if (count) thread.wait();
}

bool Gates::is_small(int site) const {
  for (int t = 0; t < threads; ++t)
    if (!(limits[t * count + ordinal[site]] <= SMALL)) return false;
  return true;
}

void Gates::reduce(Thread thread, float* dWc, float* dws, float* dextra) const {
  thread.wait();
  int64_t to = 0;
  for (int s = 0; s < sites && channel; ++s) {
    if (!is_gated(s)) continue;
    for (int64_t n = thread.begin(widths[s]); n < thread.end(widths[s]); ++n)
      for (int r = 0; r < rank; ++r) {
        float total = 0;
        for (int t = 0; t < thread.count; ++t) total += sums(t)[r * stride + offset[s] + n];
        dWc[(to + n) * rank + r] = total;
      }
    to += widths[s];
  }
  const auto add = [&](auto part, int64_t size, float* result) {
    for (int64_t i = thread.begin(size); i < thread.end(size); ++i) {
      result[i] = 0;
      for (int t = 0; t < thread.count; ++t) result[i] += part(t)[i];
    }
  };
  if (scalar) add([&](int t) { return scalar_sums(t); }, columns, dws);
  if (extra) add([&](int t) { return extra_sums(t); }, extra, dextra);
}

Block::Block(const Gates& g, Thread thread) : gates(g) {
  dW = g.sums(thread.index);
  dw = g.scalar_sums(thread.index);
  extra = g.extra_sums(thread.index);
  float* next = g.scratch(thread.index);
  const auto take = [&](int64_t floats) {
    float* taken = next;
    next += floats;
    return taken;
  };
  tile[0] = take(ROWS * g.tile_stride);
  tile[1] = take(ROWS * g.tile_stride + comt::W);
  partial = take(2 * ROWS * g.rank * comt::W);
  p = take(padded(ROWS * g.columns));
  dp = take(padded(ROWS * g.columns));
  ss = take(g.count * ROWS);
  k = take(g.count * ROWS);
  h = take(g.count * ROWS * comt::W);
  std::fill_n(ss, g.count * ROWS, 0.0f);
}

template <class T>
void Block::open(Rows<const T> u, int64_t first_row, int row_count) {
  rows = row_count;
  coarse = std::is_same_v<T, bf16>;
  const int R = gates.rank, SR = gates.columns;
  if (SR == 0) return;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < SR; ++j) p[i * SR + j] = widen(u[first_row + i][j]);
  for (int64_t j = 0; j < padded(rows * SR); j += W) store(p + j, sigmoid(load(p + j)));
  const float c = gates.modulation.scale;
  std::fill_n(h, gates.count * ROWS * W, 0.0f);
  if (!gates.channel) std::fill_n(dp, rows * SR, 0.0f);
  if (!gates.scalar) {
    std::fill_n(k, gates.count * ROWS, gates.channel ? c : 1.0f);
    return;
  }
  for (int s = 0; s < gates.count; ++s)
    for (int i = 0; i < rows; ++i) {
      float logit = 0;
      for (int r = 0; r < R; ++r) logit += p[i * SR + s * R + r] * gates.w[s * R + r];
      ss[s * ROWS + i] = logit;
    }
  for (int64_t j = 0; j < gates.count * ROWS; j += W) {
    const V gate = logistic(load(ss + j));
    store(ss + j, gate);
    store(k + j, (gates.channel ? c * c : c) * gate);
  }
}

void Block::channel_gate(int site, int64_t n, int64_t width, int which) const {
  if (!gates.channel) return;
  const int R = gates.rank;
  const Tile t{p + gates.ordinal[site] * R, gates.columns, tile[which], gates.tile_stride, rows, padded(width)};
  const float* from = gates.W + gates.offset[site] + n;
  with_flag(gates.is_small(site), [&](auto small) {
    with_flag(coarse, [&](auto coarse) {
      gate_of_rank<decltype(small)::value, decltype(coarse)::value>(t, from, gates.stride, R);
    });
  });
}

void Block::begin_site(int part) const {
  if (gates.channel) std::fill_n(partial + part * ROWS * gates.rank * W, ROWS * gates.rank * W, 0.0f);
}

void Block::channel_gradient(int site, int64_t n, int64_t width, int which, int part) const {
  if (!gates.channel) return;
  const int R = gates.rank;
  const Tile t{p + gates.ordinal[site] * R, gates.columns, tile[which], gates.tile_stride, rows, padded(width)};
  const int64_t at = gates.offset[site] + n;
  float* sums = partial + part * ROWS * R * W;
  int r = 0;
  for (; r + 8 <= R; r += 8) gradient<8>(t, gates.W + at, dW + at, gates.stride, sums, R, r);
  for (; r + 4 <= R; r += 4) gradient<4>(t, gates.W + at, dW + at, gates.stride, sums, R, r);
  for (; r + 2 <= R; r += 2) gradient<2>(t, gates.W + at, dW + at, gates.stride, sums, R, r);
  for (; r < R; ++r) gradient<1>(t, gates.W + at, dW + at, gates.stride, sums, R, r);
}

void Block::end_site(int site, int part) const {
  if (!gates.channel) return;
  const int R = gates.rank, first = gates.ordinal[site] * R;
  const float* from = partial + part * ROWS * R * W;
  for (int j = 0; j < rows * R; j += W) {
    V x[W];
    float lanes[W];
    for (int i = 0; i < W; ++i) x[i] = load(from + (j + i) * W);
    store(lanes, sums(x));
    for (int i = 0; i < W && j + i < rows * R; ++i) dp[(j + i) / R * gates.columns + first + (j + i) % R] = lanes[i];
  }
}

template <class T>
void Block::close(Rows<T> du, int64_t first_row, int64_t rest) const {
  const int R = gates.rank, SR = gates.columns;
  for (int s = 0; s < gates.count && gates.scalar; ++s) {
    float es[ROWS];
    lane_sums(h + s * ROWS * W, es);
    for (int i = 0; i < rows; ++i) {
      es[i] *= 1 - ss[s * ROWS + i];
      for (int j = s * R; j < s * R + R; ++j) {
        dp[i * SR + j] += es[i] * gates.w[j];
        dw[j] += es[i] * p[i * SR + j];
      }
    }
  }
  for (int64_t j = 0; j < padded(rows * SR); j += W) {
    const V q = load(p + j);
    store(dp + j, load(dp + j) * (q * (1 - q)) * (-1 / LOG2E));  // W and w were packed times -log2(e)
  }
  for (int i = 0; i < rows; ++i) {
    T* to = du[first_row + i];
    columns(SR, [&](int64_t j, auto part) { store(to + j, load(dp + i * SR + j, part), part); });
    std::memset(to + SR, 0, size_t(rest) * sizeof(T));
  }
}

template void Block::open(Rows<const float>, int64_t, int);
template void Block::open(Rows<const bf16>, int64_t, int);
template void Block::close(Rows<float>, int64_t, int64_t) const;
template void Block::close(Rows<bf16>, int64_t, int64_t) const;

}  // namespace comt

EXPORT const char* comt_message(const void*) { return comt::message().c_str(); }
