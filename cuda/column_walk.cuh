#pragma once
// Blocks whose threads keep their columns and walk down the rows: for gradients that are sums over the rows.
#include "card.cuh"
#include "dispatch.cuh"

namespace fastops::FASTOPS_ARCH {

constexpr int kWalkThreads = 256;

// blockIdx.x: a tile of columns, blockIdx.y: a chunk of rows; threadIdx.x: a group of columns, threadIdx.y: a row.
struct Walk {
  dim3 blocks, threads;
};

// By the rows, the groups and the device alone. Tensors that are not aligned have other groups of columns, and so sums in
// another order. A thread takes eight rows, or fewer where multiprocessors would have less than four blocks. Up to `whole` rows
// are one block's, whose sums are whole.
inline Walk walk_columns(int64_t rows, int64_t groups, int64_t whole = 32) {
  unsigned x = 1, y = 1;
  while (y < 32 && y < rows) y *= 2;
  const unsigned widest = rows > whole ? 32 : kWalkThreads / y;
  while (x < widest && x < groups) x *= 2;
  y = kWalkThreads / x;
  const int64_t tiles = ceil_div(groups, x);
  const auto chunks_of = [&](int64_t blocks) { return std::max<int64_t>(1, blocks * card().multiprocessors / tiles); };
  const int64_t least = std::min(ceil_div(rows, y), chunks_of(4)), most = std::min<int64_t>(chunks_of(16), 65535);
  const int64_t chunks = rows <= whole ? 1 : std::min(std::max(ceil_div(rows, y * 8), least), most);
  return {dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(chunks)), dim3(x, y)};
}

// load(row), then use(row, true), for each row of a thread. shared() asks for what all rows need: behind the first load, so that
// one wait may serve both. A thread without a row goes along with another's, use(row, false), since a branch would part the
// loads.
template <class Load, class Shared, class Use>
__device__ inline void walk_rows(int64_t rows, bool inside, const Load& load, const Shared& shared, const Use& use) {
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.y;
  int64_t row = static_cast<int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
  load(min(row, rows - 1));
  shared();
  for (bool own = inside && row < rows;;) {
    use(row, own);
    row += step;
    if (!own || row >= rows) return;
    load(row);
  }
}

// The sums over the block's rows, of what its threads have of V columns each: store(column in the tile, sum), once a column.
// In the order of threadIdx.y. For all threads of the block; `parts` has room for V numbers of each.
template <int V, class A, class Store>
__device__ void add_up_rows(const A (&own)[V], A* parts, const Store& store) {
  const int columns = blockDim.x * V;
  __syncthreads();  // what lay there has been read
#pragma unroll
  for (int k = 0; k < V; ++k) parts[threadIdx.y * columns + threadIdx.x * V + k] = own[k];
  __syncthreads();
  for (int column = threadIdx.y * blockDim.x + threadIdx.x; column < columns; column += kWalkThreads) {
    A sum = 0;
    constexpr int kAtOnce = 8;  // asked for together, which otherwise wait for each other
    for (int y = 0; y < blockDim.y; y += kAtOnce) {
      A next[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) next[k] = y + k < blockDim.y ? parts[(y + k) * columns + column] : A(0);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) sum += next[k];
    }
    store(column, sum);
  }
}

// A sum over the block's rows: into partial[at], or, where there are no partial sums for it has all rows, into result[j].
template <class P, class A>
__device__ inline void store_sum(void* partial, int64_t at, void* result, int64_t j, A sum) {
  if (partial)
    static_cast<A*>(partial)[at] = sum;
  else
    static_cast<P*>(result)[j] = device::narrow<P>(static_cast<device::accumulate_t<P>>(sum));
}

}  // namespace fastops::FASTOPS_ARCH
