// layer: y = (x - mean)·rstd·weight + bias,   rms: y = x·rstd·(weight + weight_offset)
//
// The rows are centred in two steps, first by their first element, which is exact where it matters: far from 0. The
// spread is then that of centred values, with nothing to cancel.
#include "kernels/norm_rows.h"

namespace fastops::FASTOPS_ISA {
namespace {

// What is left of a sum of squares that is not below 0, and 1 / sqrt(mean + eps) of it.
template <class V>
FASTOPS_INLINE V rstd_of(V squares, int64_t n, double eps) {
  const V spread = squares / like(V{}, n) + like(V{}, eps);
  V root;
  constexpr int lanes = sizeof(V) / sizeof(V{}[0]);
  for (int k = 0; k < lanes; ++k)
    root[k] = sizeof(V{}[0]) == 8 ? __builtin_sqrt(spread[k]) : __builtin_sqrtf(spread[k]);
  return 1 / root;
}

template <class T, bool Layer>
struct Forward {
  using A = accumulate_t<T>;
  using V = typename simd<A>::vec;
  static constexpr int64_t W = simd<A>::size;

  const NormForward& a;
  Parameter<A> weight{a.weight, a.parameter, 1, Layer ? A(0) : A(a.weight_offset)};
  Parameter<A> bias{a.bias, a.parameter, 0, 0};
  const bool past_caches = streams<T>(a.output, a.rows, a.n);

  // Element j of a row and what follows, of the input alone.
  FASTOPS_INLINE const T* input(int64_t row, int64_t j) const {
    return static_cast<const T*>(a.input) + row * a.input_stride + j;
  }
  FASTOPS_INLINE const T* residual(int64_t row, int64_t j) const {
    return static_cast<const T*>(a.residual) + row * a.residual_stride + j;
  }
  // What is normalised, once the sum is there.
  FASTOPS_INLINE const T* source(int64_t row, int64_t j) const {
    return a.residual ? static_cast<const T*>(a.sum) + row * a.n + j : input(row, j);
  }

  FASTOPS_INLINE A first_of(int64_t row) const {
    const V x = load_first(input(row, 0), 1);
    return (a.residual ? rounded<T>(x + load_first(residual(row, 0), 1)) : x)[0];
  }

  // Elements [j, j + count) of a row into `x`: as they are, or less the row's first element. Their sum, or that of the
  // squares of an rms norm.
  FASTOPS_INLINE V read(int64_t row, int64_t j, int64_t count, A origin, A* x) const {
    auto term = [&](int64_t i, auto part, V v, V* s) {
      if constexpr (Layer) v = keep(v - origin, part);
      store(x + i, v);
      s[0] = Layer ? v : v * v;
    };
    const T* from = input(row, j);
    if (!a.residual)
      return sum_vectors<V, 1>(count, [&](int64_t i, auto part, V* s) { term(i, part, load(from + i, part), s); })
          .values[0];
    const T* other = residual(row, j);
    T* sum = static_cast<T*>(a.sum) + row * a.n + j;
    return sum_vectors<V, 1>(count, [&](int64_t i, auto part, V* s) {
             const V v = load(from + i, part) + load(other + i, part);
             store(sum + i, part, v);
             term(i, part, rounded<T>(v), s);
           })
        .values[0];
  }

  // x less its centre, in place, and the sum of the squares.
  FASTOPS_INLINE V centre_and_square(int64_t count, A centre, A* x) const {
    return sum_vectors<V, 1>(count, [&](int64_t i, auto part, V* s) {
             const V v = keep(load(x + i) - centre, part);
             store(x + i, v);
             s[0] = v * v;
           })
        .values[0];
  }

  // Columns [j, j + count) of the output, from centred(i, part).
  template <class F>
  FASTOPS_INLINE void write(int64_t row, int64_t j, int64_t count, A rstd, const A* w, const A* b, F centred) const {
    T* y = static_cast<T*>(a.output) + row * a.n + j;
    auto all = [&](auto put) {
      for_vectors<V>(count, [&](int64_t i, auto part) {
        V v = centred(i, part) * rstd * load(w + i, part);
        if constexpr (Layer) v += load(b + i, part);
        put(y + i, part, v);
      });
    };
    if (past_caches)
      all([](T* p, auto part, V v) { put<true>(p, part, v); });
    else
      all([](T* p, auto part, V v) { put<false>(p, part, v); });
  }

  FASTOPS_INLINE void save(int64_t row, int64_t rows, V centre, V rstd) const {
    if (Layer && a.centre) store_some(static_cast<A*>(a.centre) + row, rows, centre);
    if (a.rstd) store_some(static_cast<A*>(a.rstd) + row, rows, rstd);
  }

  // Rows of one segment or less, as many at once as fit into one.
  void short_rows(int64_t row_begin, int64_t row_end) const {
    Room<A> x, weight_room, bias_room;
    const int64_t n = a.n, padded = (n + W - 1) / W * W;
    const int64_t fitting = kSegment<A> / padded, step = fitting < W ? fitting : W;
    const A* w = weight.at(0, n, weight_room.values);
    const A* b = Layer ? bias.at(0, n, bias_room.values) : nullptr;
    alignas(64) A centres[W], rstds[W];
    row_sums<V> sums;
    for (int64_t row = row_begin; row < row_end; row += step) {
      const int64_t rows = row_end - row < step ? row_end - row : step;
      for (int64_t r = 0; r < rows; ++r)
        sums.of_row[r] = read(row + r, 0, n, Layer ? first_of(row + r) : A(0), x.values + r * padded);
      V total = sums.finish(rows), centre = {};
      if constexpr (Layer) {
        centre = total / like(V{}, n);
        store(centres, centre);
        for (int64_t r = 0; r < rows; ++r)
          sums.of_row[r] = centre_and_square(n, centres[r], x.values + r * padded);
        total = sums.finish(rows);
      }
      const V rstd = rstd_of(total, n, a.eps);
      store(rstds, rstd);
      save(row, rows, centre, rstd);
      for (int64_t r = 0; r < rows; ++r) {
        const A* from = x.values + r * padded;
        write(row + r, 0, n, rstds[r], w, b, [&](int64_t i, auto) { return load(from + i); });
      }
    }
  }

  // The mean and the squared distances from it of ever more segments, in f64.
  struct Moments {
    double count = 0, mean = 0, squares = 0;
    void add(double n, double segment_mean, double segment_squares) {
      const double distance = segment_mean - mean, all = count + n;
      mean += distance * (n / all);
      squares += segment_squares + distance * distance * (count * n / all);
      count = all;
    }
  };

  void long_rows(int64_t row_begin, int64_t row_end) const {
    Room<A> x, weight_room, bias_room;
    const int64_t n = a.n;
    for (int64_t row = row_begin; row < row_end; ++row) {
      const A origin = Layer ? first_of(row) : A(0);
      Moments moments;
      for (int64_t j = 0; j < n; j += kSegment<A>) {
        const int64_t count = n - j < kSegment<A> ? n - j : kSegment<A>;
        const A total = sum_lanes(read(row, j, count, origin, x.values));
        if constexpr (Layer) {
          const A mean = total / count;
          moments.add(count, mean, sum_lanes(centre_and_square(count, mean, x.values)));
        } else {
          moments.squares += total;
        }
      }
      const A centre = moments.mean;
      const V rstds = rstd_of(like(V{}, moments.squares), n, a.eps);
      const A rstd = rstds[0];
      save(row, 1, V{} + centre, rstds);
      for (int64_t j = 0; j < n; j += kSegment<A>) {
        const int64_t count = n - j < kSegment<A> ? n - j : kSegment<A>;
        const A* w = weight.at(j, count, weight_room.values);
        const A* b = Layer ? bias.at(j, count, bias_room.values) : nullptr;
        const T* from = source(row, j);
        write(row, j, count, rstd, w, b, [&](int64_t i, auto part) {
          const V v = load(from + i, part);
          return Layer ? v - origin - centre : v;
        });
      }
    }
  }
};

template <class T, bool Layer>
void forward(const NormForward& a, int64_t row_begin, int64_t row_end) {
  const Forward<T, Layer> f{a};
  a.n <= kSegment<accumulate_t<T>> ? f.short_rows(row_begin, row_end) : f.long_rows(row_begin, row_end);
  if (f.past_caches) end_of_stream();
}

}  // namespace

void norm_forward(const NormForward& a, int64_t row_begin, int64_t row_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    a.norm == Norm::layer ? forward<T, true>(a, row_begin, row_end) : forward<T, false>(a, row_begin, row_end);
  });
}

}  // namespace fastops::FASTOPS_ISA
