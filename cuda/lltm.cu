// The pointwise cell of the LLTM behind the GEMM of its gates, to which the bias is yet to be added.
#include "lltm.cuh"

#include "column_walk.cuh"
#include "dependent.cuh"
#include "device/vector.cuh"
#include "kernels/lltm.h"
#include "tiles.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

using device::accumulate_t;

// V elements of each third of a row of gates, or of their bias.
template <int V, class T>
__device__ void load_gates(const T* first, int64_t n, accumulate_t<T> (&gates)[3][V]) {
#pragma unroll
  for (int k = 0; k < 3; ++k) device::load<true, V>(first + k * n, V, gates[k]);
}

template <class T, int V>
__global__ void __launch_bounds__(kTileThreads) cell_kernel(LltmCell a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  at_place<V>(a.rows, a.n, [&](int64_t row, int64_t column) {
    const int64_t at = row * a.n + column;
    A gates[3][V], bias[3][V], old_cell[V], new_h[V], new_cell[V];
    load_gates<V>(static_cast<const T*>(a.gates) + row * 3 * a.n + column, a.n, gates);
    load_gates<V>(static_cast<const T*>(a.bias) + column, a.n, bias);
    device::load<true, V>(static_cast<const T*>(a.old_cell) + at, V, old_cell);
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const auto value =
          cell_of<T>(gates[0][k] + bias[0][k], gates[1][k] + bias[1][k], gates[2][k] + bias[2][k], old_cell[k]);
      new_h[k] = value.new_h;
      new_cell[k] = value.new_cell;
    }
    device::store<true, V>(static_cast<T*>(a.new_h) + at, V, new_h);
    device::store<true, V>(static_cast<T*>(a.new_cell) + at, V, new_cell);
  });
}

template <class T, int V>
__global__ void __launch_bounds__(kWalkThreads) cell_backward_kernel(LltmCellBackward a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  __shared__ A parts[kWalkThreads * V];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x * V, column = first + threadIdx.x * V;
  const bool inside = column < a.n;
  const int64_t read = inside ? column : 0;
  A bias[3][V], sums[3][V] = {};
  A gates[3][V], grad_h[V], grad_cell[V], old_cell[V];
  const auto load = [&](int64_t row) {
    const int64_t at = row * a.n + read;
    load_gates<V>(static_cast<const T*>(a.gates) + row * 3 * a.n + read, a.n, gates);
    device::load<true, V>(static_cast<const T*>(a.grad_h) + at, V, grad_h);
    device::load<true, V>(static_cast<const T*>(a.grad_cell) + at, V, grad_cell);
    device::load<true, V>(static_cast<const T*>(a.old_cell) + at, V, old_cell);
  };
  const auto load_bias = [&] { load_gates<V>(static_cast<const T*>(a.bias) + read, a.n, bias); };
  walk_rows(a.rows, inside, load, load_bias, [&](int64_t row, bool own) {
    const int64_t at = row * a.n + column, at_gates = row * 3 * a.n + column;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const auto d = cell_gradients_of<T>(grad_h[k], grad_cell[k], gates[0][k] + bias[0][k], gates[1][k] + bias[1][k],
                                          gates[2][k] + bias[2][k], old_cell[k]);
      grad_cell[k] = d.old_cell;
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        gates[gate][k] = d.gates[gate];
        sums[gate][k] += own ? d.gates[gate] : A(0);
      }
    }
    if (!own) return;
#pragma unroll
    for (int gate = 0; gate < 3; ++gate)
      device::store_at_once<V>(static_cast<T*>(a.grad_gates) + at_gates + gate * a.n, gates[gate]);
    device::store_at_once<V>(static_cast<T*>(a.grad_old_cell) + at, grad_cell);
  });
  if (!a.grad_bias) return;
#pragma unroll
  for (int gate = 0; gate < 3; ++gate)
    add_up_rows<V>(sums[gate], parts, [&](int in_tile, A sum) {
      if (first + in_tile >= a.n) return;
      const int64_t j = gate * a.n + first + in_tile;
      store_sum<T>(a.partial, blockIdx.y * 3 * a.n + j, a.grad_bias, j, sum);
    });
}

template <class T>
bool in_vectors(const LltmCell& a) {
  return !few(a.rows * a.n) && a.n % device::kVector<T> == 0 && aligned16(a.gates) && aligned16(a.bias) &&
         aligned16(a.old_cell) && aligned16(a.new_h) && aligned16(a.new_cell);
}

// Half of what 16 bytes hold, of the half types, for there are three sums a column.
template <class T>
constexpr int kWalkVector = device::kVector<T> == 8 ? 4 : device::kVector<T>;

template <class T>
bool in_vectors(const LltmCellBackward& a) {
  return !few(a.rows * a.n) && a.n % kWalkVector<T> == 0 && aligned16(a.grad_h) && aligned16(a.grad_cell) &&
         aligned16(a.gates) && aligned16(a.bias) && aligned16(a.old_cell) && aligned16(a.grad_gates) &&
         aligned16(a.grad_old_cell);
}

template <class T>
Walk walk_of(const LltmCellBackward& a) {
  return walk_columns(a.rows, a.n / (in_vectors<T>(a) ? kWalkVector<T> : 1));
}

}  // namespace

int lltm_cell(const LltmCell& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_bool(in_vectors<T>(a), [&](auto vectors) -> int {
      constexpr int V = vectors ? device::kVector<T> : 1;
      const Tiles tiles = tile(a.rows, a.n / V);
      return launch_kernel(&cell_kernel<T, V>, launch_config(tiles.blocks, tiles.threads, stream), a);
    });
  });
}

int64_t lltm_cell_backward_chunks(const LltmCellBackward& a) {
  int64_t chunks = 0;
  dispatch(a.dtype, [&](auto t) -> int {
    chunks = walk_of<typename decltype(t)::type>(a).blocks.y;
    return 0;
  });
  return chunks;
}

int lltm_cell_backward(const LltmCellBackward& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    const Walk walk = walk_of<T>(a);
    const auto config = launch_config(walk.blocks, walk.threads, stream);
    return dispatch_bool(in_vectors<T>(a), [&](auto vectors) -> int {
      constexpr int V = vectors ? kWalkVector<T> : 1;
      return launch_kernel(&cell_backward_kernel<T, V>, config, a);
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
