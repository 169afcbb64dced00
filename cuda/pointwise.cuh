#pragma once
// The kernels and the launcher of every elementwise CUDA op.
#include "core/pointwise.h"
#include "dependent.cuh"
#include "device/math.cuh"
#include "device/vector.cuh"
#include "plan/pointwise.h"

namespace fastops::FASTOPS_ARCH {

using device::accumulate_t;

// What f returns for several outputs.
template <class A, int N>
struct many {
  A values[N];
};

template <class A>
__device__ inline A output(A value, int) {
  return value;
}
template <class A, int N>
__device__ inline A output(many<A, N> value, int k) {
  return value.values[k];
}

template <int Inputs, class F, class A, int V>
__device__ inline auto apply(const F& f, const A (&in)[Inputs][V], int j) {
  if constexpr (Inputs == 1) return f(in[0][j]);
  if constexpr (Inputs == 2) return f(in[0][j], in[1][j]);
}

template <class T, int V, int Outputs, int Inputs, class F>
__device__ inline void pointwise_group(T* const (&data)[Outputs + Inputs], const F& f) {
  using A = accumulate_t<T>;
  A in[Inputs][V], out[Outputs][V];
#pragma unroll
  for (int k = 0; k < Inputs; ++k) device::load<true, V>(data[Outputs + k], V, in[k]);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    auto value = apply<Inputs>(f, in, j);
#pragma unroll
    for (int k = 0; k < Outputs; ++k) out[k][j] = output(value, k);
  }
#pragma unroll
  for (int k = 0; k < Outputs; ++k) device::store<true, V>(data[k], V, out[k]);
}

template <class T, int Operands>
struct Pointers {
  T* at[Operands];
};

constexpr int kThreads = 256;

// One contiguous run each, all elements at once: a thread takes a group of V, and those behind the last group go one to
// a thread. One vector a thread, a grid of exactly as many and no cache hints are the fastest of what was measured.
template <class T, int V, int Outputs, int Inputs, class F>
__global__ void __launch_bounds__(kThreads)
    pointwise_contiguous(Pointers<T, Outputs + Inputs> operands, int64_t groups, int64_t numel, F f) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool whole = g < groups;
  const int64_t at = whole ? g * V : groups * V + (g - groups);
  if (at >= numel) return;
  T* data[Outputs + Inputs];
#pragma unroll
  for (int k = 0; k < Outputs + Inputs; ++k) data[k] = operands.at[k] + at;
  if (whole)
    pointwise_group<T, V, Outputs, Inputs>(data, f);
  else
    pointwise_group<T, 1, Outputs, Inputs>(data, f);
}

// Any strides; sizes and strides of dimension 0 count groups of V elements. Index: 32 bits where the groups allow it.
template <class T, int V, class Index, int Outputs, int Inputs, class F>
__global__ void __launch_bounds__(kThreads) pointwise_strided(const __grid_constant__ Pointwise p, F f) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (g >= p.numel) return;
  T* data[Outputs + Inputs];
#pragma unroll
  for (int k = 0; k < Outputs + Inputs; ++k) data[k] = static_cast<T*>(p.data[k]);
  Index rest = static_cast<Index>(g);
  for (int d = 0; d < p.ndim; ++d) {
    const Index size = static_cast<Index>(p.sizes[d]), next = rest / size;
    const int64_t at = rest - next * size;
    rest = next;
#pragma unroll
    for (int k = 0; k < Outputs + Inputs; ++k) data[k] += at * p.strides[k][d];
  }
  pointwise_group<T, V, Outputs, Inputs>(data, f);
}

template <class T, int Outputs, int Inputs, class F>
int launch_contiguous(const Pointwise& p, const F& f, cudaStream_t stream) {
  constexpr int V = device::kVector<T>;
  Pointers<T, Outputs + Inputs> operands;
  bool aligned = true;
  for (int k = 0; k < Outputs + Inputs; ++k) {
    operands.at[k] = static_cast<T*>(p.data[k]);
    aligned &= aligned16(p.data[k]);
  }
  using namespace plan::pointwise;
  const int64_t groups = kRules[plan::pointwise::plan(Layout::contiguous, aligned, p.numel)].vectors ? p.numel / V : 0;
  const unsigned blocks = static_cast<unsigned>(ceil_div(groups + (p.numel - groups * V), kThreads));
  return launch_kernel(&pointwise_contiguous<T, V, Outputs, Inputs, F>, launch_config(blocks, kThreads, stream),
                       operands, groups, p.numel, f);
}

template <class T, int V, int Outputs, int Inputs, class F>
int launch_strided(Pointwise p, const F& f, cudaStream_t stream) {
  p.numel /= V;
  p.sizes[0] /= V;
  for (int k = 0; k < Outputs + Inputs; ++k) p.strides[k][0] *= V;
  const auto config = launch_config(static_cast<unsigned>(ceil_div(p.numel, kThreads)), kThreads, stream);
  if (p.numel < INT32_MAX) return launch_kernel(&pointwise_strided<T, V, unsigned, Outputs, Inputs, F>, config, p, f);
  return launch_kernel(&pointwise_strided<T, V, uint64_t, Outputs, Inputs, F>, config, p, f);
}

// Whether groups of V neighbours along dimension 0 are one aligned vector in every operand.
template <class T, int Operands>
bool vectorizes(const Pointwise& p) {
  constexpr int V = device::kVector<T>;
  if (p.ndim == 0 || p.sizes[0] % V != 0) return false;
  for (int k = 0; k < Operands; ++k) {
    if (p.strides[k][0] != 1 || !aligned16(p.data[k])) return false;
    for (int d = 1; d < p.ndim; ++d)
      if (p.strides[k][d] % V != 0) return false;
  }
  return true;
}

// f takes one value an input and returns a value, or many<> of them: float for f16, bf16 and f32, double for f64.
template <class T, int Inputs, int Outputs = 1, class F>
int pointwise_of(const Pointwise& p, void* stream_handle, const F& f) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  constexpr int V = device::kVector<T>;
  if (p.is_contiguous()) return launch_contiguous<T, Outputs, Inputs>(p, f, stream);
  using namespace plan::pointwise;
  // Of few elements nobody asks whether they are aligned.
  if (kRules[plan::pointwise::plan(Layout::strided, true, p.numel)].vectors && vectorizes<T, Outputs + Inputs>(p))
    return launch_strided<T, V, Outputs, Inputs>(p, f, stream);
  return launch_strided<T, 1, Outputs, Inputs>(p, f, stream);
}

// The same f for every type.
template <int Inputs, int Outputs = 1, class F>
int pointwise(DType dtype, const Pointwise& p, void* stream, const F& f) {
  return dispatch(
      dtype, [&](auto t) -> int { return pointwise_of<typename decltype(t)::type, Inputs, Outputs>(p, stream, f); });
}

}  // namespace fastops::FASTOPS_ARCH
