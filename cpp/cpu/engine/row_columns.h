#pragma once
// The body of the backward of operators with column operands: an output of each row, and sums over the rows, a number a
// column. An Op is a policy:
//
//   T                        the elements that are read and written
//   kInputs, kSums           rows that are read, sums over a row that the output needs
//   kState                   numbers of a row
//   kColumnSums              sums over the rows, for each column
//   rows(), n(), chunks()    the rows of a chunk are summed in their order
//   input(k), addend()       rows, one at a stride from the next. The addend is added to the output; null: none
//   output()                 rows without gaps; null: only sums over rows are asked for
//   partial()                [chunks, kColumnSums, n]; null: only the output is asked for
//   column()                 the column operand
//   read(row, rows, state)   sets numbers of up to a vector's number of rows, a lane each, that are known beforehand
//   terms(part, x, column, state, sums)
//                            sets a unit's terms of the sums over a row, 0 behind the row's end
//   finish(rows, sums, state)
//                            sets the numbers that depend on the sums
//   prepare(x, state)        replaces a unit of each input by what the next two read
//   add_columns(x, sums)     adds to a unit's sums over rows
//   write(x, column, state)  the output's unit, but for the addend
//
// A first pass takes the sums over a row. A second goes by strips of columns through several rows, so that the sums over
// rows stay in registers meanwhile, or a row at a time, as memory has them. A long row goes in segments, which stay in L1
// from pass to pass.
#include "cpu/engine/columns.h"
#include "cpu/engine/stream.h"
#include "cpu/engine/sums.h"
#include "problem/row.h"

namespace fastops::FASTOPS_ISA {

// Elements of the rows that go together: the second reading is from L1, of long rows from L2, or each would have to read
// and write its chunk's sums. The half types, bound by arithmetic, gain by more rows; the others lose, the most where rows lie
// a multiple of 4096 bytes apart, which share their places in L1.
template <class T>
constexpr int64_t kBlockElements = sizeof(T) == 2 ? 8192 : 8192 / sizeof(T);
template <class T>
constexpr int64_t kLongBlockRows = sizeof(T) == 2 ? 4 : 2;
constexpr int64_t kLongBlockElements = 65536;

// Rows of n elements, each `stride` elements behind the one before.
struct StridedRows {
  const void* data;
  int64_t stride;
};

template <class Op>
class RowColumnsEngine {
  using T = typename Op::T;
  using A = accumulate_t<T>;
  using V = typename simd<A>::vec;
  using U = unit_t<T>;
  static constexpr int64_t W = simd<A>::size;
  static constexpr int64_t N = kUnit<T>;
  static constexpr int kInputs = Op::kInputs, kSums = Op::kSums, kState = Op::kState, kColumnSums = Op::kColumnSums;
  // Units of a column strip: whole lines, and the sums in registers, of which AVX2 has sixteen.
  static constexpr int kStrip = (kColumnSums > 1 && sizeof(T) != 2 && FASTOPS_VECTOR_BYTES == 32 ? 2 : 4) * W / N;

  // The rows of a block, and the numbers of each.
  struct Block {
    int64_t rows;
    const T *x[kInputs][W], *addend[W];
    T* output[W];
    alignas(64) A state[kState][W];
  };
  struct State {
    U values[kState];
  };

 public:
  explicit RowColumnsEngine(const Op& op) : op_(op) {}

  void chunks(int64_t begin, int64_t end) const {
    for (int64_t chunk = begin; chunk < end; ++chunk) run_chunk(chunk);
    if (past_caches_) end_of_stream();
  }

  // Segments of chunks: segment s of chunk c is task c·(segments of a row) + s.
  void segments(Pass pass, double* found, int64_t task_begin, int64_t task_end) const {
    const int64_t of_row = (n_ + kSegment<A> - 1) / kSegment<A>;
    for (int64_t task = task_begin; task < task_end;) {
      const int64_t first = task % of_row, left = task_end - task;
      const int64_t last = first + left < of_row ? first + left : of_row;
      run_segments(pass, found, task / of_row, of_row, first, last);
      task += last - first;
    }
    if (past_caches_) end_of_stream();
  }

 private:
  static FASTOPS_INLINE const T* row_of(const StridedRows& rows, int64_t row) {
    return static_cast<const T*>(rows.data) + row * rows.stride;
  }
  FASTOPS_INLINE void begin(Block& block, int64_t row, int64_t rows) const {
    block.rows = rows;
    for (int64_t r = 0; r < rows; ++r) {
      for (int k = 0; k < kInputs; ++k) block.x[k][r] = row_of(inputs_[k], row + r);
      block.addend[r] = addend_.data ? row_of(addend_, row + r) : nullptr;
      block.output[r] = output_ ? output_ + (row + r) * n_ : nullptr;
    }
    read(block, row);
  }

  // Compiled once: where begin() goes, a loop with a question in it would be there several times over.
  __attribute__((noinline)) void read(Block& block, int64_t row) const { op_.read(row, block.rows, block.state); }

  FASTOPS_INLINE State state_of(const Block& block, int64_t r) const {
    State state;
    for (int k = 0; k < kState; ++k) state.values[k] = every<T>(block.state[k][r]);
    return state;
  }

  // The sums over columns [j, j + count) of each row. Asks for the lines of the output, because stores that miss the caches
  // wait for each other. Compiled once, as write_columns is, so that products fuse into sums in one way whoever calls.
  template <class P>
  __attribute__((noinline)) void sum_columns(const Block& block, int64_t j, int64_t count, const P* column,
                                             A (*found)[W]) const {
    row_sums<A> sums[kSums];
    const bool asks = output_ && !past_caches_;
    for (int64_t r = 0; r < block.rows; ++r) {
      const T *x[kInputs], *to = block.output[r] + j;
      for (int k = 0; k < kInputs; ++k) x[k] = block.x[k][r] + j;
      const State state = state_of(block, r);
      const auto of_row = sum_units<T, kSums>(count, [&](int64_t i, auto part, U* s) {
        if (asks && starts_line(i)) __builtin_prefetch(to + i, 1);
        U of_x[kInputs];
        for (int k = 0; k < kInputs; ++k) of_x[k] = load(x[k] + i, part);
        op_.terms(part, of_x, load_as<T>(column + i, part), state.values, s);
      });
      for (int k = 0; k < kSums; ++k) sums[k].of_row[r] = of_row.values[k];
    }
    for (int k = 0; k < kSums; ++k) sums[k].finish(block.rows, found[k]);
  }

  // Add a unit's sum to partial sums, or store it if `fresh`. Partial sums are in the order of the elements.
  template <class Part>
  static FASTOPS_INLINE void add_to(A* to, Part part, bool fresh, U sum) {
    if constexpr (sizeof(T) == 2) {
      const U ordered = from_lanes_of<T>(sum);
      if constexpr (__is_same(Part, whole))
        store_pair(to, fresh ? ordered : load_pair(to) + ordered);
      else
        store_pair_first(to, part.count, fresh ? ordered : load_pair_first(to, part.count) + ordered);
    } else {
      store(to, part, fresh ? sum : load(to, part) + sum);
    }
  }

  template <int Units, bool Stream, class P, class Part>
  FASTOPS_INLINE void strip(const Block& block, int64_t j, const P* column, A* partial, bool fresh, Part part) const {
    U sums[Units][kColumnSums] = {}, of_column[Units];
    for (int k = 0; k < Units; ++k) of_column[k] = load_as<T>(column + k * N, part);
    int64_t ahead[kInputs];
    for (int i = 0; i < kInputs; ++i) ahead[i] = block.rows * inputs_[i].stride;
    for (int64_t r = 0; r < block.rows; ++r) {
      // The addresses are loaded before the stores below, because the compiler assumes that a store may overwrite them.
      const T *x[kInputs], *addend = block.addend[r];
      for (int i = 0; i < kInputs; ++i) x[i] = block.x[i][r] + j;
      T* output = block.output[r];
      const State state = state_of(block, r);
      U of_x[Units][kInputs];
#pragma GCC unroll 4
      for (int k = 0; k < Units; ++k) {
        if (k * N * sizeof(T) % 64 == 0)
          for (int i = 0; i < kInputs; ++i) __builtin_prefetch(x[i] + ahead[i] + k * N);
        for (int i = 0; i < kInputs; ++i) of_x[k][i] = load(x[i] + k * N, part);
        op_.prepare(of_x[k], state.values);
        op_.add_columns(of_x[k], sums[k]);
      }
      if (!output) continue;
#pragma GCC unroll 4
      for (int k = 0; k < Units; ++k) {
        U v = op_.write(of_x[k], of_column[k], state.values);
        if (addend) v = v + load(addend + j + k * N, part);
        put<Stream>(output + j + k * N, part, v);
      }
    }
    if (!partial) return;
    for (int k = 0; k < Units; ++k)
      for (int s = 0; s < kColumnSums; ++s) add_to(partial + s * n_ + j + k * N, part, fresh, sums[k][s]);
  }

  // Whether unit i is the first of a cache line, where rows start at one.
  static FASTOPS_INLINE bool starts_line(int64_t i) {
    constexpr int64_t kLine = 64 / sizeof(T);
    return N >= kLine || i % kLine == 0;
  }

  // Rows [first_row, first_row + R) of a block, each from its first column to its last, and what they add to `to`. A policy
  // rounds products that the compiler could fuse here and not in strip(): a row has the same bits by either.
  template <int R, bool Stream, class P>
  FASTOPS_INLINE void write_rows(const Block& block, int64_t first_row, int64_t j, int64_t count, const P* column,
                                 A* const (&to)[kColumnSums], bool fresh) const {
    const T *x[R][kInputs], *addend[R];
    T* output[R];
    State state[R];
#pragma GCC unroll 2
    for (int k = 0; k < R; ++k) {
      const int64_t r = first_row + k;
      for (int i = 0; i < kInputs; ++i) x[k][i] = block.x[i][r] + j;
      addend[k] = block.addend[r] + j;
      output[k] = block.output[r] + j;
      state[k] = state_of(block, r);
    }
    const bool writes = output_, adds = addend_.data;
    A* sums_at[kColumnSums];
    for (int s = 0; s < kColumnSums; ++s) sums_at[s] = to[s];
    int64_t ahead[kInputs];
    for (int i = 0; i < kInputs; ++i) ahead[i] = block.rows * inputs_[i].stride;
    const int64_t addend_ahead = block.rows * addend_.stride;
    for_units<T>(count, [&](int64_t i, auto part) {
      U sums[kColumnSums] = {};
      if (sums_at[0] && !fresh)
        for (int s = 0; s < kColumnSums; ++s) sums[s] = load(sums_at[s] + i, part);
      const U of_column = load_as<T>(column + i, part);
#pragma GCC unroll 2
      for (int k = 0; k < R; ++k) {
        if (starts_line(i)) {
          for (int q = 0; q < kInputs; ++q) __builtin_prefetch(x[k][q] + ahead[q] + i);
          if (adds) __builtin_prefetch(addend[k] + addend_ahead + i);
        }
        U of_x[kInputs];
        for (int q = 0; q < kInputs; ++q) of_x[q] = load(x[k][q] + i, part);
        op_.prepare(of_x, state[k].values);
        op_.add_columns(of_x, sums);
        if (!writes) continue;
        U v = op_.write(of_x, of_column, state[k].values);
        if (adds) v = v + load(addend[k] + i, part);
        put<Stream>(output[k] + i, part, v);
      }
      if (!sums_at[0]) return;
      for (int s = 0; s < kColumnSums; ++s) store(sums_at[s] + i, part, sums[s]);
    });
  }

  template <bool Stream, class P>
  FASTOPS_INLINE void write_by_rows(const Block& block, int64_t j, int64_t count, const P* column, A* partial,
                                    bool fresh) const {
    // Many rows are added up by themselves first: rounding errors grow with the rows of a block and the blocks of a chunk.
    Room<A> room[kColumnSums];
    const bool apart = partial && block.rows > kLongBlockRows<T>;
    A *own[kColumnSums], *sums[kColumnSums];
    for (int s = 0; s < kColumnSums; ++s) {
      own[s] = partial ? partial + s * n_ + j : nullptr;
      sums[s] = apart ? room[s].values : own[s];
    }
    const bool begins = apart || fresh;
    int64_t r = 0;
    // Two share a reading of the sums; memory would rather have one row's lines, of which the shortest have few.
    if (!leaves_caches_ || n_ * int64_t{sizeof(T)} <= 256)
      for (; r + 2 <= block.rows; r += 2) write_rows<2, Stream>(block, r, j, count, column, sums, begins && r == 0);
    for (; r < block.rows; ++r) write_rows<1, Stream>(block, r, j, count, column, sums, begins && r == 0);
    for (int s = 0; apart && s < kColumnSums; ++s)
      for_units<T>(count, [&](int64_t i, auto part) {
        const U sum = load(sums[s] + i, part);
        store(own[s] + i, part, fresh ? sum : load(own[s] + i, part) + sum);
      });
  }

  template <class P>
  __attribute__((noinline)) void write_columns(const Block& block, int64_t j, int64_t count, const P* column,
                                               A* partial, bool fresh) const {
    if constexpr (sizeof(T) != 2)
      if (by_rows_)
        return past_caches_ ? write_by_rows<true>(block, j, count, column, partial, fresh)
                            : write_by_rows<false>(block, j, count, column, partial, fresh);
    int64_t i = 0;
    if (past_caches_)
      for (; i + kStrip * N <= count; i += kStrip * N)
        strip<kStrip, true>(block, j + i, column + i, partial, fresh, whole{});
    else
      for (; i + kStrip * N <= count; i += kStrip * N)
        strip<kStrip, false>(block, j + i, column + i, partial, fresh, whole{});
    for (; i + N <= count; i += N) strip<1, false>(block, j + i, column + i, partial, fresh, whole{});
    if (i < count) strip<1, false>(block, j + i, column + i, partial, fresh, first{count - i});
  }

  static int64_t block_rows(int64_t padded) {
    auto least = [](int64_t a, int64_t b) { return a < b ? a : b; };
    const int64_t fitting = kBlockElements<T> / padded,
                  long_ones = least(kLongBlockElements / padded, kLongBlockRows<T>);
    const int64_t rows = least(fitting < long_ones ? long_ones : fitting, W);
    return rows < 1 ? 1 : rows;
  }

  // f(block, first row, whether it is the chunk's first, partial sums) for the blocks of a chunk.
  template <class F>
  FASTOPS_INLINE void for_blocks(int64_t chunk, F f) const {
    const int64_t begin_row = chunk * op_.rows() / op_.chunks(), end_row = (chunk + 1) * op_.rows() / op_.chunks();
    A* partial = op_.partial() ? static_cast<A*>(op_.partial()) + chunk * kColumnSums * n_ : nullptr;
    const int64_t step = block_rows((n_ + N - 1) / N * N);
    Block block;
    for (int64_t row = begin_row; row < end_row; row += step) {
      begin(block, row, end_row - row < step ? end_row - row : step);
      f(block, row, row == begin_row, partial);
    }
  }

  // Call f with the address of the column operand from column j on, in place or in `room`.
  template <class F>
  FASTOPS_INLINE void with_column(int64_t j, int64_t count, Room<A>& room, F f) const {
    if (column_.in_place())
      f(column_.place(j));
    else
      f(column_.at(j, count, room.values));
  }

  void run_chunk(int64_t chunk) const {
    Room<A> room;
    const bool held = n_ <= (column_.in_place() ? kHeldColumns : kSegment<A>);
    const A* prepared = held ? column_.at(0, n_, room.values) : nullptr;
    // f(j, count, the column operand) for each segment of the columns.
    auto for_segments = [&](auto f) {
      if (held) return f(0, n_, prepared);
      for (int64_t j = 0; j < n_; j += kSegment<A>) {
        const int64_t count = n_ - j < kSegment<A> ? n_ - j : kSegment<A>;
        with_column(j, count, room, [&](const auto* column) { f(j, count, column); });
      }
    };
    for_blocks(chunk, [&](Block& block, int64_t, bool fresh, A* partial) {
      if (output_) {
        A totals[kSums][W] = {}, found[kSums][W];
        for_segments([&](int64_t j, int64_t count, const auto* column) {
          sum_columns(block, j, count, column, found);
          for (int k = 0; k < kSums; ++k)
            for (int64_t r = 0; r < block.rows; ++r) totals[k][r] += found[k][r];
        });
        op_.finish(block.rows, totals, block.state);
      }
      for_segments([&](int64_t j, int64_t count, const auto* column) {
        write_columns(block, j, count, column, partial, fresh);
      });
    });
  }

  // Segments [first, last) of a chunk's rows.
  void run_segments(Pass pass, double* found, int64_t chunk, int64_t of_row, int64_t first, int64_t last) const {
    Room<A> room;
    auto at = [&](int64_t row, int64_t segment) { return found + kRowFound * (row * of_row + segment); };
    for_blocks(chunk, [&](Block& block, int64_t row, bool fresh, A* partial) {
      A totals[kSums][W] = {};
      if (pass == Pass::write && output_) {
        for (int64_t r = 0; r < block.rows; ++r)
          for (int64_t s = 0; s < of_row; ++s)
            for (int k = 0; k < kSums; ++k) totals[k][r] += static_cast<A>(at(row + r, s)[k]);
        op_.finish(block.rows, totals, block.state);
      }
      for (int64_t s = first; s < last; ++s) {
        const int64_t j = s * kSegment<A>, count = n_ - j < kSegment<A> ? n_ - j : kSegment<A>;
        with_column(j, count, room, [&](const auto* column) {
          if (pass == Pass::write) return write_columns(block, j, count, column, partial, fresh);
          sum_columns(block, j, count, column, totals);
          for (int64_t r = 0; r < block.rows; ++r)
            for (int k = 0; k < kSums; ++k) at(row + r, s)[k] = totals[k][r];
        });
      }
    });
  }

  struct Inputs {
    StridedRows of[kInputs];
    FASTOPS_INLINE const StridedRows& operator[](int k) const { return of[k]; }
  };
  template <int... K>
  static Inputs inputs_of(const Op& op, indices<K...>) {
    return {{op.input(K)...}};
  }

  const Op& op_;
  const int64_t n_ = op_.n();
  const Inputs inputs_ = inputs_of(op_, typename make_indices<kInputs>::type{});
  const StridedRows addend_ = op_.addend();
  T* const output_ = static_cast<T*>(op_.output());
  const Column<T> column_ = op_.column();
  const bool past_caches_ = output_ && streams<T>(output_, op_.rows(), n_);
  const bool leaves_caches_ = op_.rows() * n_ * int64_t{sizeof(T)} > kCachedBytes;
  // Whether a pass over columns goes a row at a time, with the sums over rows in L1: memory has lines in their order then, and
  // long rows would have few in registers. Half types, bound by arithmetic, do not.
  const bool by_rows_ = sizeof(T) != 2 && (leaves_caches_ || n_ * kLongBlockRows<T> > kBlockElements<T> / 2);
};

}  // namespace fastops::FASTOPS_ISA
