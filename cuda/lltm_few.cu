// A step of the LLTM for few rows in one kernel, and its backward in another. There a GEMM, the concatenation before it and
// the cell behind it each take as long as their launch.
#include "dependent.cuh"
#include "device/vector.cuh"
#include "kernels/lltm_few.h"
#include "lltm.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

using device::accumulate_t;

// Column k of [old_h, input]: where it begins and how far rows are apart.
template <class T>
struct Column {
  const T* first;
  int64_t stride;
  __device__ accumulate_t<T> at(int64_t row) const { return device::widen(first[row * stride]); }
};
template <class T, class Args>
__device__ Column<T> column_of(const Args& a, int64_t k) {
  if (k < a.state) return {static_cast<const T*>(a.old_h) + k, a.state};
  return {static_cast<const T*>(a.input) + (k - a.state), a.features};
}

// Sums of N numbers a lane over the warp: lane i of 32 is left with number i·N / 32. Each step sends half of what there is.
template <int N, int Lanes = 32, class A>
__device__ A sum_lanes(const A (&x)[N]) {
  constexpr int kOther = Lanes / 2;
  if constexpr (kOther == 0) {
    return x[0];
  } else if constexpr (N == 1) {
    const A sum[1] = {x[0] + __shfl_xor_sync(0xffffffff, x[0], kOther)};
    return sum_lanes<1, kOther>(sum);
  } else {
    const bool upper = threadIdx.x & kOther;
    A half[N / 2];
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
      const A keep = upper ? x[k + N / 2] : x[k], give = upper ? x[k] : x[k + N / 2];
      half[k] = keep + __shfl_xor_sync(0xffffffff, give, kOther);
    }
    return sum_lanes<N / 2, kOther>(half);
  }
}

constexpr int kForwardWarps = 4;

// A warp takes one column of the state: its three rows of weights, whose products with all rows' inputs the lanes share.
template <class T, int Rows>
__global__ void __launch_bounds__(32 * kForwardWarps) few_kernel(LltmFew a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  const int lane = threadIdx.x % 32;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kForwardWarps + threadIdx.x / 32;
  if (column >= a.state) return;
  const int64_t width = a.state + a.features;
  const T* weights = static_cast<const T*>(a.weights) + column * width;
  A sums[3][Rows] = {};
  for (int64_t k = lane; k < width; k += 32) {
    const Column<T> x = column_of<T>(a, k);
    A w[3];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) w[gate] = device::widen(weights[gate * a.state * width + k]);
#pragma unroll
    for (int row = 0; row < Rows; ++row) {
      const A value = row < a.batch ? x.at(row) : A(0);
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) sums[gate][row] += w[gate] * value;
    }
  }
  const A products[3] = {sum_lanes(sums[0]), sum_lanes(sums[1]), sum_lanes(sums[2])};
  constexpr int kLanes = 32 / Rows;  // that have the same row
  const int64_t row = lane / kLanes;
  if (lane % kLanes != 0 || row >= a.batch) return;
  A gates[3];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    gates[gate] = products[gate] + A(device::widen(static_cast<const T*>(a.bias)[gate * a.state + column]));
    static_cast<A*>(a.gates)[(row * 3 + gate) * a.state + column] = gates[gate];
  }
  const int64_t at = row * a.state + column;
  const auto value = cell_of<T>(gates[0], gates[1], gates[2], A(device::widen(static_cast<const T*>(a.old_cell)[at])));
  static_cast<T*>(a.new_h)[at] = device::narrow<T>(value.new_h);
  static_cast<T*>(a.new_cell)[at] = device::narrow<T>(value.new_cell);
}

template <class T>
__device__ CellGradients<accumulate_t<T>> gradients_at(const LltmFewBackward& a, int64_t row, int64_t column) {
  using A = accumulate_t<T>;
  const A* gates = static_cast<const A*>(a.gates) + row * 3 * a.state + column;
  auto read = [&](const void* from) { return A(device::widen(static_cast<const T*>(from)[row * a.state + column])); };
  return cell_gradients_of<T>(read(a.grad_h), read(a.grad_cell), gates[0], gates[a.state], gates[2 * a.state],
                              read(a.old_cell));
}

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kGradientColumns = 64;  // of the state, whose gates' gradients lie in shared memory at a time
constexpr int kWeightColumns = 4;     // of the state, whose weights a block takes

// Columns [32·block, 32·block + 32) of the gradient of [old_h, input]: gradients of all gates times weights. A lane has a
// column, a warp every kWarps-th gate.
template <class T, int Rows>
__device__ void input_gradient(const LltmFewBackward& a, int64_t block, accumulate_t<T>* shared) {
  using A = accumulate_t<T>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t width = a.state + a.features, k = block * 32 + lane;
  A sums[Rows] = {};
  for (int64_t first = 0; first < a.state; first += kGradientColumns) {
    __syncthreads();  // what lay there has been read
    for (int i = threadIdx.x; i < kGradientColumns * Rows; i += kThreads) {
      const int row = i % Rows, column = i / Rows;
      CellGradients<A> d = {};
      if (row < a.batch && first + column < a.state) d = gradients_at<T>(a, row, first + column);
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) shared[(gate * kGradientColumns + column) * Rows + row] = d.gates[gate];
    }
    __syncthreads();
#pragma unroll 4
    for (int i = warp; i < 3 * kGradientColumns; i += kWarps) {
      const int64_t column = first + i % kGradientColumns;
      if (column >= a.state || k >= width) continue;
      const int64_t gate_row = i / kGradientColumns * a.state + column;
      const A weight = device::widen(static_cast<const T*>(a.weights)[gate_row * width + k]);
#pragma unroll
      for (int row = 0; row < Rows; ++row) sums[row] += weight * shared[i * Rows + row];
    }
  }
  for (int half = kWarps / 2; half > 0; half /= 2) {
    __syncthreads();
    A* own = shared + (warp % half) * Rows * 32 + lane;
    if (warp >= half && warp < 2 * half)
      for (int row = 0; row < Rows; ++row) own[row * 32] = sums[row];
    __syncthreads();
    if (warp < half)
      for (int row = 0; row < Rows; ++row) sums[row] += own[row * 32];
  }
  if (warp != 0 || k >= width) return;
  T* to = k < a.state ? static_cast<T*>(a.grad_old_h) + k : static_cast<T*>(a.grad_input) + (k - a.state);
  const int64_t stride = k < a.state ? a.state : a.features;
#pragma unroll
  for (int row = 0; row < Rows; ++row)
    if (row < a.batch) to[row * stride] = device::narrow<T>(sums[row]);
}

// The gradients of the weights and biases of kWeightColumns columns of the state, and of old_cell there.
template <class T, int Rows>
__device__ void weight_gradient(const LltmFewBackward& a, int64_t block, accumulate_t<T>* shared) {
  using A = accumulate_t<T>;
  constexpr int kGates = 3 * kWeightColumns;
  const int64_t width = a.state + a.features, first = block * kWeightColumns;
  auto gate_row = [&](int i) { return i / kWeightColumns * a.state + first + i % kWeightColumns; };
  for (int i = threadIdx.x; i < kWeightColumns * Rows; i += kThreads) {
    const int row = i % Rows, column = i / Rows;
    CellGradients<A> d = {};
    if (row < a.batch && first + column < a.state) {
      d = gradients_at<T>(a, row, first + column);
      static_cast<T*>(a.grad_old_cell)[row * a.state + first + column] = device::narrow<T>(d.old_cell);
    }
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) shared[(gate * kWeightColumns + column) * Rows + row] = d.gates[gate];
  }
  __syncthreads();
  const auto inside = [&](int i) { return first + i % kWeightColumns < a.state; };
  if (threadIdx.x < kGates && inside(threadIdx.x)) {
    A sum = 0;
    for (int row = 0; row < Rows; ++row) sum += shared[threadIdx.x * Rows + row];
    static_cast<T*>(a.grad_bias)[gate_row(threadIdx.x)] = device::narrow<T>(sum);
  }
  for (int64_t k = threadIdx.x; k < width; k += kThreads) {
    const Column<T> x = column_of<T>(a, k);
    A values[Rows];
#pragma unroll
    for (int row = 0; row < Rows; ++row) values[row] = row < a.batch ? x.at(row) : A(0);
    for (int i = 0; i < kGates; ++i) {
      A sum = 0;
#pragma unroll
      for (int row = 0; row < Rows; ++row) sum += shared[i * Rows + row] * values[row];
      if (inside(i)) static_cast<T*>(a.grad_weights)[gate_row(i) * width + k] = device::narrow<T>(sum);
    }
  }
}

template <class T, int Rows>
__global__ void __launch_bounds__(kThreads) few_backward_kernel(LltmFewBackward a, int64_t input_blocks) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  __shared__ alignas(16) accumulate_t<T> shared[3 * kGradientColumns * Rows];
  static_assert(kWarps / 2 * 32 <= 3 * kGradientColumns && kWeightColumns <= kGradientColumns);
  if (blockIdx.x < input_blocks)
    input_gradient<T, Rows>(a, blockIdx.x, shared);
  else
    weight_gradient<T, Rows>(a, blockIdx.x - input_blocks, shared);
}

template <class F>
int dispatch_rows(int64_t rows, F f) {
  if (rows <= 8) return f(std::integral_constant<int, 8>{});
  if (rows <= 16) return f(std::integral_constant<int, 16>{});
  static_assert(kLltmFewRows == 32);
  return f(std::integral_constant<int, 32>{});
}

}  // namespace

int lltm_few(const LltmFew& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_rows(a.batch, [&](auto rows) -> int {
      const auto blocks = static_cast<unsigned>(ceil_div(a.state, kForwardWarps));
      return launch_kernel(&few_kernel<T, rows>, launch_config(blocks, 32 * kForwardWarps, stream), a);
    });
  });
}

int lltm_few_backward(const LltmFewBackward& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_rows(a.batch, [&](auto rows) -> int {
      const int64_t input_blocks = ceil_div(a.state + a.features, 32);
      const auto blocks = static_cast<unsigned>(input_blocks + ceil_div(a.state, kWeightColumns));
      return launch_kernel(&few_backward_kernel<T, rows>, launch_config(blocks, kThreads, stream), a, input_blocks);
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
