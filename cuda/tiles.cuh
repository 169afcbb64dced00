#pragma once
// A thread for each group of columns of each row, which knows its place without a division.
#include "dispatch.cuh"

namespace fastops::FASTOPS_ARCH {

constexpr int kTileThreads = 256;

// blockIdx.x: a tile of rows, blockIdx.y: a tile of columns; threadIdx.x: a group of columns, threadIdx.y: a row.
struct Tiles {
  dim3 blocks, threads;
};

// As wide as the row, or narrower, down to a warp, where fewer threads are without columns then.
inline Tiles tile(int64_t rows, int64_t groups) {
  const auto padded = [&](unsigned x) { return ceil_div(groups, x) * x; };
  unsigned x = 1;
  while (x < kTileThreads && x < groups) x *= 2;
  for (unsigned narrow = x / 2; narrow >= 32; narrow /= 2)
    if (padded(narrow) < padded(x)) x = narrow;
  const unsigned y = kTileThreads / x;
  const int64_t most = 65535;  // of blocks in that direction
  return {dim3(static_cast<unsigned>(ceil_div(rows, y)), static_cast<unsigned>(std::min(ceil_div(groups, x), most))),
          dim3(x, y)};
}

// f(row, first column) for the thread's groups of V columns, mostly one. V divides n.
template <int V, class F>
__device__ inline void at_place(int64_t rows, int64_t n, const F& f) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x * V;
  for (int64_t j = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * V; j < n; j += step) f(row, j);
}

}  // namespace fastops::FASTOPS_ARCH
