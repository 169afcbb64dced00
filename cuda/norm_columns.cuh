#pragma once
// The sums over rows of the backward of the norms, where no block holds a whole row, or rows are few.
#include "norm_backward.cuh"

namespace fastops::FASTOPS_ARCH {

constexpr int kColumnRows = 4;  // of a warp, under way at a time
constexpr int kMostColumnWarps = 16;
constexpr int kFewRows = kMostColumnWarps * kColumnRows;  // so many all at once

// What each warp of a block has found.
template <Norm N, class A, int W>
struct ColumnParts {
  A at[kMostColumnWarps][kSums<N> * kWarp * W];
};

// Rows begin to end, and columns of some of the tiles: a warp takes 32 vectors of columns, the block's warps different rows,
// added at the end in the order of the warps. Into `partial`, or where there is none into the parameters' gradients.
template <Norm N, int W, class T, class P, class A = accumulate_t<T>>
__device__ void sum_columns(const Backward<T, P>& a, int64_t begin, int64_t end, int64_t first_tile, int64_t tile_step,
                            A* partial, ColumnParts<N, A, W>& parts) {
  constexpr int S = kSums<N>;
  using Row = Vector<T, W>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int64_t vectors = a.n / W;
  for (int64_t tile = first_tile; tile * kWarp < vectors; tile += tile_step) {
    const int64_t at = tile * kWarp + lane;
    A weight_sum[W] = {}, bias_sum[W] = {};
    for (int64_t first = begin + warp; at < vectors && first < end; first += kColumnRows * warps) {
      RowNumbers<A> numbers[kColumnRows];
      Row x[kColumnRows], grad[kColumnRows];
#pragma unroll
      for (int k = 0; k < kColumnRows; ++k) {
        const int64_t row = first + k * warps;
        numbers[k] = {};
        x[k] = grad[k] = Row{};
        if (row >= end) continue;
        numbers[k] = row_numbers<N>(a, row);
        x[k] = reinterpret_cast<const Row*>(a.input + row * a.input_stride)[at];
        grad[k] = reinterpret_cast<const Row*>(a.grad + row * a.grad_stride)[at];
      }
#pragma unroll
      for (int k = 0; k < kColumnRows; ++k) {
        A h[W], g[W];
        device::widen(x[k], h);
        device::widen(grad[k], g);
        Sums<A, S> ignored = {};
        first_pass<N, W, A>(h, g, true, weight_or_one<P>(nullptr).template vector<W>(0), A(0), numbers[k], ignored,
                            weight_sum, bias_sum);
      }
    }
    __syncthreads();  // the tile before this one has been written out
#pragma unroll
    for (int k = 0; k < W; ++k) {
      parts.at[warp][k * kWarp + lane] = weight_sum[k];
      if constexpr (N == Norm::layer) parts.at[warp][(W + k) * kWarp + lane] = bias_sum[k];
    }
    __syncthreads();
    for (int j = threadIdx.x; j < S * kWarp * W; j += blockDim.x) {
      const int k = j / kWarp % W, sum = j / (kWarp * W);
      const int64_t to = (tile * kWarp + j % kWarp) * W + k;
      if (to >= a.n) continue;
      A total = 0;
#pragma unroll 8
      for (int part = 0; part < warps; ++part) total += parts.at[part][j];
      if (partial)
        partial[sum * a.n + to] = total;
      else
        store_parameter_grad<1>(a, sum, to, {total});
    }
  }
}

}  // namespace fastops::FASTOPS_ARCH
