// What an operation is given by `calls.py` and how it answers: words of eight bytes, in the order of its schema.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <type_traits>

#include "vectors.h"

namespace comt {

// Why an operation does not compute: Python raises a TypeError or a ValueError with the message.
struct Refusal {
  enum Kind { TYPE = 2, VALUE = 3 } kind;
  std::string message;
};

// The message is put together only where it is needed: of a small network's call that would be a large part.
template <class... Parts>
INLINE void require(bool fits, const Parts&... parts) {
  if (fits) return;
  std::ostringstream message;
  (message << ... << parts);
  throw Refusal{Refusal::VALUE, message.str()};
}

enum Type : int64_t { FLOAT = 0, BF16 = 1, INTEGER = 2 };

template <class T>
constexpr Type type_of = std::is_same_v<T, float> ? FLOAT : std::is_same_v<T, bf16> ? BF16 : INTEGER;

INLINE const char* type_name(int64_t type) { return type == FLOAT ? "float32" : type == BF16 ? "bfloat16" : "int64"; }

template <class T>
struct Rows {  // a matrix whose rows may lie apart
  T* data;
  int64_t stride;
  INLINE T* operator[](int64_t row) const { return data + row * stride; }
  Rows from(int64_t column) const { return {data + column, stride}; }
};

// A tensor of two dimensions with any strides, or of one: a single row. Without data it is absent.
struct Matrix {
  void* data;
  int64_t rows, columns, row_stride, column_stride, type;

  void check(int64_t r, int64_t c, const char* name) const {
    require(rows == r && columns == c, name, " has the shape (", rows, ", ", columns, "), not (", r, ", ", c, ")");
  }

  // Whole rows of T, of this shape.
  template <class T>
  Rows<T> of(int64_t r, int64_t c, const char* name) const {
    if (type != type_of<std::remove_const_t<T>>)
      throw Refusal{Refusal::TYPE, std::string(name) + " is " + type_name(type) + ", the other tensors are not"};
    check(r, c, name);
    require(column_stride == 1 || columns < 2, "the last dimension of ", name, " has the stride ", column_stride);
    return {static_cast<T*>(data), row_stride};
  }
};

struct Integers {
  const int64_t* data;
  int64_t count;
};

// The gates of a product's sites. Wc: [sum of N of the gated sites, R] and ws: [S, R] of either type, or absent.
struct Modulation {
  Matrix Wc, ws;
  float scale;
  int rank;
  Integers gated;  // of every site whether it is
};

// The gradients of a product and of what its gates are made of. dproduct may be absent.
template <class T>
struct Gradients {
  Rows<T> dproduct;
  int64_t columns;  // of dproduct
  float *dWc, *dws, *extra;
};

class Arguments {
 public:
  explicit Arguments(const int64_t* words) : threads(int(*words)), next(words + 1) {}

  // So many words as T has.
  template <class T>
  T read() {
    T found;
    std::memcpy(&found, next, sizeof found);
    next += sizeof found / sizeof *next;
    return found;
  }

  int64_t integer() { return read<int64_t>(); }
  double number() { return read<double>(); }
  Matrix matrix() { return read<Matrix>(); }

  Integers integers() {
    const int64_t count = integer();
    next += count;
    return {next - count, count};
  }

  Modulation modulation() {
    const Matrix Wc = matrix(), ws = matrix();
    const float scale = float(number());
    const int rank = int(integer());
    return {Wc, ws, scale, rank, integers()};
  }

  // What is written: an operator's results come last, contiguous, and of the shapes that its definition gave them.
  template <class T>
  T* result() {
    return static_cast<T*>(matrix().data);
  }

  template <class T>
  Gradients<T> gradients(bool with_extra = false) {
    const Matrix dproduct = matrix();
    float *dWc = result<float>(), *dws = result<float>(), *extra = with_extra ? result<float>() : nullptr;
    return {{static_cast<T*>(dproduct.data), dproduct.columns}, dproduct.columns, dWc, dws, extra};
  }

  const int threads;

 private:
  const int64_t* next;
};

// body(T()) for the type of that code.
template <class F>
INLINE void with_type(int64_t type, F&& body) {
  if (type == INTEGER) throw Refusal{Refusal::TYPE, "the kernels take float32 and bfloat16, not int64"};
  type == BF16 ? body(bf16()) : body(float());
}

// A parameter in fp32, each row followed by zeros up to `stride`: itself where it lies so, else a copy. May be absent.
struct Floats {
  Floats(const Matrix& from, int64_t rows, int64_t columns, int64_t stride, const char* name) : data(nullptr) {
    if (!from.data) return;
    from.check(rows, columns, name);
    if (from.type == FLOAT && from.column_stride == 1 && columns == stride &&
        (rows == 1 || from.row_stride == stride)) {
      data = static_cast<const float*>(from.data);
      return;
    }
    own.reset(new float[rows * stride]());
    with_type(from.type, [&](auto tag) {
      const auto* source = static_cast<const decltype(tag)*>(from.data);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c)
          own[r * stride + c] = widen(source[r * from.row_stride + c * from.column_stride]);
    });
    data = own.get();
  }
  Floats(const Matrix& from, int64_t size, const char* name) : Floats(from, 1, size, size, name) {}

  operator const float*() const { return data; }

  std::unique_ptr<float[]> own;
  const float* data;
};

std::string& message();  // of the calling thread's last refusal

// 0, or why nothing was computed: no exception may leave a function that C calls.
template <class F>
int guarded(F&& body) {
  try {
    body();
    return 0;
  } catch (const Refusal& refusal) {
    message() = refusal.message;
    return refusal.kind;
  } catch (...) {
    return 1;
  }
}

}  // namespace comt

#define EXPORT extern "C" __attribute__((visibility("default")))

// OPERATION(name) { ... } with its arguments in `in`.
#define OPERATION(NAME)                                                                           \
  static void NAME##_of(comt::Arguments in);                                                      \
  EXPORT int comt_##NAME(const int64_t* words) {                                                  \
    return comt::guarded([&] { NAME##_of(comt::Arguments(words)); });                             \
  }                                                                                               \
  static void NAME##_of(comt::Arguments in)
