// relu that keeps a bit an element for its backward:  grad_input = grad where the bit is set, else 0
#include "kernels/relu.h"

#include "dependent.cuh"
#include "device/vector.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kThreads = 256;

// A thread takes V neighbours, or what is left of them; 8 / V threads have their bits in one byte.
template <class T, int V>
__global__ void __launch_bounds__(kThreads) mask_kernel(const T* input, T* output, uint8_t* mask, int64_t numel) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = device::accumulate_t<T>;
  const int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, at = g * V;
  unsigned bits = 0;
  A x[V];
  auto relu = [&] {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const bool kept = !(x[k] <= 0);  // NaN is
      bits |= static_cast<unsigned>(kept) << k;
      x[k] = kept ? x[k] : A(0);
    }
  };
  if (at + V <= numel) {
    device::load<true>(input + at, V, x);
    relu();
    device::store<true>(output + at, V, x);
  } else if (at < numel) {
    device::load<false>(input + at, numel - at, x);
    relu();
    device::store<false>(output + at, numel - at, x);
  }
#pragma unroll
  for (int shift = V; shift < 8; shift *= 2) bits |= __shfl_down_sync(0xffffffffu, bits, shift / V) << shift;
  if (threadIdx.x % (8 / V) == 0 && at < numel) mask[g / (8 / V)] = static_cast<uint8_t>(bits);
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    mask_backward_kernel(const T* grad, const uint8_t* mask, T* grad_input, int64_t numel) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = device::accumulate_t<T>;
  const int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, at = g * V;
  if (at >= numel) return;
  A x[V];
  auto choose = [&] {
    const unsigned bits = mask[g / (8 / V)] >> at % 8;
#pragma unroll
    for (int k = 0; k < V; ++k) x[k] = bits >> k & 1 ? x[k] : A(0);
  };
  if (at + V <= numel) {
    device::load<true>(grad + at, V, x);
    choose();
    device::store<true>(grad_input + at, V, x);
  } else {
    device::load<false>(grad + at, numel - at, x);
    choose();
    device::store<false>(grad_input + at, numel - at, x);
  }
}

// f(the element type, how many neighbours a thread takes, the number of blocks)
template <class F>
int dispatch_vectors(DType dtype, int64_t numel, bool aligned, F f) {
  return dispatch(dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    auto launch = [&](auto width) -> int {
      return f(t, width, static_cast<unsigned>(ceil_div(numel, int64_t{kThreads} * decltype(width)::value)));
    };
    return aligned ? launch(std::integral_constant<int, device::kVector<T>>{})
                   : launch(std::integral_constant<int, 1>{});
  });
}

}  // namespace

int relu_mask(const ReluMask& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch_vectors(
      a.dtype, a.numel, aligned16(a.input) && aligned16(a.output), [&](auto t, auto width, unsigned blocks) -> int {
        using T = typename decltype(t)::type;
        return launch_kernel(&mask_kernel<T, decltype(width)::value>, launch_config(blocks, kThreads, stream),
                             static_cast<const T*>(a.input), static_cast<T*>(a.output), a.mask, a.numel);
      });
}

int relu_mask_backward(const ReluMaskBackward& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch_vectors(
      a.dtype, a.numel, aligned16(a.grad) && aligned16(a.grad_input), [&](auto t, auto width, unsigned blocks) -> int {
        using T = typename decltype(t)::type;
        return launch_kernel(&mask_backward_kernel<T, decltype(width)::value>, launch_config(blocks, kThreads, stream),
                             static_cast<const T*>(a.grad), a.mask, static_cast<T*>(a.grad_input), a.numel);
      });
}

}  // namespace fastops::FASTOPS_ARCH
