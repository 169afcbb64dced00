// layer: y = (x - mean)·rstd·(weight + weight_offset) + bias,   rms: y = x·rstd·(weight + weight_offset)
//
// A layer norm reads a row twice, the second time from L1: for the sums of d = x - origin and of d², to write. The origin is
// the mean of the row's first elements, 64 of float32 and float64. Where that is too far from the row's, the sums are taken
// once more, about the mean that they gave: it need not be the mean to the last bit, for shift, the mean of d, has the rest.
#include "kernels/norm_rows.h"

namespace fastops::FASTOPS_ISA {
namespace {

// Of a row or of a segment: what d was measured from, the distance of the mean from it, the mean of the squared distances
// from the mean.
struct Spread {
  double origin, shift, variance;
};

// Whether E[d²] - shift² is a variance: no square overflowed, and shift, which takes digits from it, is at most so many
// standard deviations.
template <class A>
FASTOPS_INLINE bool holds(A shift, A variance, A deviations) {
  return variance * (deviations * deviations) >= shift * shift && variance < static_cast<A>(__builtin_inf());
}

// Where it does not about the mean either: rows that are constant but for rounding, or huge, in f64.
template <class T>
__attribute__((noinline)) Spread measure_in_f64(const T* x, int64_t count) {
  using A = accumulate_t<T>;
  const double each = 1 / static_cast<double>(count);
  // The mean of f(element).
  auto mean_of = [&](auto f) {
    double mean = 0;
    for (int64_t i = 0; i < count; ++i) mean += f(static_cast<double>(value(x + i))) * each;
    return mean;
  };
  const double mean = mean_of([](double v) { return v; });
  const A better = static_cast<A>(mean + mean_of([&](double v) { return v - mean; }));
  const double shift = mean_of([&](double v) { return v - better; });
  return {better, shift, mean_of([&](double v) { return (v - better - shift) * (v - better - shift); })};
}

// Of ever more segments: the mean, as a distance from the first one's, and the squared distances from it.
struct Moments {
  double origin = 0, count = 0, mean = 0, squares = 0;
  __attribute__((noinline)) void add(double n, Spread segment) {
    if (count == 0) origin = segment.origin;
    const double distance = (segment.origin - origin) + segment.shift - mean, all = count + n;
    mean += distance * (n / all);
    squares += segment.variance * n + distance * distance * (count * n / all);
    count = all;
  }
};

// Elements of the rows that go together: enough to hide a sum's latency, few enough that reading and writing alternate.
template <class A>
constexpr int64_t kBlock = 16384 / sizeof(A);

// The next rows are fetched while these are written. That is in the way of rows from kCachedRowBytes on in inputs of up to
// kCachedBytes; long ones of these go together, so that parameters stay in L1 for all.
constexpr int64_t kCachedRowBytes = 2048, kLongRows = 4;

template <class T, bool Layer>
struct Forward {
  using A = accumulate_t<T>;
  using V = typename simd<A>::vec;
  using U = unit_t<T>;
  static constexpr int64_t W = simd<A>::size;

  static constexpr bool kWidens = sizeof(T) != sizeof(A);
  // Whether a row of one segment is widened once for both readings. An rms norm has arithmetic to spare, but for AVX2's bf16.
  static constexpr bool kHolds = kWidens && (Layer || (kAlternates<T> && FASTOPS_VECTOR_BYTES == 32));
  static constexpr int kSums = Layer ? 2 : 1;
  // The origin is the mean of so many first elements, and may be so many deviations from the row's: the sums' rounding grows
  // with that distance. A half type's result has digits to spare, so that one element will do.
  static constexpr int64_t kSample = kWidens ? 1 : 64;
  static constexpr A kNear = kWidens ? A(8) : A(0.25);

  const NormForward& a;
  Parameter<T> weight{a.weight, a.parameter, 1, A(a.weight_offset)};
  Parameter<T> bias{a.bias, a.parameter, 0, 0};
  const bool past_caches = streams<T>(a.output, a.rows, a.n);
  const int64_t row_bytes = a.n * int64_t{sizeof(T)};
  const bool fetches = row_bytes < kCachedRowBytes || a.rows * row_bytes > kCachedBytes;

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

  // The lanes' sums of the first `count` elements from j on, of what is normalised, also before the sum is there.
  FASTOPS_INLINE V sample(int64_t row, int64_t j, int64_t count) const {
    const T *from = input(row, j), *other = residual(row, j);
    return sum_units<T, 1>(count,
                           [&](int64_t i, auto part, U* s) {
                             s[0] = load(from + i, part);
                             if (a.residual) s[0] = rounded<T>(s[0] + load(other + i, part));
                           })
        .values[0];
  }
  static FASTOPS_INLINE int64_t sampled(int64_t count) { return count < kSample ? count : kSample; }

  // The sums of d = element - origin and of d², or of an rms norm's squares, over elements [j, j + count) of a row, which are
  // widened into `x` where they are to be held.
  template <bool Hold>
  FASTOPS_INLINE lane_sums<V, kSums> read(int64_t row, int64_t j, int64_t count, A origin, A* x) const {
    auto terms = [&](int64_t i, auto part, U v, U* s) {
      if constexpr (Hold) hold(x + i, v);
      if constexpr (Layer) v = keep<T>(v - every<T>(origin), part);
      if constexpr (Layer) s[0] = v;
      s[kSums - 1] = v * v;
    };
    const T* from = input(row, j);
    if (!a.residual)
      return sum_units<T, kSums>(count, [&](int64_t i, auto part, U* s) { terms(i, part, load(from + i, part), s); });
    const T* other = residual(row, j);
    T* sum = static_cast<T*>(a.sum) + row * a.n + j;
    return sum_units<T, kSums>(count, [&](int64_t i, auto part, U* s) {
      const U v = load(from + i, part) + load(other + i, part);
      store(sum + i, part, v);
      terms(i, part, rounded<T>(v), s);
    });
  }
  // Where a row then lies.
  FASTOPS_INLINE auto held(int64_t row, const A* x) const {
    if constexpr (kHolds)
      return x;
    else
      return source(row, 0);
  }

  // Of elements [j, j + count) of a row, which lie at x, about what seems to be their mean.
  template <class X>
  __attribute__((noinline)) Spread measure_again(int64_t row, int64_t j, int64_t count, A mean, const X* x) const {
    const auto found = sum_units<T, 2>(count, [&](int64_t i, auto part, U* s) {
      s[0] = keep<T>(load_as<T>(x + i, part) - every<T>(mean), part);
      s[1] = s[0] * s[0];
    });
    const A n = static_cast<A>(count), shift = sum_lanes(found.values[0]) / n;
    const A variance = sum_lanes(found.values[1]) / n - shift * shift;
    if (!holds(shift, variance, A(32))) return measure_in_f64(source(row, j), count);
    return {mean, shift, variance};
  }

  struct Row {
    A mean, shift, rstd;
  };

  // Columns [j, j + count) of the output, from the elements at x; those `step` rows on are fetched, or these once more, which
  // is less than a branch.
  template <class X, class P>
  FASTOPS_INLINE void write(int64_t row, int64_t j, int64_t count, const Row& of, const X* x, const P* w, const P* b,
                            int64_t step) const {
    T* y = static_cast<T*>(a.output) + row * a.n + j;
    const T* ahead = input(fetches ? row + step : row, j);
    const U mean = every<T>(of.mean), rstd = every<T>(of.rstd), shift = every<T>(of.shift * of.rstd);
    auto all = [&](auto put) {
      for_units<T>(count, [&](int64_t i, auto part) {
        U v = load_as<T>(x + i, part);
        __builtin_prefetch(ahead + i);
        if constexpr (Layer)
          v = ((v - mean) * rstd - shift) * load_as<T>(w + i, part) + load_as<T>(b + i, part);
        else
          v = v * rstd * load_as<T>(w + i, part);
        put(y + i, part, v);
      });
    };
    if (past_caches)
      all([](T* p, auto part, U v) { put<true>(p, part, v); });
    else
      all([](T* p, auto part, U v) { put<false>(p, part, v); });
  }

  FASTOPS_INLINE void save(int64_t row, const Row& of) const {
    const NormStatistics& to = a.statistics;
    if (!to.rstd) return;
    const int64_t at = row * to.step;
    if constexpr (Layer) {
      static_cast<A*>(to.mean)[at] = to.shift ? of.mean : of.mean + of.shift;
      if (to.shift) static_cast<A*>(to.shift)[at] = of.shift;
    }
    static_cast<A*>(to.rstd)[at] = of.rstd;
  }

  FASTOPS_INLINE A rstd_of(double variance) const { return static_cast<A>(1 / root(variance + a.eps)); }

  FASTOPS_INLINE bool own_parameters() const { return weight.own() && (!Layer || bias.own()); }

  // As many rows at once as fit into one segment.
  void short_rows(int64_t row_begin, int64_t row_end) const {
    Room<A> x, weight_room, bias_room;
    const int64_t n = a.n, padded = (n + kUnit<T> - 1) / kUnit<T> * kUnit<T>;
    const int64_t fitting = kBlock<A> / padded, step = fitting < 1 ? 1 : fitting < W ? fitting : W;
    const bool as_they_are = own_parameters() && (n > kHeldParameters || row_end - row_begin < 4);
    const A* w = as_they_are ? nullptr : weight.at(0, n, weight_room.values);
    const A* b = as_they_are || !Layer ? nullptr : bias.at(0, n, bias_room.values);
    const A each = 1 / static_cast<A>(n);
    alignas(64) A origins[W] = {}, means[W] = {}, shifts[W] = {}, squares[W], rstds[W];
    row_sums<A> sums[kSums];
    auto near = [&](int64_t r) { return holds(means[r] - origins[r], squares[r], kNear); };
    for (int64_t row = row_begin; row < row_end; row += step) {
      const int64_t rows = row_end - row < step ? row_end - row : step;
      auto held_of = [&](int64_t r) { return held(row + r, x.values + r * padded); };
      if constexpr (Layer) {
        for (int64_t r = 0; r < rows; ++r) sums[0].of_row[r] = sample(row + r, 0, sampled(n));
        sums[0].finish(rows, origins);
        for (int64_t r = 0; r < rows; ++r) origins[r] /= static_cast<A>(sampled(n));
      }
      for (int64_t r = 0; r < rows; ++r) {
        const auto found = read<kHolds>(row + r, 0, n, origins[r], x.values + r * padded);
        for (int k = 0; k < kSums; ++k) sums[k].of_row[r] = found.values[k];
      }
      if constexpr (Layer) sums[0].finish(rows, shifts);
      sums[kSums - 1].finish(rows, squares);
      bool doubtful = false;
      for (int64_t r = 0; r < rows; ++r) {
        squares[r] *= each;
        if constexpr (Layer) {
          const A shift = shifts[r] / static_cast<A>(n);
          squares[r] -= shift * shift;
          means[r] = origins[r] + shift;
          shifts[r] = shift - (means[r] - origins[r]);
          doubtful |= !near(r);
        }
        rstds[r] = 1 / root(squares[r] + static_cast<A>(a.eps));
      }
      for (int64_t r = 0; doubtful && r < rows; ++r)
        if (!near(r)) {
          const Spread better = measure_again(row + r, 0, n, means[r], held_of(r));
          const A origin = static_cast<A>(better.origin), shift = static_cast<A>(better.shift);
          means[r] = origin + shift;
          shifts[r] = shift - (means[r] - origin);
          rstds[r] = rstd_of(better.variance);
        }
      for (int64_t r = 0; r < rows; ++r) {
        const Row of{means[r], shifts[r], rstds[r]};
        save(row + r, of);
        if (as_they_are)
          write(row + r, 0, n, of, held_of(r), weight.own_at(0), bias.own_at(0), step);
        else
          write(row + r, 0, n, of, held_of(r), w, b, step);
      }
    }
  }

  FASTOPS_INLINE int64_t count_at(int64_t j) const { return a.n - j < kSegment<A> ? a.n - j : kSegment<A>; }

  // Compiled once, as Moments::add is, so that products fuse into sums in one way whoever calls.
  __attribute__((noinline)) Spread measure(int64_t row, int64_t j) const {
    const int64_t count = count_at(j);
    const A each = 1 / static_cast<A>(count);
    const A origin = Layer ? sum_lanes(sample(row, j, sampled(count))) / static_cast<A>(sampled(count)) : A(0);
    const auto found = read<false>(row, j, count, origin, nullptr);
    const A square = sum_lanes(found.values[kSums - 1]) * each;
    if constexpr (!Layer) return {0, 0, square};
    const A shift = sum_lanes(found.values[0]) / static_cast<A>(count);
    const A variance = square - shift * shift;
    if (!holds(shift, variance, kNear)) [[unlikely]]
      return measure_again(row, j, count, origin + shift, source(row, j));
    return {origin, shift, variance};
  }

  Row row_of(const Moments& moments) const {
    const double mean = moments.origin + moments.mean, back = mean - moments.origin;
    const double rest = (moments.origin - (mean - back)) + (moments.mean - back);  // what that sum's rounding took
    const A rounded = static_cast<A>(mean);
    const double shift = (mean - rounded) + rest, square = moments.squares / static_cast<double>(a.n);
    return {rounded, static_cast<A>(shift), rstd_of(square)};
  }

  __attribute__((noinline)) void write_segment(int64_t row, int64_t j, const Row& known, int64_t step) const {
    Room<A> weight_room, bias_room;
    const int64_t count = count_at(j);
    if (j == 0) save(row, known);
    if (own_parameters()) return write(row, j, count, known, source(row, j), weight.own_at(j), bias.own_at(j), step);
    write(row, j, count, known, source(row, j), weight.at(j, count, weight_room.values),
          Layer ? bias.at(j, count, bias_room.values) : nullptr, step);
  }

  void long_rows(int64_t row_begin, int64_t row_end) const {
    const int64_t step = fetches ? 1 : kLongRows;
    Row known[kLongRows];
    for (int64_t row = row_begin; row < row_end; row += step) {
      const int64_t rows = row_end - row < step ? row_end - row : step;
      for (int64_t r = 0; r < rows; ++r) {
        Moments moments;
        for (int64_t j = 0; j < a.n; j += kSegment<A>) moments.add(count_at(j), measure(row + r, j));
        known[r] = row_of(moments);
      }
      for (int64_t j = 0; j < a.n; j += kSegment<A>)
        for (int64_t r = 0; r < rows; ++r) write_segment(row + r, j, known[r], step);
    }
  }

  void segments(Pass pass, double* found, int64_t task_begin, int64_t task_end) const {
    const int64_t of_row = (a.n + kSegment<A> - 1) / kSegment<A>;
    Row known;
    for (int64_t task = task_begin; task < task_end; ++task) {
      const int64_t row = task / of_row, j = task % of_row * kSegment<A>;
      double* at = found + kNormFound * task;
      if (pass == Pass::sums) {
        const Spread s = measure(row, j);
        at[0] = s.origin;
        at[1] = s.shift;
        at[2] = s.variance;
        continue;
      }
      if (task == task_begin || j == 0) {
        Moments moments;
        for (int64_t i = 0; i < of_row; ++i) {
          const double* s = found + kNormFound * (row * of_row + i);
          moments.add(count_at(i * kSegment<A>), {s[0], s[1], s[2]});
        }
        known = row_of(moments);
      }
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
void segments(const NormForward& a, Pass pass, double* found, int64_t task_begin, int64_t task_end) {
  const Forward<T, Layer> f{a};
  f.segments(pass, found, task_begin, task_end);
  if (f.past_caches) end_of_stream();
}

}  // namespace

void norm_forward(const NormForward& a, int64_t row_begin, int64_t row_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    a.norm == Norm::layer ? forward<T, true>(a, row_begin, row_end) : forward<T, false>(a, row_begin, row_end);
  });
}

void norm_forward_segments(const NormForward& a, Pass pass, double* found, int64_t task_begin, int64_t task_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    a.norm == Norm::layer ? segments<T, true>(a, pass, found, task_begin, task_end)
                          : segments<T, false>(a, pass, found, task_begin, task_end);
  });
}

}  // namespace fastops::FASTOPS_ISA
