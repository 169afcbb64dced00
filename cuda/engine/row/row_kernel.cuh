#pragma once
// The kernel body of the operators that reduce rows, or walk over them. A team of threads reads a row, sums it, and
// writes an output of the row and the sum. The operator is a policy, Op:
//
//   In, Out, kInputs      dtype and number of the tensors read; dtype written (void: finish() saves all there is)
//   Accumulate, kWidth    dtype of the arithmetic; elements of a vector
//   Sum                   a monoid: zero(), merge(a, b); that of WithoutSum: none
//   row(r)                a Row: the addresses of row r; `skip`: the row does not count
//   add(sum, x, column, left)
//                         adds the elements x of a vector of each input, from `column` on. x has padding() behind the
//                         first `left` ones, of which there may be none
//   finish(row, sum, r, saves)
//                         the State that write() reads; `saves`: this thread alone may save numbers of the row. Without
//                         a Sum: finish(row, r, saves)
//   write(x, row, state, column, columns, y)
//                         the elements y of the output; `columns` only if there are column operands
//   kResidentThreads<Form>
//                         threads per multiprocessor that the registers of add() and write() leave room for
//   kPowers               add() and write() take a power for each element, so that a thread skips whole vectors behind
//                         the row's end. If not, such vectors are 0, which must not change a Sum about the first center
//
// Four groups of further words, each named by a constant:
//
//   kPeak       A Sum is relative to a peak, such as the largest element. Before a thread adds its vectors of a part, it
//               raises the Sum to their peak: peak(sum), peak(so_far, vector, left), raised(sum, peak). Lanes merge by
//               raising their Sums to one peak, and add(a, b) of those. add() may replace x by what write() reads, and
//               prepare(x, peak) replaces x likewise. weighted(state, peak) is the State for write(), because x is
//               relative to the thread's peak and not to the row's.
//   kCenter     A Sum is of distances from a center, first_center() at first. If again(sum), the row is summed once more
//               about center(row, sum), by add_about(center, sum, x, column, left). The center is finish()'s last argument.
//   kResidual   Row::residual, if given, is added to the input: combine(input, residual) is a vector that takes the
//               input's place and is written to Row::sum.
//   kColumns    The number of operands with an element for each column: column<P>(k), of dtype P, which is f32 if
//               columns_are_f32, else In.
//
// Each warp of a team, or the lanes that are one, has kVectors times as many consecutive vectors as lanes: lane l has
// vectors first + l, first + l + lanes, ... A row of one part stays in registers from its one load to its store. A block
// may have several parts, and reads all but the last once more to write. A thread adds up its vectors of the parts of a
// share. Then lanes are merged, the shares of a row, and warps. A block that writes parts in turn has no shares: a thread
// adds up its vectors of all parts, then lanes and warps are merged.
#include <algorithm>
#include <type_traits>

#include "dependent.cuh"
#include "engine/row/storage.cuh"
#include "engine/row/team.cuh"

namespace fastops::FASTOPS_ARCH {

// How a launch divides its rows.
struct RowShape {
  int64_t rows, n, first_row;  // first_row: the first row of the launch
  int shares, parts, part;     // shares of a row; parts of a share; vectors of a part
  int blocks;                  // blocks of a row, each with as many shares
};

struct NoCenter {};

// The base of operators that write rows and sum nothing. Its functions are never called.
struct WithoutSum {
  struct Sum {
    int none;
  };
  __device__ Sum zero() const { return {}; }
  __device__ Sum merge(const Sum& a, const Sum&) const { return a; }
  template <class Values>
  __device__ void add(Sum&, Values&, int64_t, int) const {}
};

template <int kInputs, int W, class A>
__device__ inline void copy_values(const A (&from)[kInputs][W], A (&to)[kInputs][W]) {
#pragma unroll
  for (int k = 0; k < kInputs; ++k) {
#pragma unroll
    for (int i = 0; i < W; ++i) to[k][i] = from[k][i];
  }
}

template <class Op, class Sum, class Values>
__device__ inline void add_elements(const Op& op, NoCenter, Sum& sum, Values& x, int64_t column, int left) {
  op.add(sum, x, column, left);
}
template <class Op, class Center, class Sum, class Values>
__device__ inline void add_elements(const Op& op, Center center, Sum& sum, Values& x, int64_t column, int left) {
  op.add_about(center, sum, x, column, left);
}

template <class Op>
__device__ inline auto first_center(const Op& op) {
  if constexpr (Op::kCenter)
    return op.first_center();
  else
    return NoCenter{};
}
template <class Op, class Row, class Sum, class Center>
__device__ inline auto finish_row(const Op& op, const Row& row, const Sum& sum, int64_t r, bool saves, Center center) {
  if constexpr (Op::kCenter)
    return op.finish(row, sum, r, saves, center);
  else
    return op.finish(row, sum, r, saves);
}

// Whether the values that add() leaves for write() fit in 32 registers. They stay there if a block has one part.
template <class Op, int kVectors>
constexpr bool kFitsInRegisters =
    Op::kPeak && kVectors * Op::kInputs * Op::kWidth * sizeof(typename Op::Accumulate) <= 128;

// The constants of a kernel that come from its rule (plan/row.h) and from the rows' addresses.
template <int kVectors_, int kLanes_, bool kOneWarp_, bool kManyTeams_, bool kWhole_, plan::row::Parts kParts_,
          int kThreads_>
struct RowForm {
  static constexpr int kVectors = kVectors_;       // of a thread
  static constexpr int kLanes = kLanes_;           // of a warp that have a row; 0: known when the kernel runs
  static constexpr bool kOneWarp = kOneWarp_;      // teams are lanes of a warp
  static constexpr bool kManyTeams = kManyTeams_;  // a block may have several teams
  static constexpr bool kWhole = kWhole_;          // rows consist of whole, aligned vectors
  static constexpr plan::row::Parts kParts = kParts_;
  static constexpr int kThreads = kThreads_;                                       // of a block, at most
  static constexpr int kMostWarps = kThreads > 256 ? 16 : kThreads > 128 ? 8 : 4;  // a power of two
};

// Threads per multiprocessor of operators with powers: 1536 if a thread's vectors take at most 16 registers as they are
// summed and written, and little else does. With 1024, cross_entropy 8192x32000 had 0.68 of a copy in place of 0.75,
// softmax f32 4096x8192 0.90 in place of 0.98 (H200). If the vectors take more registers, 1536 threads spill.
template <class Op, class Form>
constexpr int resident_threads(bool few_registers) {
  if (sizeof(typename Op::Accumulate) == 8) return 512;
  constexpr bool kWrites = !std::is_void_v<typename Op::Out>;
  constexpr int kBytes =
      Form::kVectors * Op::kInputs * Op::kWidth * (kWrites ? 4 : static_cast<int>(sizeof(typename Op::In)));
  return few_registers && Form::kWhole && kBytes <= 64 ? 1536 : 1024;
}

// The parts of a cluster's blocks are in shared memory if the operator has column operands.
template <class Op, class Form>
constexpr bool kInSharedMemory = Op::kColumns > 0 && Form::kParts == plan::row::Parts::cluster;
template <class Op, class Form>
using RowStorage = std::conditional_t<kInSharedMemory<Op, Form>, RowInShared<Op, Form>, RowInRegisters<Op, Form>>;

// Threads of a multiprocessor, at most.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
constexpr int kMultiprocessorThreads = 1024;
#elif defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ / 10 == 86 || __CUDA_ARCH__ / 10 == 87 || __CUDA_ARCH__ / 10 == 89 || __CUDA_ARCH__ >= 1200)
constexpr int kMultiprocessorThreads = 1536;
#else
constexpr int kMultiprocessorThreads = 2048;
#endif

// Blocks per multiprocessor that the compiler leaves registers for.
template <class Op, class Form>
constexpr int resident_blocks() {
  constexpr int kThreads = Op::template kResidentThreads<Form>;
  return std::max(1, std::min(kThreads, kMultiprocessorThreads) / Form::kThreads);
}

// A block's part of row_kernel.
template <class Op, class Form>
__device__ __forceinline__ void run_rows(const Op& op, const RowShape& shape) {
  using A = typename Op::Accumulate;
  using In = typename Op::In;
  using Sum = typename Op::Sum;
  constexpr int W = Op::kWidth, kVectors = Form::kVectors;
  constexpr bool kSums = !std::is_base_of_v<WithoutSum, Op>, kWrites = !std::is_void_v<typename Op::Out>;
  constexpr bool kWhole = Form::kWhole;
  using Values = A[Op::kInputs][W];
  constexpr bool kInCluster = Form::kParts == plan::row::Parts::cluster,
                 kInTurn = Form::kParts == plan::row::Parts::in_turn;
  // kOneBlock: a block has the whole row. kOnePart: a block has one part of a row, and loads it once.
  constexpr bool kOneBlock = Form::kParts == plan::row::Parts::one || kInTurn;
  constexpr bool kOnePart = Form::kParts == plan::row::Parts::one || (kWrites && !kInTurn);
  constexpr bool kKeeps = kOnePart && kFitsInRegisters<Op, kVectors>;

  const int lanes = Form::kLanes == 0 ? static_cast<int>(blockDim.x) : Form::kLanes;
  const int warps = Form::kOneWarp ? 1 : blockDim.x / 32, lane = Form::kOneWarp ? threadIdx.x : threadIdx.x % lanes;
  const LaneVectors<Form::kLanes> own{(static_cast<int>(threadIdx.x) - lane) * kVectors + lane, lane, lanes};
  const int blocks = kOneBlock ? 1 : shape.blocks, rank = kOneBlock ? 0 : blockIdx.x % blocks;
  const int64_t block = kOneBlock ? blockIdx.x : blockIdx.x / blocks;
  const int shares = kOnePart ? 1 : shape.shares / blocks, parts_of_share = kOnePart ? 1 : shape.parts;
  const int parts = shares * parts_of_share, first_part = rank * parts;
  // A team beyond the last row works on the last row and saves nothing, because the shuffles and barriers need all threads.
  const int64_t wanted = shape.first_row + (Form::kManyTeams ? block * blockDim.y + threadIdx.y : block);
  const bool is_row = !Form::kManyTeams || wanted < shape.rows;
  const int64_t r = is_row ? wanted : shape.rows - 1;

  __shared__ ClusterSums<typename Op::Sum, kRounds<Op>> cluster_sums;
  if constexpr (kInCluster) begin_cluster(cluster_sums);
  wait_for_earlier_kernels();
  let_next_kernel_start();

  const auto row = op.row(r);
  using Storage = RowStorage<Op, Form>;
  Storage storage(op, own);
  auto part_of = [&](int number, int64_t n) {
    if constexpr (Form::kParts == plan::row::Parts::one) return RowPart{0, static_cast<int>(n)};
    const int64_t first = int64_t{number} * shape.part * W;
    return RowPart{first, static_cast<int>(min(max(n - first, int64_t{0}), int64_t{shape.part} * W))};
  };
  // Short rows are read before their target is known, because waiting costs more than the wasted load.
  const int64_t n_to_read = !Form::kOneWarp && row.skip ? 0 : shape.n;
  auto widen = [&](int g, Values& x, bool is_first) {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) {
      const Vector<In, W> v = storage.input(k, g, is_first);
      device::widen(v, x[k]);
    }
  };
  // Whether vector g is skipped, because it lies behind n elements. In rows of whole vectors only where it saves powers:
  // a branch of single lanes takes longer than other arithmetic.
  auto is_behind = [&](int g, int n) {
    if constexpr (kWhole)
      return Op::kPowers && own.number(g) * W >= n;
    else
      return own.are_behind(g, W, n);
  };
  A peak = 0;  // of the thread's vectors so far: since its share of the sum began, or the writing pass
  auto raise = [&](Sum& sum, const RowPart& part) {
    if constexpr (Op::kPeak) {
      peak = op.peak(sum);
#pragma unroll
      for (int g = 0; g < kVectors; ++g) {
        const int i = own.number(g);
        if (is_behind(g, part.elements)) break;
        peak = op.peak(peak, storage.input(0, g, true), part.elements - i * W);
      }
      sum = op.raised(sum, peak);
    }
  };
  Values kept[kKeeps ? kVectors : 1];
  auto add_part = [&](auto center, Sum& sum, const RowPart& part) {
    constexpr bool kIsFirst = std::is_same_v<decltype(center), NoCenter>;
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      const int i = own.number(g);
      if (is_behind(g, part.elements)) break;
      const Sum before = sum;
      if (!kOnePart || kIsFirst) storage.arrive(row, g);
      Values x;
      widen(g, x, kIsFirst);
      add_elements(op, center, sum, x, part.first + i * W, part.elements - i * W);
      if (!kIsFirst && i * W >= part.elements) sum = before;  // padding is far from the center
      if constexpr (kKeeps) copy_values(x, kept[g]);
    }
  };
  auto merge_team = [&](const Sum& sum, int round) {
    return !Form::kOneWarp && warps > 1 ? merge_warps<Form::kMostWarps>(op, sum, round, warps) : sum;
  };
  // Each thread adds up its elements of all parts of a share before lanes merge; then shares are merged, and warps.
  auto sum_row = [&](auto center, int round) {
    constexpr bool kIsFirst = std::is_same_v<decltype(center), NoCenter>;
    Sum sum;
    for (int share = 0; share < shares; ++share) {
      const int first = first_part + share * parts_of_share;
      Sum of_share = op.zero();
      for (int number = first; number < first + parts_of_share; ++number) {
        const RowPart part = part_of(number, n_to_read);
        if (!kOnePart || kIsFirst) storage.load(row, part);
        raise(of_share, part);
        add_part(center, of_share, part);
        if (kOnePart && kIsFirst) storage.load_columns(part);  // they arrive while sums are merged
      }
      of_share = merge_lanes(op, of_share, lanes);
      if constexpr (kInCluster)
        send_to_cluster(of_share, cluster_sums, round, rank * shares + share, blocks, share == 0 && kIsFirst);
      sum = share == 0 ? of_share : op.merge(sum, of_share);
    }
    if constexpr (kInCluster) return merge_cluster(op, cluster_sums, round, shape.shares, warps);
    return merge_team(sum, round);
  };
  const bool saves = is_row && rank == 0 && threadIdx.x == 0;
  if constexpr (!kWrites) {
    op.finish(row, sum_row(NoCenter{}, 0), r, saves);
  } else {
    using Out = typename Op::Out;
    using Output = VectorStore<kWhole, W, kVectors, Out, Form::kLanes>;
    auto write_to = [&](Output& output, const RowPart& part, const auto& state, auto column_dtype) {
#pragma unroll
      for (int g = 0; g < kVectors; ++g) {
        if (is_behind(g, part.elements)) break;
        const int64_t column = part.first + own.number(g) * W;
        Values x;
        A y[W];
        if constexpr (kKeeps)
          copy_values(kept[g], x);
        else
          widen(g, x, false);
        if constexpr (Op::kPeak && !kKeeps) op.prepare(x, peak);
        if constexpr (Op::kColumns > 0) {
          using P = typename decltype(column_dtype)::type;
          A operands[Op::kColumns][W];
#pragma unroll
          for (int k = 0; k < Op::kColumns; ++k) storage.template operand<P>(k, part, g, operands[k]);
          op.write(x, row, state, column, operands, y);
        } else {
          op.write(x, row, state, column, y);
        }
        output.put(g, device::narrow_all<Out>(y));
      }
    };
    auto write = [&](const RowPart& part, const auto& state_of_row) {
      auto state = state_of_row;
      if constexpr (Op::kPeak) state = op.weighted(state_of_row, peak);
      const int n_to_write = is_row ? part.elements : 0;
      if constexpr (Op::kResidual)
        if (row.residual) {
          VectorStore<kWhole, W, kVectors, In, Form::kLanes> sum(row.sum + part.first, n_to_write, own);
#pragma unroll
          for (int g = 0; g < kVectors; ++g) sum.put(g, storage.input(0, g, true));
          sum.finish();
        }
      Output output(row.output + part.first, n_to_write, own);
      if constexpr (Op::kColumns > 0 && sizeof(In) == 2) {
        if (op.columns_are_f32)
          write_to(output, part, state, tag<float>{});
        else
          write_to(output, part, state, tag<In>{});
      } else {
        write_to(output, part, state, tag<In>{});
      }
      output.finish();
    };

    if constexpr (!kSums) {
      storage.load(row, part_of(first_part, n_to_read));
      write(part_of(first_part, shape.n), op.finish(row, r, saves));
    } else if constexpr (kInTurn) {
      // All passes over the parts are one loop, so that the code for a part exists once. The last pass begins with the
      // part that is still in registers, and goes on with the parts that are likeliest to be in a cache.
      auto center = first_center(op);
      Sum sum = op.zero();
      decltype(finish_row(op, row, sum, r, saves, center)) state = {};
      bool asks = true, writes = false;
      int round = 0;
#pragma unroll 1
      while (true) {
        Sum of_pass = op.zero();
#pragma unroll 1
        for (int k = 0; k < parts; ++k) {
          const int number = writes ? parts - 1 - k : k;
          const RowPart part = part_of(number, n_to_read);
          if (!writes || k > 0) {
            storage.load(row, part);
            raise(of_pass, part);
          }
          if (writes)
            write(part, state);
          else
            add_part(center, of_pass, part);
        }
        if (writes) break;
        of_pass = merge_team(merge_lanes(op, of_pass, lanes), round);
        if (asks) sum = of_pass;
        if constexpr (Op::kCenter) {
          asks = round == 0 && op.again(sum);
          ++round;
          if (__any_sync(~0u, asks)) {
            if (asks) center = op.center(row, sum);
            continue;
          }
        }
        state = finish_row(op, row, sum, r, saves, center);
        writes = true;
      }
    } else if constexpr (Op::kCenter) {
      Sum sum = sum_row(NoCenter{}, 0);
      auto center = op.first_center();
      const bool asks = op.again(sum);
      // Other teams of the warp, or of the block, take part and keep their sums.
      if (Form::kManyTeams && !Form::kOneWarp ? __syncthreads_or(asks) : __any_sync(~0u, asks)) {
        const auto refined = op.center(row, sum);
        const Sum again = sum_row(refined, 1);
        if (asks) {
          sum = again;
          center = refined;
        }
      }
      write(part_of(first_part, shape.n), op.finish(row, sum, r, saves, center));
    } else {
      write(part_of(first_part, shape.n), op.finish(row, sum_row(NoCenter{}, 0), r, saves));
    }
  }
}

template <class Op, class Form>
__global__ void __launch_bounds__(Form::kThreads, resident_blocks<Op, Form>())
    row_kernel(const __grid_constant__ Op op, const __grid_constant__ RowShape shape) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  // There are no clusters.
  if constexpr (Form::kParts != plan::row::Parts::cluster)
#endif
    run_rows<Op, Form>(op, shape);
}

}  // namespace fastops::FASTOPS_ARCH
