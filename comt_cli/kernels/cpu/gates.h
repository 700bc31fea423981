// What operations on gated sites share: the gates of a block of rows, forward and backward, and the division among threads.
//
// T rows, N channels of a site, R bottleneck columns, S gated sites, c = scale (1 CoMT, 2 Transponder).
//     p = sigmoid(u)   sc = sigmoid(p Wc^T)  [T, N]   ss = sigmoid(p ws^T)  [T, 1]   zhat = z * c sc * c ss
//     G = dL/dzhat     h = G zhat     dz = G * c sc * c ss     ec = h (1 - sc)     es = rowsum(h) (1 - ss)
//     dWc = ec^T p     dws = es^T p     du = (ec Wc + es ws) p (1 - p)
// A block of ROWS rows goes through an operation together. sc and ec exist for a chunk of its columns at a time, in a
// tile that stays in the nearest cache; Wc lies transposed, [R, N], so that a vector holds neighbouring channels.
#pragma once

#include <vector>

#include "calls.h"

// What GCC makes of `omp parallel` and `omp barrier`, called by name: so it runs on the threads that PyTorch has
// already, whatever compiler this is.
extern "C" {
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
void GOMP_barrier(void);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
}

namespace comt {

constexpr int ROWS = 16;      // rows in a block
constexpr int CHUNK = 256;    // columns in a tile, at most (but a whole head)
constexpr int MOST_SITES = 64;

// The sums over the lanes of ROWS vectors.
INLINE void lane_sums(const float* vectors, float* results) {
  for (int i = 0; i < ROWS; i += W) {
    V x[W];
    for (int j = 0; j < W; ++j) x[j] = load(vectors + (i + j) * W);
    store(results + i, sums(x));
  }
}

// ---- threads

struct Thread {
  int index, count;
  void wait() const {  // until all threads have come here
    if (count > 1) GOMP_barrier();
  }
  int64_t begin(int64_t n) const { return n * index / count; }
  int64_t end(int64_t n) const { return n * (index + 1) / count; }
};

template <class F>
void parallel(int threads, F&& body) {
  if (threads == 1) return body(Thread{0, 1});
  using Body = std::remove_reference_t<F>;
  auto run = [](void* data) { (*static_cast<Body*>(data))(Thread{omp_get_thread_num(), omp_get_num_threads()}); };
  GOMP_parallel(run, &body, unsigned(threads), 0);
}

// No more threads than blocks, and one where there is less to do than it takes to wake another.
INLINE int useful_threads(int threads, int64_t rows, int64_t width) {
  const int64_t blocks = (rows + ROWS - 1) / ROWS;
  return rows * width < 16384 ? 1 : int(std::max<int64_t>(1, std::min<int64_t>(threads, blocks)));
}

// ---- gates

// One call's gates. Memory: packed Wc and ws once, then for each thread its sums and its block.
struct Gates {
  Gates(const Modulation& modulation, std::vector<int64_t> widths, int64_t rows, int most_threads, bool backward,
        int64_t tile_columns = CHUNK, int64_t extra = 0);

  const Modulation& modulation;
  const std::vector<int64_t> widths;  // N of every site
  int64_t width, channels;            // of all sites, M, and of the gated ones
  int sites, count;                   // all sites, and the gated ones
  bool channel, scalar;
  int rank, columns;          // R, and the columns of u: S R
  int threads;
  int64_t rows;
  int ordinal[MOST_SITES];    // of a site among the gated ones, -1 where it is not gated
  int64_t offset[MOST_SITES]; // where the packed columns of a gated site begin
  int64_t stride;             // packed columns of all gated sites, each site padded to whole vectors
  int64_t tile_stride;
  int64_t extra;              // floats that an operation sums over the threads besides
  bool with_sums;             // whether anything is summed: in a backward pass

  float* limits;  // [threads, S]: a bound of |log2(e) logit|, for the rows of Wc that the thread packed
  float* W;  // [R, stride]: -log2(e) Wc^T, zeros in the padding
  float* w;  // [S R]: -log2(e) ws
  float* thread_memory;
  int64_t thread_floats;

  bool is_gated(int site) const { return ordinal[site] >= 0; }

  // A product: it has at least the columns of the sites and of what their gates read.
  template <class T>
  Rows<T> product(const Matrix& given) const {
    require(given.columns >= width + columns, "the product has ", given.columns, " columns, fewer than the ",
            width + columns, " of its sites and gates");
    return given.of<T>(rows, given.columns, "the product");
  }
  int64_t blocks() const { return (rows + ROWS - 1) / ROWS; }

  void pack(Thread thread) const;
  bool is_small(int site) const;  // whether all logits of a site are within SMALL, whatever p is

  // A thread's memory.
  float* sums(int thread) const { return thread_memory + thread * thread_floats; }  // dWc^T: [R, stride]
  float* scalar_sums(int thread) const { return sums(thread) + rank * stride; }     // dws: [S R]
  float* extra_sums(int thread) const { return scalar_sums(thread) + padded(columns); }
  float* scratch(int thread) const { return sums(thread) + (with_sums ? sums_floats() : 0); }

  // Sums of all threads, in their order. Wc's rows in the order of the sites.
  void reduce(Thread thread, float* dWc, float* dws, float* dextra) const;

 private:
  int64_t sums_floats() const { return rank * stride + padded(columns) + padded(extra); }
};

// The gates of a block of rows: open() reads u, channel_gate() fills a tile, close() writes du.
struct Block {
  Block(const Gates& gates, Thread thread);

  const Gates& gates;
  int rows = 0;  // at most ROWS
  bool coarse = false;  // whether u is bf16, and so what the gates are multiplied with
  float* p;      // [rows, S R]
  float* dp;     // [rows, S R]
  float* ss;     // [S, ROWS]
  float* k;      // [S, ROWS]: c c ss, c or c ss: all of the gate but sc
  float* h;      // [S, ROWS] vectors: the sums over whose lanes are rowsum(h)
  float* tile[2];
  float* partial;  // [ROWS, R] vectors, the sums over whose lanes become dp
  float* dW;       // [R, stride]
  float* dw;       // [S R]
  float* extra;    // an operation's own sums

  template <class T>
  void open(Rows<const T> u, int64_t first_row, int row_count);

  INLINE float* tile_row(int which, int row) const { return tile[which] + row * gates.tile_stride; }
  INLINE float factor(int site, int row) const { return k[gates.ordinal[site] * ROWS + row]; }
  INLINE void add_to_row_sum(int site, int row, V sum) const {
    float* to = h + (gates.ordinal[site] * ROWS + row) * comt::W;
    store(to, load(to) + sum);
  }

  // tile = sc of columns n .. n + width of the site; of nothing if there is no channel gate.
  void channel_gate(int site, int64_t n, int64_t width, int which = 0) const;
  // tile = ec: adds ec^T p to dWc and ec Wc to the partial sums of dp.
  void channel_gradient(int site, int64_t n, int64_t width, int which = 0, int part = 0) const;
  void begin_site(int part = 0) const;             // before a site's channel_gradient calls
  void end_site(int site, int part = 0) const;     // after them: its dp

  // du = (ec Wc + es ws) p (1 - p), and zeros in the `rest` columns behind it.
  template <class T>
  void close(Rows<T> du, int64_t first_row, int64_t rest) const;
};

// ---- what every operation begins with

// body(first_row, row_count) for the blocks of this thread.
template <class F>
INLINE void blocks_of(const Gates& gates, Thread thread, F&& body) {
  for (int64_t b = thread.begin(gates.blocks()); b < thread.end(gates.blocks()); ++b)
    body(b * ROWS, int(std::min<int64_t>(ROWS, gates.rows - b * ROWS)));
}

// body(block, first_row) for all blocks of rows, on all threads, with the gates of these u.
template <class T, class F>
void forward_of(const Gates& gates, Rows<const T> u, F&& body) {
  parallel(gates.threads, [&](Thread thread) {
    gates.pack(thread);
    Block block(gates, thread);
    blocks_of(gates, thread, [&](int64_t first, int rows) {
      block.open(u, first, rows);
      body(block, first);
    });
  });
}

// The same in a backward pass: body leaves what du, dWc and dws are computed from, and sums in `extra_sums`.
template <class T, class F>
void backward_of(const Gates& gates, Rows<const T> u, const Gradients<T>& to, F&& body) {
  parallel(gates.threads, [&](Thread thread) {
    gates.pack(thread);
    Block block(gates, thread);
    blocks_of(gates, thread, [&](int64_t first, int rows) {
      block.open(u, first, rows);
      body(block, first);
      if (to.dproduct.data)
        block.close(to.dproduct.from(gates.width), first, to.columns - gates.width - gates.columns);
    });
    gates.reduce(thread, to.dWc, to.dws, to.extra);
  });
}

// One row's gate in a chunk of a site's columns: k, times sc where there is a channel gate.
template <bool CHANNEL>
struct Gate {
  float* sc;
  float k;

  INLINE V operator()(int64_t n) const {
    V gate = splat(k);
    if (CHANNEL) gate *= load(sc + n);
    return gate;
  }
  // ec, h (1 - sc), in the place of sc.
  template <class P = Whole>
  INLINE void keep(int64_t n, V h, P part = {}) const {
    if (CHANNEL) store(sc + n, h - h * load(sc + n, part), part);
  }
};

// body(start, width, row, gate ...) for the chunks of the N columns of a site, or of two together, and the rows of a
// block; in a backward pass it leaves ec in the place of sc. A chunk is a tile's, or all of a row if there is no tile to
// fill. An ungated site beside one with a channel gate has a tile of ones, so that one loop serves both.
template <class F, class... Sites>
INLINE void chunks_of_sites(const Block& block, int64_t chunk, F&& body, Sites... s) {
  constexpr int COUNT = sizeof...(Sites);
  const int sites[COUNT] = {s...};
  const Gates& gates = block.gates;
  const auto each_gated = [&](bool wanted, auto&& of_site) {
    for (int k = 0; wanted && k < COUNT; ++k)
      if (gates.is_gated(sites[k])) of_site(sites[k], k);
  };
  bool any = false;
  each_gated(gates.channel, [&](int, int) { any = true; });
  each_gated(gates.with_sums, [&](int, int k) { block.begin_site(k); });
  with_flag(any, [&](auto channel) {
    const auto gate = [&](int s, int i) {
      const int k = s - sites[0];
      return Gate<decltype(channel)::value>{block.tile_row(k, i), gates.is_gated(s) ? block.factor(s, i) : 1};
    };
    const int64_t N = gates.widths[sites[0]], step = channel ? chunk : N;
    for (int64_t n = 0; n < N; n += step) {
      const int64_t width = std::min(step, N - n);
      for (int k = 0; channel && k < COUNT; ++k)
        if (gates.is_gated(sites[k]))
          block.channel_gate(sites[k], n, width, k);
        else
          for (int i = 0; i < block.rows; ++i) std::fill_n(block.tile_row(k, i), padded(width), 1.0f);
      for (int i = 0; i < block.rows; ++i) body(n, width, i, gate(s, i)...);
      each_gated(channel && gates.with_sums, [&](int s, int k) { block.channel_gradient(s, n, width, k, k); });
    }
  });
  each_gated(gates.with_sums, [&](int s, int k) { block.end_site(s, k); });
}

// The same for one site.
template <class F>
INLINE void chunks_of_site(const Block& block, int s, int64_t chunk, F&& body) {
  chunks_of_sites(block, chunk, body, s);
}

}  // namespace comt
