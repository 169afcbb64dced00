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

// The mean and the squared distances from it of ever more segments, in f64.
struct Moments {
  double count = 0, mean = 0, squares = 0;
  __attribute__((noinline)) void add(double n, double segment_mean, double segment_squares) {
    const double distance = segment_mean - mean, all = count + n;
    mean += distance * (n / all);
    squares += segment_squares + distance * distance * (count * n / all);
    count = all;
  }
};

// Elements of the rows that go together: enough to hide a sum's latency, few enough that reading and writing alternate.
template <class A>
constexpr int64_t kBlock = 8192 / sizeof(A);

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
    return sum_vectors<V, 1>(count,
                             [&](int64_t i, auto part, V* s) {
                               const V v = load(from + i, part) + load(other + i, part);
                               store(sum + i, part, v);
                               term(i, part, rounded<T>(v), s);
                             })
        .values[0];
  }

  // x less its centre, in place, and the sum of the squares.
  FASTOPS_INLINE V centre_and_square(int64_t count, A centre, A* x) const {
    return sum_vectors<V, 1>(count,
                             [&](int64_t i, auto part, V* s) {
                               const V v = keep(load(x + i) - centre, part);
                               store(x + i, v);
                               s[0] = v * v;
                             })
        .values[0];
  }

  // Columns [j, j + count) of the output, from centred(i, part).
  template <class F>
  FASTOPS_INLINE void write(int64_t row, int64_t j, int64_t count, A rstd, const A* w, const A* b, int64_t step,
                            F centred) const {
    T* y = static_cast<T*>(a.output) + row * a.n + j;
    const T* ahead = input(row + step, j);
    auto all = [&](auto put) {
      for_vectors<V>(count, [&](int64_t i, auto part) {
        V v = centred(i, part) * rstd * load(w + i, part);
        __builtin_prefetch(ahead + i);
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

  // As many rows at once as fit into one segment.
  void short_rows(int64_t row_begin, int64_t row_end) const {
    Room<A> x, weight_room, bias_room;
    const int64_t n = a.n, padded = (n + W - 1) / W * W;
    const int64_t fitting = kBlock<A> / padded, step = fitting < 1 ? 1 : fitting < W ? fitting : W;
    const A* w = weight.at(0, n, weight_room.values);
    const A* b = Layer ? bias.at(0, n, bias_room.values) : nullptr;
    alignas(64) A centres[W], rstds[W];
    row_sums<V> sums;
    for (int64_t row = row_begin; row < row_end; row += step) {
      const int64_t rows = row_end - row < step ? row_end - row : step;
      for (int64_t r = 0; r < rows; ++r)
        sums.of_row[r] = read(row + r, 0, n, Layer ? first_of(row + r) : A(0), x.values + r * padded);
      V squares = sums.finish(rows), centre = {};
      if constexpr (Layer) {
        centre = squares / like(V{}, n);
        store(centres, centre);
        for (int64_t r = 0; r < rows; ++r) sums.of_row[r] = centre_and_square(n, centres[r], x.values + r * padded);
        squares = sums.finish(rows);
      }
      const V rstd = rstd_of(squares, n, a.eps);
      store(rstds, rstd);
      save(row, rows, centre, rstd);
      for (int64_t r = 0; r < rows; ++r) {
        const A* from = x.values + r * padded;
        write(row + r, 0, n, rstds[r], w, b, step, [&](int64_t i, auto) { return load(from + i); });
      }
    }
  }

  struct Segment {
    A mean, squares;  // the mean less the row's first element
  };
  struct Row {
    A origin, centre, rstd;
  };

  FASTOPS_INLINE int64_t count_at(int64_t j) const { return a.n - j < kSegment<A> ? a.n - j : kSegment<A>; }
  FASTOPS_INLINE A origin_of(int64_t row) const { return Layer ? first_of(row) : A(0); }

  // Compiled once, as Moments::add is, so that products fuse into sums in one way whoever calls.
  __attribute__((noinline)) Segment measure(int64_t row, int64_t j) const {
    Room<A> x;
    const int64_t count = count_at(j);
    A sum = sum_lanes(read(row, j, count, origin_of(row), x.values));
    if constexpr (!Layer) return {0, sum};
    const A mean = sum / static_cast<A>(count);
    return {mean, sum_lanes(centre_and_square(count, mean, x.values))};
  }

  // of(j) is the segment that begins at element j.
  template <class F>
  FASTOPS_INLINE Row combine(int64_t row, F of) const {
    Moments moments;
    for (int64_t j = 0; j < a.n; j += kSegment<A>) {
      const Segment s = of(j);
      moments.add(count_at(j), s.mean, s.squares);
    }
    const V centre = like(V{}, moments.mean), rstd = rstd_of(like(V{}, moments.squares), a.n, a.eps);
    return {origin_of(row), centre[0], rstd[0]};
  }

  __attribute__((noinline)) void write_segment(int64_t row, int64_t j, const Row& known, int64_t step) const {
    Room<A> weight_room, bias_room;
    const int64_t count = count_at(j);
    const T* from = source(row, j);
    if (j == 0) save(row, 1, V{} + known.centre, V{} + known.rstd);
    write(row, j, count, known.rstd, weight.at(j, count, weight_room.values),
          Layer ? bias.at(j, count, bias_room.values) : nullptr, step, [&](int64_t i, auto part) {
            const V v = load(from + i, part);
            return Layer ? v - known.origin - known.centre : v;
          });
  }

  void long_rows(int64_t row_begin, int64_t row_end) const {
    for (int64_t row = row_begin; row < row_end; ++row) {
      const Row known = combine(row, [&](int64_t j) { return measure(row, j); });
      for (int64_t j = 0; j < a.n; j += kSegment<A>) write_segment(row, j, known, 1);
    }
  }

  void segments(Pass pass, Segment* found, int64_t task_begin, int64_t task_end) const {
    const int64_t of_row = (a.n + kSegment<A> - 1) / kSegment<A>;
    Row known;
    for (int64_t task = task_begin; task < task_end; ++task) {
      const int64_t row = task / of_row, j = task % of_row * kSegment<A>;
      if (pass == Pass::sums) {
        found[task] = measure(row, j);
        continue;
      }
      if (task == task_begin || j == 0)
        known = combine(row, [&](int64_t i) { return found[row * of_row + i / kSegment<A>]; });
      write_segment(row, j, known, 0);
    }
  }
};

template <class T, bool Layer>
void forward(const NormForward& a, int64_t row_begin, int64_t row_end) {
  const Forward<T, Layer> f{a};
  a.n <= kSegment<accumulate_t<T>> ? f.short_rows(row_begin, row_end) : f.long_rows(row_begin, row_end);
  if (f.past_caches) end_of_stream();
}

template <class T, bool Layer>
void segments(const NormForward& a, Pass pass, void* found, int64_t task_begin, int64_t task_end) {
  const Forward<T, Layer> f{a};
  f.segments(pass, static_cast<typename Forward<T, Layer>::Segment*>(found), task_begin, task_end);
  if (f.past_caches) end_of_stream();
}

}  // namespace

void norm_forward(const NormForward& a, int64_t row_begin, int64_t row_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    a.norm == Norm::layer ? forward<T, true>(a, row_begin, row_end) : forward<T, false>(a, row_begin, row_end);
  });
}

void norm_forward_segments(const NormForward& a, Pass pass, void* found, int64_t task_begin, int64_t task_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    a.norm == Norm::layer ? segments<T, true>(a, pass, found, task_begin, task_end)
                          : segments<T, false>(a, pass, found, task_begin, task_end);
  });
}

}  // namespace fastops::FASTOPS_ISA
