#pragma once
// The body of the operators that reduce rows, that write rows from numbers of the row, or both. An Op is a policy:
//
//   T, R                       the elements that are read and written
//   kInputs, kSums, kState     rows that are read, sums over a row, numbers of a row that writing needs
//   kPeak                      whether terms are measured from the greatest `ranked` of a segment, as exponentials are
//   kWrites                    whether rows are written
//   kHolds                     whether short rows are written by write_held(), from what terms() returned
//   kSaves                     whether save() keeps numbers of a row
//   rows(), n(), input(k), output()
//   skips(row)                 whether a row is not read: it is finished from zeros and written as zeros
//   ranked(j, x)               what the peak is the greatest of; x: a unit of each input, at column j
//   terms(j, x, center, sums)  sets a unit's terms of the sums; center: the peak, or 0 where that is -inf
//   merge(total, segment)      joins what was found of segments, the peak if there is one, then the sums, in f64
//   finish(row, rows, found, state)
//                              from what was found of up to a vector's number of rows, a lane each, to their state
//   save(row, rows, found, state)
//   write(row, j, x, state), write_held(held, state)
//
// Several short rows go through each pass together, so that their sums are finished together. A long row goes in
// segments, each in L1 from pass to pass, and is read again to write. Which of both depends on n and the dtype alone.
#include "cpu/engine/lanes.h"
#include "cpu/engine/sums.h"
#include "problem/row.h"

namespace fastops::FASTOPS_ISA {

// Rows of a view one after another: a division for the first alone.
template <class T>
class RowCursor {
 public:
  RowCursor(const RowsView& view, int64_t row)
      : view_(view),
        left_(view.inner - row % view.inner),
        outer_(static_cast<const T*>(view.data) + row / view.inner * view.outer_stride),
        at_(outer_ + row % view.inner * view.inner_stride) {}
  // f(r, row) for the next rows, which are mostly at one distance from each other.
  template <class F>
  FASTOPS_INLINE void take(int64_t rows, F f) {
    for (int64_t r = 0; r < rows;) {
      const int64_t count = rows - r < left_ ? rows - r : left_;
      for (const int64_t stop = r + count; r < stop; ++r, at_ += view_.inner_stride) f(r, at_);
      left_ -= count;
      if (left_ > 0) continue;
      left_ = view_.inner;
      at_ = outer_ += view_.outer_stride;
    }
  }

 private:
  RowsView view_;
  int64_t left_;
  const T *outer_, *at_;
};

template <class Op>
class RowEngine {
  using T = typename Op::T;
  using R = typename Op::R;
  using A = accumulate_t<T>;
  using V = typename simd<A>::vec;
  using U = unit_t<T>;
  static constexpr int64_t W = simd<A>::size, N = kUnit<T>, kSegmentElements = kSegment<A>;
  static constexpr int kInputs = Op::kInputs, kSums = Op::kSums, kState = Op::kState, kFound = Op::kPeak + kSums;
  static constexpr int kStates = kState > 0 ? kState : 1;  // an array has an element
  static_assert(kFound <= kRowFound);
  // Of the short rows that go together: beside these, the output and the next rows have room in L1.
  static constexpr int64_t kBlockElements =
      kSegmentElements * sizeof(A) / (kInputs * sizeof(T) < sizeof(A) ? sizeof(A) : kInputs * sizeof(T));

  template <class E>
  static constexpr int64_t kAhead = 2048 / sizeof(E);  // the hardware's prefetcher stops at the end of a page

  struct Row {
    const T* x[kInputs];
  };
  struct Block {
    const T* x[kInputs][W];
    FASTOPS_INLINE Row row(int64_t r) const {
      Row row;
      for (int k = 0; k < kInputs; ++k) row.x[k] = x[k][r];
      return row;
    }
  };
  struct Cursors {
    RowCursor<T> of[kInputs];
    __attribute__((noinline)) void take(int64_t rows, Block& to) {
      for (int k = 0; k < kInputs; ++k) of[k].take(rows, [&](int64_t r, const T* row) { to.x[k][r] = row; });
    }
    Row take_one() {
      Block block;
      take(1, block);
      return block.row(0);
    }
  };
  struct Units {
    U x[kInputs];
  };
  struct State {
    U values[kStates];
  };

 public:
  explicit RowEngine(const Op& op) : op_(op) {}

  void rows(int64_t row_begin, int64_t row_end) const {
    if (n_ > kSegmentElements)
      long_rows(row_begin, row_end);
    else
      n_ <= 2 * N ? short_rows<true>(row_begin, row_end) : short_rows<false>(row_begin, row_end);
    if (past_caches_) end_of_stream();
  }

  void segments(Pass pass, double* found, int64_t task_begin, int64_t task_end) const {
    if (kFound == 0 && pass == Pass::sums) return;
    const int64_t of_row = (n_ + kSegmentElements - 1) / kSegmentElements;
    Row row;
    A state[kStates] = {};
    for (int64_t task = task_begin; task < task_end; ++task) {
      const int64_t r = task / of_row, s = task % of_row;
      if (task == task_begin || s == 0) {
        row = cursors(r).take_one();
        if (pass == Pass::write) {
          double total[kRowFound] = {};
          for (int64_t i = 0; kFound > 0 && !op_.skips(r) && i < of_row; ++i)
            add_segment(total, found + kRowFound * (r * of_row + i), i == 0);
          finish(r, total, state, s == 0);
        }
      }
      if (pass == Pass::write)
        write_segment(r, row, s * kSegmentElements, state);
      else if (!op_.skips(r))
        measure(row, s * kSegmentElements, found + kRowFound * task);
    }
    if (past_caches_) end_of_stream();
  }

 private:
  Cursors cursors(int64_t row) const { return cursors(row, typename make_indices<kInputs>::type{}); }

  template <int... K>
  Cursors cursors(int64_t row, indices<K...>) const {
    return {{RowCursor<T>(op_.input(K), row)...}};
  }

  template <class Part>
  static FASTOPS_INLINE Units load_units(const Row& row, int64_t j, Part part) {
    Units u;
    for (int k = 0; k < kInputs; ++k) u.x[k] = load(row.x[k] + j, part);
    return u;
  }

  // f(i, part) for the units of n elements, of which there are at most two if Few: then without a loop.
  template <bool Few, class F>
  static FASTOPS_INLINE void for_units_of(int64_t n, F f) {
    if constexpr (!Few) return for_units<T>(n, f);
    if (n < N) return f(int64_t{0}, first{n});
    f(int64_t{0}, whole{});
    if (n == 2 * N)
      f(N, whole{});
    else if (n > N)
      f(N, first{n - N});
  }

  // Asks for the lines of the unit at p[i], to write if Write is 1. i is a multiple of a unit.
  template <int Write, class E>
  static FASTOPS_INLINE void fetch(const E* p, int64_t i) {
    constexpr int64_t kLine = 64 / sizeof(E);
    if constexpr (N >= kLine) {
      for (int64_t k = 0; k < N; k += kLine) __builtin_prefetch(p + i + k, Write);
    } else if (i % kLine == 0) {
      __builtin_prefetch(p + i, Write);
    }
  }
  static FASTOPS_INLINE void fetch_row(const Row& row, int64_t i) {
    for (int k = 0; k < kInputs; ++k) fetch<0>(row.x[k], i);
  }

  // The lanes' peaks of columns [j, j + count).
  template <bool Few>
  FASTOPS_INLINE V peak(const Row& row, int64_t j, int64_t count) const {
    auto ranked = [&](int64_t i, auto part) { return op_.ranked(j + i, load_units(row, j + i, part).x); };
    if constexpr (!Few) return greatest_of_units<T>(count, ranked);
    U greatest = least<T>();
    for_units_of<Few>(count, [&](int64_t i, auto part) {
      greatest = greater_of{}(greatest, fill<T>(ranked(i, part), part, least<T>()));
    });
    return fold_greatest(greatest);
  }
  static FASTOPS_INLINE V center(V peak) { return select(peak == like(V{}, -__builtin_inf()), V{}, peak); }

  // The lanes' sums of columns [j, j + count). What terms() returns goes to `held`, unit by unit. next(i) asks for
  // memory that is needed next, because it would be idle beside the arithmetic.
  template <bool Few, bool Hold, class Next>
  FASTOPS_INLINE lane_sums<V, kSums> sums(const Row& row, int64_t j, int64_t count, A center, A* held,
                                          Next next) const {
    const U from = every<T>(center);
    auto terms = [&](int64_t i, auto part, U* s) {
      next(i);
      const U kept = op_.terms(j + i, load_units(row, j + i, part).x, from, s);
      for (int k = 0; k < kSums; ++k) s[k] = keep<T>(s[k], part);
      if constexpr (Hold) hold(held + i, kept);
    };
    if constexpr (!Few) return sum_units<T, kSums>(count, terms);
    U unit[kSums], total[kSums] = {};
    lane_sums<V, kSums> lanes;
    for_units_of<Few>(count, [&](int64_t i, auto part) {
      terms(i, part, unit);
      for (int k = 0; k < kSums; ++k) total[k] = total[k] + unit[k];
    });
    for (int k = 0; k < kSums; ++k) lanes.values[k] = fold(total[k]);
    return lanes;
  }

  FASTOPS_INLINE R* output(int64_t row, int64_t j) const { return static_cast<R*>(op_.output()) + row * n_ + j; }

  // Columns [j, j + count) of a row of the output: f(i, part).
  template <bool Few, class F>
  FASTOPS_INLINE void put_units(int64_t row, int64_t j, int64_t count, F f) const {
    R* to = output(row, j);
    auto all = [&](auto put) {
      for_units_of<Few>(count, [&](int64_t i, auto part) { put(to + i, part, f(i, part)); });
    };
    if (past_caches_)
      all([](R* p, auto part, U v) { put_as<true, T>(p, part, v); });
    else
      all([](R* p, auto part, U v) { put_as<false, T>(p, part, v); });
  }

  __attribute__((noinline)) void write_zeros(int64_t row, int64_t j, int64_t count) const {
    put_units<false>(row, j, count, [](int64_t, auto) { return U{}; });
  }

  // Several rows at once. The output's lines are asked for while the sums are taken, because stores that miss
  // the caches wait for each other; the next rows while these are written.
  template <bool Few>
  void short_rows(int64_t row_begin, int64_t row_end) const {
    Room<A> held;
    const int64_t padded = (n_ + N - 1) / N * N;
    const int64_t fitting = kBlockElements / padded, step = fitting < 1 ? 1 : fitting < W ? fitting : W;
    Block blocks[2];
    alignas(64) A found[kFound + 1][W] = {}, centers[W] = {}, states[kStates][W];
    row_sums<A> lanes[kSums + 1];
    Cursors next = cursors(row_begin);
    Block *block = &blocks[0], *ahead = &blocks[1];
    auto rows_at = [&](int64_t row) { return row_end - row < step ? row_end - row : step; };
    next.take(rows_at(row_begin), *ahead);
    for (int64_t row = row_begin; row < row_end; row += step) {
      const int64_t rows = rows_at(row), more = rows_at(row + rows);
      Block* done = block;
      block = ahead;
      ahead = done;
      if (more < rows) *ahead = *block;
      next.take(more, *ahead);
      if constexpr (Op::kPeak) {
        for (int64_t r = 0; r < rows; ++r)
          lanes[0].of_row[r] = op_.skips(row + r) ? V{} : peak<Few>(block->row(r), 0, n_);
        lanes[0].finish(rows, found[0], greater_of{});
        store(centers, center(load(found[0])));
      }
      if constexpr (kSums > 0) {
        for (int64_t r = 0; r < rows; ++r) {
          if (op_.skips(row + r)) {
            for (int k = 0; k < kSums; ++k) lanes[k].of_row[r] = V{};
            continue;
          }
          // Inlined by force: GCC drops a call of what only prefetches as one without effect.
          auto ask = [&, to = output(row + r, 0)](int64_t i) __attribute__((always_inline)) {
            if (asks_) fetch<1>(to, i);
          };
          const auto of_row = sums<Few, Op::kHolds>(block->row(r), 0, n_, centers[r], held.values + r * padded, ask);
          for (int k = 0; k < kSums; ++k) lanes[k].of_row[r] = of_row.values[k];
        }
        for (int k = 0; k < kSums; ++k) lanes[k].finish(rows, found[Op::kPeak + k]);
      }
      finish_lanes(row, rows, found, states, true);
      if constexpr (Op::kWrites)
        for (int64_t r = 0; r < rows; ++r) {
          if (op_.skips(row + r)) {
            write_zeros(row + r, 0, n_);
            continue;
          }
          State state;
          for (int k = 0; k < kState; ++k) state.values[k] = every<T>(states[k][r]);
          put_units<Few>(row + r, 0, n_, [&](int64_t i, auto part) {
            if (fetches_) fetch_row(ahead->row(r), i);
            if constexpr (Op::kHolds)
              return op_.write_held(load_held<T>(held.values + r * padded + i, whole{}), state.values);
            else
              return op_.write(row + r, i, load_units(block->row(r), i, part).x, state.values);
          });
        }
    }
  }

  __attribute__((noinline)) void finish_lanes(int64_t row, int64_t rows, const A (*found)[W], A (*states)[W],
                                              bool saves) const {
    V of_rows[kFound + 1], state[kStates];
    for (int k = 0; k < kFound; ++k) of_rows[k] = load(found[k]);
    op_.finish(row, rows, of_rows, state);
    if constexpr (Op::kSaves)
      if (saves) op_.save(row, rows, of_rows, state);
    for (int k = 0; k < kState; ++k) store(states[k], state[k]);
  }

  FASTOPS_INLINE int64_t count_at(int64_t j) const { return n_ - j < kSegmentElements ? n_ - j : kSegmentElements; }

  // Of the segment at column j. Compiled once, as what follows is, so that products fuse into sums in one way.
  __attribute__((noinline)) void measure(const Row& row, int64_t j, double* found) const {
    const int64_t count = count_at(j);
    A from = 0;
    if constexpr (Op::kPeak) {
      const A top = join_lanes(greater_of{}, peak<false>(row, j, count));
      found[0] = top;
      from = center(splat(top))[0];
    }
    if constexpr (kSums > 0) {
      auto ask = [&](int64_t i) __attribute__((always_inline)) {
        fetch_row(row, j + i + (Op::kPeak ? kSegmentElements : kAhead<T>));
      };
      const auto lanes = sums<false, false>(row, j, count, from, nullptr, ask);
      for (int k = 0; k < kSums; ++k) found[Op::kPeak + k] = sum_lanes(lanes.values[k]);
    }
  }

  __attribute__((noinline)) void add_segment(double* total, const double* segment, bool is_first) const {
    if (is_first)
      for (int k = 0; k < kFound; ++k) total[k] = segment[k];
    else
      op_.merge(total, segment);
  }

  __attribute__((noinline)) void finish(int64_t row, const double* total, A* state, bool saves) const {
    alignas(64) A found[kFound + 1][W] = {}, states[kStates][W];
    for (int k = 0; k < kFound; ++k) found[k][0] = static_cast<A>(total[k]);
    finish_lanes(row, 1, found, states, saves);
    for (int k = 0; k < kState; ++k) state[k] = states[k][0];
  }

  __attribute__((noinline)) void write_segment(int64_t row, const Row& from, int64_t j, const A* known) const {
    if constexpr (Op::kWrites) {
      if (op_.skips(row)) return write_zeros(row, j, count_at(j));
      State state;
      for (int k = 0; k < kState; ++k) state.values[k] = every<T>(known[k]);
      const R* to = output(row, j);
      put_units<false>(row, j, count_at(j), [&](int64_t i, auto part) {
        if (asks_) fetch<1>(to, i + kAhead<R>);
        return op_.write(row, j + i, load_units(from, j + i, part).x, state.values);
      });
    }
  }

  void long_rows(int64_t row_begin, int64_t row_end) const {
    Cursors next = cursors(row_begin);
    A state[kStates];
    for (int64_t row = row_begin; row < row_end; ++row) {
      const Row from = next.take_one();
      double total[kRowFound] = {}, segment[kRowFound];
      for (int64_t j = 0; kFound > 0 && !op_.skips(row) && j < n_; j += kSegmentElements) {
        measure(from, j, segment);
        add_segment(total, segment, j == 0);
      }
      finish(row, total, state, true);
      for (int64_t j = 0; Op::kWrites && j < n_; j += kSegmentElements) write_segment(row, from, j, state);
    }
  }

  const Op& op_;
  const int64_t n_ = op_.n();
  const bool past_caches_ = Op::kWrites && sizeof(R) >= sizeof(T) && streams<R>(op_.output(), op_.rows(), n_);
  // A row of one line costs less than asking for it.
  const bool fetches_ = n_ * int64_t{sizeof(T)} > 64;
  const bool asks_ = fetches_ && Op::kWrites && !past_caches_;
};

}  // namespace fastops::FASTOPS_ISA
