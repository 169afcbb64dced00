#pragma once
// The body of the operators that reduce rows, that write rows from numbers of the row, or both. An Op is a policy:
//
//   T, R                       the elements that are read and written
//   kInputs, kSums, kState     rows that are read, sums over a row, numbers of a row that writing needs
//   kCenter                    the number of a segment that terms are distances from: Center::none, ::peak or ::sample
//   kWrites                    whether rows are written
//   kHolds                     whether short rows are written by write_held(), from what terms() returned
//   kSaves                     whether save() keeps numbers of a row
//   rows(), n(), input(k), output()
//   skips(row)                 whether a row is not read: it is finished from zeros and written as zeros
//   terms(j, part, x, center, sums)
//                              sets a unit's terms of the sums, 0 behind the row's end. x: a unit of each input at column
//                              j, of which `part` is in the row; center: 0 without one. Returns what write_held() reads
//   merge(total, segment)      joins the numbers found of segments, in f64: the center if there is one, then the sums
//   finish(row, rows, found, state)
//                              sets the state of up to a vector's number of rows, a lane each, from the numbers found
//   save(row, rows, found, state)
//                              stores numbers of rows, if kSaves
//   write(row, j, x, state), write_held(held, state)
//                              the output's unit; if there are columns, their units are the last argument
//
// Four groups of further words, each named by a constant:
//
//   kCenter     peak: the greatest ranked(j, x). The center is 0 if the peak is -inf.
//               sample: the mean of a segment's first kSample elements. A short row is one segment.
//   kMoments    The sums of a segment become moments, such as a mean: moments(count, sums, found) sets them from the
//               center, if there is one, and the sums. merge(total, segment, count) joins them to a total, which starts
//               from zeros. finish_total(total, state) takes the place of finish() if the row has several segments.
//               If there is a sample, moments() returns false where they do not hold because the center is too far
//               from the elements. The engine then sums about center(found), and calls moments_again(x, count, sums, found). A
//               short row is summed again if again(r, found, state), where r is its lane: about center_again(r, state).
//               finish_again(found, state) then sets its state from the moments.
//   kResidual   residual() are rows that are added to the input. The sum is rounded, stored in sum(), and takes the
//               input's place. No data means no residual.
//   kColumns    The number of operands with an element for each column: column(k).
//
// Several short rows go through each pass together, so that their sums are finished together. A long row goes in
// segments, each in L1 from pass to pass, and is read again to write. Which of both depends on n and the dtype alone.
#include "cpu/engine/columns.h"
#include "cpu/engine/lanes.h"
#include "cpu/engine/sums.h"
#include "problem/row.h"

namespace fastops::FASTOPS_ISA {

// Walks over the rows of a view. Only the first row may take a division. A view without data has no rows.
template <class T>
class RowCursor {
 public:
  RowCursor(const RowsView& view, int64_t row) : view_(view) {
    const int64_t outer = row < view.inner ? 0 : row / view.inner, inner = row - outer * view.inner;
    left_ = view.inner - inner;
    outer_ = static_cast<const T*>(view.data) + outer * view.outer_stride;
    at_ = outer_ + inner * view.inner_stride;
  }
  // f(r, row) for the next rows, which are mostly at one distance from each other.
  template <class F>
  FASTOPS_INLINE void take(int64_t rows, F f) {
    if (!view_.data) return;
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

enum class Center { none, peak, sample };

// Operators with columns prefetch cached rows only below this number of bytes: they have little arithmetic to hide it behind.
constexpr int64_t kCachedRowBytes = 2048;

template <class Op>
class RowEngine {
  using T = typename Op::T;
  using R = typename Op::R;
  using A = accumulate_t<T>;
  using V = typename simd<A>::vec;
  using U = unit_t<T>;
  static constexpr int64_t W = simd<A>::size, N = kUnit<T>, kSegmentElements = kSegment<A>;
  static constexpr int kInputs = Op::kInputs, kSums = Op::kSums, kState = Op::kState, kColumns = Op::kColumns;
  static constexpr int kCenters = Op::kCenter != Center::none, kFound = kCenters + kSums;
  static constexpr int kRead = kInputs + Op::kResidual;  // the residual is behind the inputs
  static constexpr bool kAgain = Op::kMoments && Op::kCenter == Center::sample;
  // Whether rows of at most two units go without a loop. Moments keep the loop, which fuses products into sums as in any row.
  static constexpr bool kUnrolls = !Op::kMoments;
  static constexpr int kStates = kState > 0 ? kState : 1;  // an array has an element
  static_assert(kFound <= kRowFound);
  // Of the short rows that go together: beside these, the output and the next rows have room in L1.
  static constexpr int64_t kBlockElements =
      kSegmentElements * sizeof(A) / (kInputs * sizeof(T) < sizeof(A) ? sizeof(A) : kInputs * sizeof(T));

  template <class E>
  static constexpr int64_t kAhead = 2048 / sizeof(E);  // the hardware's prefetcher stops at the end of a page

  struct Row {
    const T* x[kRead];
  };
  struct Block {
    const T* x[kRead][W];
    FASTOPS_INLINE Row row(int64_t r) const {
      Row row;
      for (int k = 0; k < kRead; ++k) row.x[k] = x[k][r];
      return row;
    }
  };
  struct Cursors {
    RowCursor<T> of[kRead];
    __attribute__((noinline)) void take(int64_t rows, Block& to) {
      for (int k = 0; k < kRead; ++k) of[k].take(rows, [&](int64_t r, const T* row) { to.x[k][r] = row; });
    }
    Row take_one() {
      Block block = {};
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
  struct ColumnUnits {
    U x[kColumns + 1];  // an array has an element
  };
  // Addresses of column operands, of dtype P.
  template <class P>
  struct Columns {
    const P* at[kColumns + 1];
    template <class Part>
    FASTOPS_INLINE ColumnUnits load(int64_t j, Part part) const {
      ColumnUnits u;
      for (int k = 0; k < kColumns; ++k) u.x[k] = load_as<T>(at[k] + j, part);
      return u;
    }
  };
  template <int kCount, int = 0>
  struct Rooms {
    Room<A> of[kCount];
  };
  template <int Unused>
  struct Rooms<0, Unused> {};

 public:
  explicit RowEngine(const Op& op) : op_(op) {}

  void rows(int64_t row_begin, int64_t row_end) const {
    if (n_ > kSegmentElements)
      long_rows(row_begin, row_end);
    else if (kUnrolls && n_ <= 2 * N)
      short_rows<kUnrolls>(row_begin, row_end);
    else
      short_rows<false>(row_begin, row_end);
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
            add_segment(total, found + kRowFound * (r * of_row + i), i);
          finish(r, total, state, s == 0);
        }
      }
      if (pass == Pass::write)
        write_segment(r, row, s * kSegmentElements, state, row);
      else if (!op_.skips(r))
        measure(r, row, s * kSegmentElements, found + kRowFound * task);
    }
    if (past_caches_) end_of_stream();
  }

 private:
  Cursors cursors(int64_t row) const { return cursors(row, typename make_indices<kRead>::type{}); }

  template <int... K>
  Cursors cursors(int64_t row, indices<K...>) const {
    return {{RowCursor<T>(view<K>(), row)...}};
  }
  template <int K>
  RowsView view() const {
    if constexpr (K == kInputs)
      return op_.residual();
    else
      return op_.input(K);
  }

  template <class Part>
  static FASTOPS_INLINE Units load_units(const Row& row, int64_t j, Part part) {
    Units u;
    for (int k = 0; k < kInputs; ++k) u.x[k] = load(row.x[k] + j, part);
    return u;
  }

  // Load input + residual at column j, not yet rounded.
  template <class Part>
  static FASTOPS_INLINE U load_sum(const Row& row, int64_t j, Part part) {
    return load(row.x[0] + j, part) + load(row.x[kInputs] + j, part);
  }
  FASTOPS_INLINE T* sum_at(int64_t row, int64_t j) const {
    if constexpr (Op::kResidual)
      return static_cast<T*>(op_.sum()) + row * n_ + j;
    else
      return nullptr;
  }
  // Return a row's addresses for the second reading: the stored sum takes the place of the input and the residual.
  FASTOPS_INLINE Row summed(int64_t r, Row row) const {
    if constexpr (Op::kResidual)
      if (row.x[kInputs]) {
        row.x[0] = sum_at(r, 0);
        row.x[kInputs] = nullptr;
      }
    return row;
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

  static FASTOPS_INLINE int64_t sampled(int64_t count) {
    if constexpr (Op::kCenter == Center::sample)
      return count < Op::kSample ? count : Op::kSample;
    else
      return 0;
  }
  // The lanes' sums of the first sampled(count) elements from column j on, whose mean is the center.
  FASTOPS_INLINE V sample(const Row& row, int64_t j, int64_t count) const {
    return sum_units<T, 1>(sampled(count),
                           [&](int64_t i, auto part, U* s) {
                             s[0] = load(row.x[0] + j + i, part);
                             if constexpr (Op::kResidual)
                               if (row.x[kInputs]) s[0] = rounded<T>(load_sum(row, j + i, part));
                           })
        .values[0];
  }

  // The lanes' sums of columns [j, j + count) of row r. What terms() returns goes to `held`, unit by unit. next(i) asks
  // for memory that is needed next, because it would be idle beside the arithmetic.
  template <bool Few, bool Hold, class Next>
  FASTOPS_INLINE lane_sums<V, kSums> sums(int64_t r, const Row& row, int64_t j, int64_t count, A center, A* held,
                                          Next next) const {
    const U from = every<T>(center);
    auto terms_of = [&](int64_t i, auto part, const U* x, U* s) {
      const U kept = op_.terms(j + i, part, x, from, s);
      if constexpr (Hold) hold(held + i, kept);
    };
    auto terms = [&](int64_t i, auto part, U* s) {
      next(i);
      terms_of(i, part, load_units(row, j + i, part).x, s);
    };
    if constexpr (Op::kResidual)
      if (row.x[kInputs]) {
        T* const to = sum_at(r, j);
        return sum_units<T, kSums>(count, [&](int64_t i, auto part, U* s) {
          next(i);
          const U sum = load_sum(row, j + i, part);
          store(to + i, part, sum);
          const U x = rounded<T>(sum);
          terms_of(i, part, &x, s);
        });
      }
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
    Block blocks[2] = {};
    alignas(64) A found[kFound + 1][W] = {}, centers[W] = {}, states[kStates][W];
    Rooms<kColumns> rooms;
    const bool in_place = columns_in_place() && (n_ > kHeldColumns || row_end - row_begin < 4);
    const Columns<A> widened = in_place ? Columns<A>{} : widen(0, n_, rooms);
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
      if (fetches_ && more < rows) *ahead = *block;
      next.take(more, *ahead);
      if constexpr (Op::kCenter == Center::sample) {
        for (int64_t r = 0; r < rows; ++r) lanes[0].of_row[r] = sample(block->row(r), 0, n_);
        lanes[0].finish(rows, found[0]);
        for (int64_t r = 0; r < rows; ++r) centers[r] = found[0][r] /= static_cast<A>(sampled(n_));
      }
      if constexpr (Op::kCenter == Center::peak) {
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
            if (kColumns == 0 && asks_) fetch<1>(to, i);
          };
          const auto of_row =
              sums<Few, Op::kHolds>(row + r, block->row(r), 0, n_, centers[r], held.values + r * padded, ask);
          for (int k = 0; k < kSums; ++k) lanes[k].of_row[r] = of_row.values[k];
        }
        for (int k = 0; k < kSums; ++k) lanes[k].finish(rows, found[kCenters + k]);
      }
      const bool again = finish_lanes(row, rows, found, states, true);
      if constexpr (kAgain)
        if (again) [[unlikely]]
          finish_again(*block, row, rows, found, states);
      if constexpr (Op::kWrites) {
        const Block* asked = fetches_ ? ahead : block;
        auto write_rows = [&](const auto& columns) {
          for (int64_t r = 0; r < rows; ++r) {
            if (op_.skips(row + r)) {
              write_zeros(row + r, 0, n_);
              continue;
            }
            State state;
            for (int k = 0; k < kState; ++k) state.values[k] = every<T>(states[k][r]);
            const Row from = summed(row + r, block->row(r));
            put_units<Few>(row + r, 0, n_, [&](int64_t i, auto part) {
              if (kColumns > 0)  // to ask for what is there costs less than a branch
                fetch_row(asked->row(r), i);
              else if (fetches_)
                fetch_row(ahead->row(r), i);
              if constexpr (Op::kHolds)
                return write_unit_held(load_held<T>(held.values + r * padded + i, whole{}), state, columns, i, part);
              else
                return write_unit(row + r, i, load_units(from, i, part), state, columns, i, part);
            });
          }
        };
        with_columns(in_place, 0, widened, write_rows);
      }
    }
  }

  // Whether all columns can be read in place, as a half type.
  FASTOPS_INLINE bool columns_in_place() const {
    bool all = kColumns > 0 && sizeof(T) == 2;
    if constexpr (kColumns > 0)
      for (int k = 0; k < kColumns; ++k) all = all && op_.column(k).in_place();
    return all;
  }
  FASTOPS_INLINE Columns<A> widen(int64_t j, int64_t count, Rooms<kColumns>& rooms) const {
    Columns<A> columns{};
    if constexpr (kColumns > 0)
      for (int k = 0; k < kColumns; ++k) columns.at[k] = op_.column(k).at(j, count, rooms.of[k].values);
    return columns;
  }
  // Call f with the addresses of the columns from j on: in place, or `widened`.
  template <class F>
  FASTOPS_INLINE void with_columns(bool in_place, int64_t j, const Columns<A>& widened, F f) const {
    if constexpr (kColumns > 0 && sizeof(T) == 2)
      if (in_place) {
        Columns<T> columns;
        for (int k = 0; k < kColumns; ++k) columns.at[k] = op_.column(k).place(j);
        return f(columns);
      }
    f(widened);
  }
  // Return the output's unit at column j of a row. The unit of a column operand is at `i` from its address.
  template <class C, class Part>
  FASTOPS_INLINE U write_unit(int64_t row, int64_t j, const Units& x, const State& state, const C& columns, int64_t i,
                              Part part) const {
    if constexpr (kColumns > 0)
      return op_.write(row, j, x.x, state.values, columns.load(i, part).x);
    else
      return op_.write(row, j, x.x, state.values);
  }
  template <class C, class Part>
  FASTOPS_INLINE U write_unit_held(U held, const State& state, const C& columns, int64_t i, Part part) const {
    if constexpr (kColumns > 0)
      return op_.write_held(held, state.values, columns.load(i, part).x);
    else
      return op_.write_held(held, state.values);
  }

  // Numbers of rows as lanes of vectors, in place, because a vector's load waits for stores of its lanes.
  static const V* lanes_of(const A (*numbers)[W]) { return reinterpret_cast<const V*>(numbers); }
  static V* lanes_of(A (*numbers)[W]) { return reinterpret_cast<V*>(numbers); }

  // Finish rows. Return whether a row must be summed again: then nothing is saved yet.
  __attribute__((noinline)) bool finish_lanes(int64_t row, int64_t rows, const A (*found)[W], A (*states)[W],
                                              bool saves) const {
    op_.finish(row, rows, lanes_of(found), lanes_of(states));
    bool again = false;
    if constexpr (kAgain)
      for (int64_t r = 0; r < rows; ++r) again |= op_.again(r, lanes_of(found), lanes_of(states));
    if constexpr (Op::kSaves)
      if (saves && !again) op_.save(row, rows, lanes_of(found), lanes_of(states));
    return again;
  }

  __attribute__((noinline)) void finish_again(const Block& block, int64_t row, int64_t rows, const A (*found)[W],
                                              A (*states)[W]) const {
    for (int64_t r = 0; r < rows; ++r) {
      if (!op_.again(r, lanes_of(found), lanes_of(states))) continue;
      double better[kRowFound];
      A of_row[kStates];
      measure_again(row + r, block.row(r), 0, n_, op_.center_again(r, lanes_of(states)), better);
      op_.finish_again(better, of_row);
      for (int k = 0; k < kState; ++k) states[k][r] = of_row[k];
    }
    if constexpr (Op::kSaves) op_.save(row, rows, lanes_of(found), lanes_of(states));
  }

  FASTOPS_INLINE int64_t count_at(int64_t j) const { return n_ - j < kSegmentElements ? n_ - j : kSegmentElements; }

  // Sum the segment at column j. Compiled once, as the next functions are, so that products fuse into sums in one way.
  __attribute__((noinline)) void measure(int64_t r, const Row& row, int64_t j, double* found) const {
    const int64_t count = count_at(j);
    A known[kFound + 1] = {}, from = 0;
    if constexpr (Op::kCenter == Center::sample)
      from = known[0] = sum_lanes(sample(row, j, count)) / static_cast<A>(sampled(count));
    if constexpr (Op::kCenter == Center::peak) {
      known[0] = join_lanes(greater_of{}, peak<false>(row, j, count));
      from = center(splat(known[0]))[0];
    }
    if constexpr (kSums > 0) {
      auto ask = [&](int64_t i) __attribute__((always_inline)) {
        if (kColumns == 0) fetch_row(row, j + i + (Op::kCenter == Center::peak ? kSegmentElements : kAhead<T>));
      };
      const auto lanes = sums<false, false>(r, row, j, count, from, nullptr, ask);
      for (int k = 0; k < kSums; ++k) known[kCenters + k] = sum_lanes(lanes.values[k]);
    }
    if constexpr (!Op::kMoments) {
      for (int k = 0; k < kFound; ++k) found[k] = known[k];
    } else if (!op_.moments(count, known, found)) [[unlikely]] {
      if constexpr (kAgain) measure_again(r, row, j, count, op_.center(found), found);
    }
  }

  __attribute__((noinline)) void measure_again(int64_t r, const Row& row, int64_t j, int64_t count, A center,
                                               double* found) const {
    const Row from = summed(r, row);
    A known[kFound] = {center};
    const auto lanes =
        sums<false, false>(r, from, j, count, center, nullptr, [](int64_t) __attribute__((always_inline)) {});
    for (int k = 0; k < kSums; ++k) known[kCenters + k] = sum_lanes(lanes.values[k]);
    op_.moments_again(from.x[0] + j, count, known, found);
  }

  __attribute__((noinline)) void add_segment(double* total, const double* segment, int64_t number) const {
    if constexpr (Op::kMoments)
      op_.merge(total, segment, count_at(number * kSegmentElements));
    else if (number == 0)
      for (int k = 0; k < kFound; ++k) total[k] = segment[k];
    else
      op_.merge(total, segment);
  }

  __attribute__((noinline)) void finish(int64_t row, const double* total, A* state, bool saves) const {
    alignas(64) A found[kFound + 1][W] = {}, states[kStates][W] = {};
    if constexpr (Op::kMoments) {
      op_.finish_total(total, state);
      for (int k = 0; k < kState; ++k) states[k][0] = state[k];
      if constexpr (Op::kSaves)
        if (saves) op_.save(row, 1, lanes_of(found), lanes_of(states));
    } else {
      for (int k = 0; k < kFound; ++k) found[k][0] = static_cast<A>(total[k]);
      finish_lanes(row, 1, found, states, saves);
      for (int k = 0; k < kState; ++k) state[k] = states[k][0];
    }
  }

  // `ahead` is the row whose elements are fetched.
  __attribute__((noinline)) void write_segment(int64_t row, const Row& row_read, int64_t j, const A* known,
                                               const Row& ahead) const {
    if constexpr (Op::kWrites) {
      const int64_t count = count_at(j);
      if (op_.skips(row)) return write_zeros(row, j, count);
      State state;
      for (int k = 0; k < kState; ++k) state.values[k] = every<T>(known[k]);
      const R* to = output(row, j);
      const Row from = summed(row, row_read);
      Rooms<kColumns> rooms;
      const bool in_place = columns_in_place();
      with_columns(in_place, j, in_place ? Columns<A>{} : widen(j, count, rooms), [&](const auto& columns) {
        put_units<false>(row, j, count, [&](int64_t i, auto part) {
          if (kColumns == 0 && asks_) fetch<1>(to, i + kAhead<R>);
          if (kColumns > 0) fetch_row(ahead, j + i);
          return write_unit(row, j + i, load_units(from, j + i, part), state, columns, i, part);
        });
      });
    }
  }

  // Rows that go together, a segment of each in turn, so that the columns of a segment stay in L1. Rows out of the caches do
  // not: the hardware prefetches fewer of them.
  static constexpr int64_t kLongRows = kColumns > 0 ? 4 : 1;

  void long_rows(int64_t row_begin, int64_t row_end) const {
    Cursors next = cursors(row_begin);
    Row from[kLongRows + 1];
    A states[kLongRows][kStates];
    const int64_t step = fetches_ ? 1 : kLongRows;
    from[0] = next.take_one();
    for (int64_t row = row_begin; row < row_end; row += step) {
      const int64_t rows = row_end - row < step ? row_end - row : step;
      for (int64_t r = 0; r < rows; ++r) {
        from[r + 1] = row + r + 1 < row_end ? next.take_one() : from[r];
        double total[kRowFound] = {}, segment[kRowFound];
        for (int64_t s = 0; kFound > 0 && !op_.skips(row + r) && s * kSegmentElements < n_; ++s) {
          measure(row + r, from[r], s * kSegmentElements, segment);
          add_segment(total, segment, s);
        }
        finish(row + r, total, states[r], true);
      }
      for (int64_t j = 0; Op::kWrites && j < n_; j += kSegmentElements)
        for (int64_t r = 0; r < rows; ++r) write_segment(row + r, from[r], j, states[r], from[step == 1 ? 1 : r]);
      from[0] = from[rows];
    }
  }

  const Op& op_;
  const int64_t n_ = op_.n();
  const bool past_caches_ = Op::kWrites && sizeof(R) >= sizeof(T) && streams<R>(op_.output(), op_.rows(), n_);
  const int64_t row_bytes_ = n_ * int64_t{sizeof(T)};
  // A row of one line costs less than asking for it.
  const bool fetches_ =
      row_bytes_ > 64 && (kColumns == 0 || row_bytes_ < kCachedRowBytes || op_.rows() * row_bytes_ > kCachedBytes);
  const bool asks_ = row_bytes_ > 64 && Op::kWrites && !past_caches_;
};

}  // namespace fastops::FASTOPS_ISA
