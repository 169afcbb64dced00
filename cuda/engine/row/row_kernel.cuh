#pragma once
// The one kernel body of the operators that reduce rows, or walk over them: a team of threads reads a row, adds it up, and
// writes something of the row and its sum. What differs is the Op:
//
//   In, Out, kInputs      what is read, of how many tensors, and written (void: nothing but what finish() saves)
//   Accumulate, kWidth    what is computed in; elements of a vector
//   Sum                   a monoid: zero(), merge(a, b); void: there is none
//   row(r)                a Row: where row r lies; `skip`: it does not count
//   add(sum, x, column)   x: of each input the elements of a vector; padding() stands behind a row's last
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
  bool cluster;                // they are one
};

struct NoSum {};

struct RowPart {
  int64_t first;  // element
  int elements;
};

// Of the most threads, that are to fit a multiprocessor at once: one reads while another writes. More have too few registers: three
// took cross_entropy's forward over 8192x128256 from 1.01 of a copy to 0.87. For f64 there are none for two.
template <class Op>
constexpr int kResidentBlocks = sizeof(typename Op::Accumulate) == 8 ? 1 : 2;

template <class Op, int kVectors, bool Aligned>
__global__ void __launch_bounds__(kRowWarps * 32, kResidentBlocks<Op>)
    row_kernel(const __grid_constant__ Op op, const __grid_constant__ RowShape shape) {
  using A = typename Op::Accumulate;
  using In = typename Op::In;
  using Sum = typename Op::Sum;
  constexpr int W = Op::kWidth;
  constexpr bool kSums = !std::is_void_v<Sum>, kWrites = !std::is_void_v<typename Op::Out>;
  using Values = A[Op::kInputs][W];

  const int team = blockDim.x, lanes = min(team, 32), warps = team / 32, lane = threadIdx.x % lanes;
  const Turns turns{(static_cast<int>(threadIdx.x) - lane) * kVectors + lane, lane, lanes};
  const int rank = shape.blocks > 1 ? blockIdx.x % shape.blocks : 0;
  const int64_t block = shape.blocks > 1 ? blockIdx.x / shape.blocks : blockIdx.x;
  const int shares = shape.shares / shape.blocks, parts = shares * shape.parts, first_part = rank * parts;
  // Teams beyond the last row take it along: their warp's other teams need them in the sums.
  const int64_t wanted = shape.first_row + block * blockDim.y + threadIdx.y;
  const bool live = wanted < shape.rows;
  const int64_t r = live ? wanted : shape.rows - 1;

  __shared__ ClusterSums<Sum> cluster_sums;
  if (shape.cluster) begin_cluster(cluster_sums);
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
  auto sum_of_rows = [&] {
    if constexpr (kSums) {
      auto sum_of_part = [&](int number) {
        const RowPart part = part_of(number, n_to_read);
        load(part);
        Sum sum = op.zero();
#pragma unroll
        for (int g = 0; g < kVectors; ++g) {
          const int i = turns.first + g * turns.lanes;
          if (i * W >= part.elements) break;
          Values x;
          widen(g, x);
          op.add(sum, x, part.first + i * W);
        }
        return merge_lanes(op, sum, lanes);
      };
      Sum sum = sum_of_part(first_part);
      if constexpr (kWrites) {  // a share is a part: in the loops below the row would not stay in registers
        if (shape.cluster) tell_cluster(sum, cluster_sums, rank, shape.blocks, true);
        for (int part = 1; part < parts; ++part) sum = op.merge(sum, sum_of_part(part));
      } else {
        Sum row_sum = op.zero();
        for (int share = 0; share < shares; ++share) {
          const int first = first_part + share * shape.parts;
          if (share > 0) sum = sum_of_part(first);
          for (int part = 1; part < shape.parts; ++part) sum = op.merge(sum, sum_of_part(first + part));
          if (shape.cluster) tell_cluster(sum, cluster_sums, rank * shares + share, shape.blocks, share == 0);
          row_sum = share == 0 ? sum : op.merge(row_sum, sum);
        }
        sum = row_sum;
      }
      if (shape.cluster) return merge_cluster(op, cluster_sums, shape.shares, warps);
      return warps > 1 ? merge_warps(op, sum, warps) : sum;
    } else {
      load(part_of(first_part, n_to_read));
      return NoSum{};
    }
  };

  const auto state = op.finish(row, sum_of_rows(), r, live && rank == 0 && threadIdx.x == 0);
  if constexpr (kWrites) {
    using Out = typename Op::Out;
    auto write = [&](const RowPart& part) {
      VectorStore<Aligned, W, Out> store(row.output + part.first, part.elements, turns);
#pragma unroll
      for (int g = 0; g < kVectors; ++g) {
        const int i = turns.first + g * turns.lanes;
        const bool own = live && i * W < part.elements;
        if (Aligned && !own) break;
        Values x;
        A y[W];
        widen(g, x);
        op.write(x, row, state, part.first + i * W, y);
        store.put(i, own, g == 0, g == kVectors - 1, device::narrow_all<Out>(y));
      }
    };
    if (parts == 1 || !kSums) {
      write(part_of(first_part, shape.n));
    } else {
      write(part_of(parts - 1, shape.n));
      for (int part = parts - 2; part >= 0; --part) {  // the latest are likeliest to be in a cache
        load(part_of(part, n_to_read));
        write(part_of(part, shape.n));
      }
    }
  }
}

}  // namespace fastops::FASTOPS_ARCH
