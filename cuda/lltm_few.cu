// A step of the LLTM for few rows in one kernel, and its backward in another. There a GEMM, the concatenation before it and
// the cell behind it each take as long as their launch.
#include <iterator>

#include "dependent.cuh"
#include "device/types.cuh"
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

// Every load of a warp is on its way before the first is waited for: rows that are not there are read as the last one.
__device__ inline int64_t one_of(int64_t row, int64_t rows) { return row < rows ? row : rows - 1; }

constexpr int kForwardWarps = 4;

// A block takes one column of the state: its three rows of weights, whose products with all rows' inputs the threads share.
template <class T, int Rows>
__global__ void __launch_bounds__(32 * kForwardWarps) few_kernel(LltmFew a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  __shared__ A parts[kForwardWarps][3][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t column = blockIdx.x, width = a.state + a.features;
  const T* weights = static_cast<const T*>(a.weights) + column * width;
  A sums[3][Rows] = {};
#pragma unroll 2
  for (int64_t k = threadIdx.x; k < width; k += 32 * kForwardWarps) {
    const Column<T> x = column_of<T>(a, k);
    A w[3], values[Rows];
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) w[gate] = device::widen(weights[gate * a.state * width + k]);
#pragma unroll
    for (int row = 0; row < Rows; ++row) values[row] = x.at(one_of(row, a.batch));
#pragma unroll
    for (int row = 0; row < Rows; ++row)
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) sums[gate][row] += w[gate] * values[row];
  }
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) parts[warp][gate][lane] = sum_lanes(sums[gate]);
  __syncthreads();
  constexpr int kLanes = 32 / Rows;  // that have the same row
  const int64_t row = lane / kLanes, at = row * a.state + column;
  if (warp != 0 || lane % kLanes != 0 || row >= a.batch) return;
  A gates[3];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
    gates[gate] = device::widen(static_cast<const T*>(a.bias)[gate * a.state + column]);
#pragma unroll
    for (int k = 0; k < kForwardWarps; ++k) gates[gate] += parts[k][gate][lane];
    static_cast<A*>(a.gates)[(row * 3 + gate) * a.state + column] = gates[gate];
  }
  const auto value = cell_of<T>(gates[0], gates[1], gates[2], A(device::widen(static_cast<const T*>(a.old_cell)[at])));
  static_cast<T*>(a.new_h)[at] = device::narrow<T>(value.new_h);
  static_cast<T*>(a.new_cell)[at] = device::narrow<T>(value.new_cell);
}

// 0 for a row or column that is not there.
template <class T>
__device__ CellGradients<accumulate_t<T>> gradients_at(const LltmFewBackward& a, int64_t row, int64_t column) {
  using A = accumulate_t<T>;
  const int64_t r = one_of(row, a.batch), c = one_of(column, a.state);
  const A* gates = static_cast<const A*>(a.gates) + r * 3 * a.state + c;
  auto read = [&](const void* from) { return A(device::widen(static_cast<const T*>(from)[r * a.state + c])); };
  const auto d = cell_gradients_of<T>(read(a.grad_h), read(a.grad_cell), gates[0], gates[a.state], gates[2 * a.state],
                                      read(a.old_cell));
  return row < a.batch && column < a.state ? d : CellGradients<A>{};
}

constexpr int kThreads = 256, kWarps = kThreads / 32;

// The gradients of the gates of some columns of the state, in shared memory: [3·columns][kStride], a row of the batch each.
// With 16 bytes between the gates, so that lanes that have one each read 16 bytes without a conflict. How many columns is
// the type's affair alone: a row's sums are the same for any number of rows.
template <class T, int Rows>
struct Gates {
  using A = accumulate_t<T>;
  static constexpr int kColumns = sizeof(A) <= 4 ? 128 : 64;
  static constexpr int kStride = Rows + 16 / sizeof(A);
  static constexpr int kNumbers = 3 * kColumns * kStride;
};

// x · y, over the rows.
template <int Rows, class A>
__device__ A dot(const A (&x)[Rows], const A* y) {
  A sum = 0;
#pragma unroll
  for (int row = 0; row < Rows; ++row) sum += x[row] * y[row];
  return sum;
}

// A warp has one column of the gradient of [old_h, input], gradients of all gates times weights, of which its lanes take a
// part each.
template <class T, int Rows>
__device__ void input_gradient(const LltmFewBackward& a, int64_t block, accumulate_t<T>* shared) {
  using A = accumulate_t<T>;
  using G = Gates<T, Rows>;
  constexpr int kEach = 3 * G::kColumns / 32;
  const int lane = threadIdx.x % 32;
  const int64_t width = a.state + a.features, k = block * kWarps + threadIdx.x / 32;
  A sums[Rows] = {};
  for (int64_t first = 0; first < a.state; first += G::kColumns) {
    A weights[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int gate = (i * 32 + lane) / G::kColumns;
      const int64_t column = first + (i * 32 + lane) % G::kColumns;
      const int64_t at = (gate * a.state + one_of(column, a.state)) * width + one_of(k, width);
      const A weight = device::widen(static_cast<const T*>(a.weights)[at]);
      weights[i] = column < a.state ? weight : A(0);  // an infinite one times no gradient is not 0
    }
    __syncthreads();  // what lay there has been read
#pragma unroll 4
    for (int i = threadIdx.x; i < G::kColumns * Rows; i += kThreads) {
      const int row = i / G::kColumns, column = i % G::kColumns;  // neighbours in memory
      const auto d = gradients_at<T>(a, row, first + column);
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) shared[(gate * G::kColumns + column) * G::kStride + row] = d.gates[gate];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const A* gradients = shared + (i * 32 + lane) * G::kStride;
#pragma unroll
      for (int row = 0; row < Rows; ++row) sums[row] += weights[i] * gradients[row];
    }
  }
  const A sum = sum_lanes(sums);
  constexpr int kLanes = 32 / Rows;
  const int64_t row = lane / kLanes;
  if (k >= width || lane % kLanes != 0 || row >= a.batch) return;
  if (k < a.state)
    static_cast<T*>(a.grad_old_h)[row * a.state + k] = device::narrow<T>(sum);
  else
    static_cast<T*>(a.grad_input)[row * a.features + k - a.state] = device::narrow<T>(sum);
}

constexpr int kWeightColumns = 4;  // of the state, whose weights a block takes

// The gradients of their weights and biases, and of old_cell there.
template <class T, int Rows>
__device__ void weight_gradient(const LltmFewBackward& a, int64_t block, accumulate_t<T>* shared) {
  using A = accumulate_t<T>;
  constexpr int kGates = 3 * kWeightColumns, kStride = Gates<T, Rows>::kStride;
  const int64_t width = a.state + a.features, first = block * kWeightColumns;
  const auto gate_row = [&](int i) { return i / kWeightColumns * a.state + first + i % kWeightColumns; };
  const auto inside = [&](int i) { return first + i % kWeightColumns < a.state; };
  A values[Rows];
  const auto read_inputs = [&](int64_t k) {
    const Column<T> x = column_of<T>(a, one_of(k, width));
#pragma unroll
    for (int row = 0; row < Rows; ++row) {
      const A value = x.at(one_of(row, a.batch));
      values[row] = row < a.batch ? value : A(0);
    }
  };
  read_inputs(threadIdx.x);
  for (int i = threadIdx.x; i < kWeightColumns * Rows; i += kThreads) {
    const int row = i % Rows, column = i / Rows;
    const auto d = gradients_at<T>(a, row, first + column);
    if (row < a.batch && first + column < a.state)
      static_cast<T*>(a.grad_old_cell)[row * a.state + first + column] = device::narrow<T>(d.old_cell);
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) shared[(gate * kWeightColumns + column) * kStride + row] = d.gates[gate];
  }
  __syncthreads();
  if (threadIdx.x < kGates && inside(threadIdx.x)) {
    A sum = 0;
    for (int row = 0; row < Rows; ++row) sum += shared[threadIdx.x * kStride + row];
    static_cast<T*>(a.grad_bias)[gate_row(threadIdx.x)] = device::narrow<T>(sum);
  }
  for (int64_t k = threadIdx.x; k < width; k += kThreads) {
#pragma unroll
    for (int i = 0; i < kGates; ++i)
      if (inside(i))
        static_cast<T*>(a.grad_weights)[gate_row(i) * width + k] = device::narrow<T>(dot(values, shared + i * kStride));
    if (k + kThreads < width) read_inputs(k + kThreads);
  }
}

template <class T, int Rows>
__global__ void __launch_bounds__(kThreads) few_backward_kernel(LltmFewBackward a, int64_t input_blocks) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  __shared__ alignas(16) accumulate_t<T> shared[Gates<T, Rows>::kNumbers];
  if (blockIdx.x < input_blocks)
    input_gradient<T, Rows>(a, blockIdx.x, shared);
  else
    weight_gradient<T, Rows>(a, blockIdx.x - input_blocks, shared);
}

template <class F>
int dispatch_rows(int64_t rows, F f) {
  constexpr auto& rules = plan::lltm::kRules;
  static_assert(std::size(rules) == 3 && rules[1].rows == plan::lltm::kMostRows);
  if (rows <= rules[0].batch_up_to) return f(std::integral_constant<int, rules[0].rows>{});
  return f(std::integral_constant<int, rules[1].rows>{});
}

}  // namespace

int lltm_few(const LltmFew& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_rows(a.batch, [&](auto rows) -> int {
      const auto config = launch_config(static_cast<unsigned>(a.state), 32 * kForwardWarps, stream);
      return launch_kernel(&few_kernel<T, rows>, config, a);
    });
  });
}

int lltm_few_backward(const LltmFewBackward& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_rows(a.batch, [&](auto rows) -> int {
      const int64_t input_blocks = ceil_div(a.state + a.features, kWarps);
      const auto blocks = static_cast<unsigned>(input_blocks + ceil_div(a.state, kWeightColumns));
      return launch_kernel(&few_backward_kernel<T, rows>, launch_config(blocks, kThreads, stream), a, input_blocks);
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
