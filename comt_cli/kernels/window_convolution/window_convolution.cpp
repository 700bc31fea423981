// A few filters on a map, after a product of matrices has applied each of their taps to every pixel of it.
//     v[k, tap, pixel] = a_k,tap . x[pixel]     u[k, pixel] = the sum over the taps of v[k, tap, the pixel it lies on]
// and the gradient, dv[k, tap, pixel] = du[k, the pixel whose tap lies there], or 0. Everything lies plane by plane, so
// that neighbouring pixels are neighbours in memory. u and du are fp32, v and dv of type T.
#include "gates.h"

namespace comt {

namespace {

// Filters of window x window taps, maps of H x W pixels in and out_H x out_W out.
struct Window {
  Matrix v, of_u;
  int64_t images, H, W, out_H, out_W, filters, window, stride, padding;
};

// The columns j of the output, first <= j < end, whose tap dj lies within the input.
struct Seen {
  Seen(const Window& a, int64_t dj)
      : shift(dj - a.padding),
        first(shift < 0 ? (-shift + a.stride - 1) / a.stride : 0),
        end(a.W - shift <= 0 ? 0 : std::min(a.out_W, (a.W - shift - 1) / a.stride + 1)) {}
  int64_t shift, first, end;
};

// body(k, image, thread) for all planes.
template <class F>
void planes_of(const Window& a, int threads, F&& body) {
  const int64_t planes = a.filters * a.images;
  parallel(threads, [&](Thread thread) {
    for (int64_t i = thread.begin(planes); i < thread.end(planes); ++i) body(i / a.images, i % a.images, thread);
  });
}

int threads_of(const Window& a, int most) { return useful_threads(most, a.filters * a.images * ROWS, a.H * a.W); }

float* plane_of_u(const Window& a, int64_t k, int64_t image) {
  return static_cast<float*>(a.of_u.data) + (k * a.images + image) * a.out_H * a.out_W;
}

template <class T>
T* plane(const Window& a, int64_t k, int64_t tap, int64_t image) {
  return static_cast<T*>(a.v.data) + (((k * a.window * a.window) + tap) * a.images + image) * a.H * a.W;
}

template <class T>
void gather(const Window& a, int64_t k, int64_t image) {
  for (int64_t i = 0; i < a.out_H; ++i) {
    float* u = plane_of_u(a, k, image) + i * a.out_W;
    std::fill_n(u, a.out_W, 0.f);
    for (int64_t tap = 0; tap < a.window * a.window; ++tap) {
      const int64_t row = i * a.stride + tap / a.window - a.padding;
      if (row < 0 || row >= a.H) continue;
      const Seen seen(a, tap % a.window);
      const T* v = plane<T>(a, k, tap, image) + row * a.W;
      int64_t j = seen.first;
      if (a.stride == 1)
        for (; j + W <= seen.end; j += W) store(u + j, load(u + j) + load(v + j + seen.shift));
      for (; j < seen.end; ++j) u[j] += widen(v[j * a.stride + seen.shift]);
    }
  }
}

template <class T>
void spread(const Window& a, int64_t k, int64_t image, float* line) {
  for (int64_t tap = 0; tap < a.window * a.window; ++tap) {
    const Seen seen(a, tap % a.window);
    for (int64_t row = 0; row < a.H; ++row) {
      const int64_t i = row - (tap / a.window - a.padding);  // stride times the output's row
      std::fill_n(line, a.W, 0.f);
      if (i >= 0 && i % a.stride == 0 && i / a.stride < a.out_H) {
        const float* du = plane_of_u(a, k, image) + i / a.stride * a.out_W;
        for (int64_t j = seen.first; j < seen.end; ++j) line[j * a.stride + seen.shift] = du[j];
      }
      T* dv = plane<T>(a, k, tap, image) + row * a.W;
      columns(a.W, [&](int64_t n, auto part) { store(dv + n, load(line + n, part), part); });
    }
  }
}

}  // namespace
}  // namespace comt

using namespace comt;

OPERATION(window_gather) {
  const auto a = in.read<Window>();
  with_type(a.v.type, [&](auto tag) {
    planes_of(a, threads_of(a, in.threads),
              [&](int64_t k, int64_t image, Thread) { gather<decltype(tag)>(a, k, image); });
  });
}

OPERATION(window_spread) {
  const auto a = in.read<Window>();
  const int threads = threads_of(a, in.threads);
  const std::unique_ptr<float[]> lines(new float[threads * a.W]);
  with_type(a.v.type, [&](auto tag) {
    planes_of(a, threads, [&](int64_t k, int64_t image, Thread thread) {
      spread<decltype(tag)>(a, k, image, lines.get() + thread.index * a.W);
    });
  });
}
