#pragma once
// The one kernel body of the operators that reduce rows, or walk over them: a team of threads reads a row, adds it up, and
// writes something of the row and its sum. What differs is the Op:
//
//   In, Out, kInputs      what is read, of how many tensors, and written (void: nothing but what finish() saves)
//   Accumulate, kWidth    what is computed in; elements of a vector
//   Sum                   a monoid: zero(), merge(a, b); void: there is none
//   row(r)                a Row: where row r lies; `skip`: it does not count
//   add(sum, x, column)   x: of each input the elements of a vector; padding() stands behind a row's last
//   kPeak                 true: a Sum is relative to a peak, such as the largest element. Before a thread adds its vectors of a
//                         part, it raises the Sum to their peak: peak(sum), peak(so_far, vector, column), raised(sum, peak).
//                         Lanes merge by raising their Sums to one peak, and add(a, b) of those. add(sum, x, column) may
//                         replace x by what write() reads, and prepare(x, peak) replaces x likewise. weighted(state, peak) is
//                         the State for write(), because x is relative to the thread's peak and not to the row's
//   kFewRegisters         whether add() and write() need few registers beside x
//   finish(row, sum, r, first)   the State that write() reads; `first`: of the row's threads the one that may save something
//   write(x, row, state, column, y)
//
// Each warp of a team, or the lanes that are one, has kVectors times as many vectors as lanes, one behind the other. A row of one
// part stays in registers from its one load to its store. A block may have several parts, and reads all but the last once more to
// write. Sums are added up over the parts of a share, then over the shares of a row, then over warps, whoever has them.
#include <type_traits>

#include "dependent.cuh"
#include "engine/row/access.cuh"
#include "engine/row/team.cuh"

namespace fastops::FASTOPS_ARCH {

// How a launch divides its rows.
struct RowShape {
  int64_t rows, n, first_row;  // first_row: the launch's
  int shares, parts, part;     // of a row; of a share; vectors of a part
  int blocks;                  // of a row, each with as many shares
};

struct NoSum {};

template <int kInputs, int W, class A>
__device__ inline void copy_values(const A (&from)[kInputs][W], A (&to)[kInputs][W]) {
#pragma unroll
  for (int k = 0; k < kInputs; ++k) {
#pragma unroll
    for (int i = 0; i < W; ++i) to[k][i] = from[k][i];
  }
}

struct RowPart {
  int64_t first;  // element
  int elements;
};

// Whether add() leaves in registers what write() reads, of a block that has one part. It takes at most 32 of them.
template <class Op, int kVectors>
constexpr bool kFitsInRegisters =
    Op::kPeak && kVectors * Op::kInputs * Op::kWidth * sizeof(typename Op::Accumulate) <= 128;

// Resident blocks per multiprocessor at the largest block size. Two, so that one block loads while the other stores. Three where a
// thread's vectors take 16 registers as they are summed and written: 0.75 for 0.68 of a copy in cross_entropy 8192x32000, 0.98 for
// 0.90 in softmax f32 4096x8192 (H200). More registers than that spill. f64 has registers for one block.
template <class Op, int kVectors, bool Aligned>
constexpr int resident_blocks() {
  if (sizeof(typename Op::Accumulate) == 8) return 1;
  constexpr bool kWrites = !std::is_void_v<typename Op::Out>;
  constexpr int kBytes =
      kVectors * Op::kInputs * Op::kWidth * (kWrites ? 4 : static_cast<int>(sizeof(typename Op::In)));
  return Op::kFewRegisters && Aligned && kBytes <= 64 ? 3 : 2;
}

template <class Op, int kVectors, bool Aligned, plan::row::Parts kParts>
__global__ void __launch_bounds__(kRowWarps * 32, resident_blocks<Op, kVectors, Aligned>())
    row_kernel(const __grid_constant__ Op op, const __grid_constant__ RowShape shape) {
  using A = typename Op::Accumulate;
  using In = typename Op::In;
  using Sum = typename Op::Sum;
  constexpr int W = Op::kWidth;
  constexpr bool kSums = !std::is_void_v<Sum>, kWrites = !std::is_void_v<typename Op::Out>;
  using Values = A[Op::kInputs][W];
  constexpr bool kInCluster = kParts == plan::row::Parts::cluster, kInTurn = kParts == plan::row::Parts::in_turn;
  // One block has the whole row; a block has one part of it.
  constexpr bool kOneBlock = kParts == plan::row::Parts::one || kInTurn;
  constexpr bool kOnePart = kParts == plan::row::Parts::one || (kWrites && !kInTurn);
  constexpr bool kKeeps = kOnePart && kFitsInRegisters<Op, kVectors>;

  const int team = blockDim.x, lanes = min(team, 32), warps = team / 32, lane = threadIdx.x % lanes;
  const Turns turns{(static_cast<int>(threadIdx.x) - lane) * kVectors + lane, lane, lanes};
  const int blocks = kOneBlock ? 1 : shape.blocks, rank = kOneBlock ? 0 : blockIdx.x % blocks;
  const int64_t block = kOneBlock ? blockIdx.x : blockIdx.x / blocks;
  const int shares = kOnePart ? 1 : shape.shares / blocks, parts_of_share = kOnePart ? 1 : shape.parts;
  const int parts = shares * parts_of_share, first_part = rank * parts;
  // Teams beyond the last row take it along: their warp's other teams need them in the sums.
  const int64_t wanted = shape.first_row + block * blockDim.y + threadIdx.y;
  const bool live = wanted < shape.rows;
  const int64_t r = live ? wanted : shape.rows - 1;

  __shared__ ClusterSums<Sum> cluster_sums;
  if constexpr (kInCluster) begin_cluster(cluster_sums);
  wait_for_earlier_kernels();
  let_next_kernel_start();

  const auto row = op.row(r);
  Vector<In, W> held[Op::kInputs][kVectors];
  auto part_of = [&](int number, int64_t n) {
    const int64_t first = int64_t{number} * shape.part * W;
    return RowPart{first, static_cast<int>(min(max(n - first, int64_t{0}), int64_t{shape.part} * W))};
  };
  // A short row is read before its target is known.
  const int64_t n_to_read = team > 32 && row.skip ? 0 : shape.n;
  auto load = [&](const RowPart& part) {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k)
      load_vectors<Aligned, W>(held[k], row.input[k] + part.first, part.elements, turns, op.padding());
  };
  auto widen = [&](int g, Values& x) {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) {
      device::hold_narrow(held[k][g]);
      device::widen(held[k][g], x[k]);
    }
  };
  A peak = 0;  // of the thread's vectors of the part that was loaded last
  auto raise = [&](auto& sum, const RowPart& part) {
    if constexpr (Op::kPeak) {
      peak = op.peak(sum);
#pragma unroll
      for (int g = 0; g < kVectors; ++g) {
        const int i = turns.first + g * turns.lanes;
        if (i * W >= part.elements) break;
        peak = op.peak(peak, held[0][g], part.first + i * W);
      }
      sum = op.raised(sum, peak);
    }
  };
  Values kept[kKeeps ? kVectors : 1];
  auto sum_of_rows = [&] {
    if constexpr (kSums) {
      // Each thread adds up its elements of all parts of a share before lanes merge.
      auto sum_of_share = [&](int first) {
        Sum sum = op.zero();
        for (int number = first; number < first + parts_of_share; ++number) {
          const RowPart part = part_of(number, n_to_read);
          load(part);
          raise(sum, part);
#pragma unroll
          for (int g = 0; g < kVectors; ++g) {
            const int i = turns.first + g * turns.lanes;
            if (i * W >= part.elements) break;
            Values x;
            widen(g, x);
            op.add(sum, x, part.first + i * W);
            if constexpr (kKeeps) copy_values(x, kept[g]);
          }
        }
        return merge_lanes(op, sum, lanes);
      };
      Sum sum;
      for (int share = 0; share < shares; ++share) {
        const Sum of_share = sum_of_share(first_part + share * parts_of_share);
        if constexpr (kInCluster) tell_cluster(of_share, cluster_sums, rank * shares + share, blocks, share == 0);
        sum = share == 0 ? of_share : op.merge(sum, of_share);
      }
      if constexpr (kInCluster) return merge_cluster(op, cluster_sums, shape.shares, warps);
      return warps > 1 ? merge_warps(op, sum, warps) : sum;
    } else {
      load(part_of(first_part, n_to_read));
      return NoSum{};
    }
  };

  const auto of_row = op.finish(row, sum_of_rows(), r, live && rank == 0 && threadIdx.x == 0);
  if constexpr (kWrites) {
    using Out = typename Op::Out;
    auto write = [&](const RowPart& part) {
      auto state = of_row;
      if constexpr (Op::kPeak) state = op.weighted(of_row, peak);
      VectorStore<Aligned, W, Out> store(row.output + part.first, part.elements, turns);
#pragma unroll
      for (int g = 0; g < kVectors; ++g) {
        const int i = turns.first + g * turns.lanes;
        const bool own = live && i * W < part.elements;
        if (Aligned && !own) break;
        Values x;
        A y[W];
        if constexpr (kKeeps)
          copy_values(kept[g], x);
        else
          widen(g, x);
        if constexpr (Op::kPeak && !kKeeps) op.prepare(x, peak);
        op.write(x, row, state, part.first + i * W, y);
        store.put(i, own, g == 0, g == kVectors - 1, device::narrow_all<Out>(y));
      }
    };
    if constexpr (kOnePart) {
      write(part_of(first_part, shape.n));
    } else {
      write(part_of(parts - 1, shape.n));
      for (int part = parts - 2; part >= 0; --part) {  // the latest are likeliest to be in a cache
        load(part_of(part, n_to_read));
        if constexpr (kSums) {
          Sum none = op.zero();
          raise(none, part_of(part, n_to_read));
        }
        write(part_of(part, shape.n));
      }
    }
  }
}

}  // namespace fastops::FASTOPS_ARCH
