// Around linear's GEMM:  output = activation(input + bias);  grad_input = grad·activation'(.), grad_bias = its column sums
#include "kernels/linear.h"

#include "dependent.cuh"
#include "device/math.cuh"
#include "device/vector.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

using device::accumulate_t;

template <class T, Activation act, class A>
__device__ A activate(A u) {
  if constexpr (act == Activation::relu) return u <= 0 ? A(0) : u;
  if constexpr (act == Activation::sigmoid) return device::sigmoid_to<T>(u);
  if constexpr (act == Activation::gelu) return u * device::normal_to<T>(u).cdf;
  if constexpr (act == Activation::silu) return u * device::sigmoid_to<T>(u);
  return u;
}

// grad·activation'; for relu and sigmoid `s` is the output, for gelu and silu the input u = x + bias.
template <class T, Activation act, class A>
__device__ A differentiate(A grad, A s) {
  if constexpr (act == Activation::relu) return s > 0 ? grad : A(0);
  if constexpr (act == Activation::sigmoid) return grad * s * (1 - s);
  if constexpr (act == Activation::gelu) {
    auto at = device::normal_to<T>(s);
    return grad * (at.cdf + s * at.pdf);
  }
  if constexpr (act == Activation::silu) {
    A y = device::sigmoid_to<T>(s);
    return grad * y * (1 + s * device::sigmoid_to<T>(-s));
  }
  return grad;
}

template <Activation a>
struct activation_tag {
  static constexpr Activation value = a;
};

template <class F>
int dispatch_activation(Activation activation, F f) {
  switch (activation) {
    case Activation::relu: return f(activation_tag<Activation::relu>{});
    case Activation::sigmoid: return f(activation_tag<Activation::sigmoid>{});
    case Activation::gelu: return f(activation_tag<Activation::gelu>{});
    case Activation::silu: return f(activation_tag<Activation::silu>{});
    default: return f(activation_tag<Activation::none>{});
  }
}

constexpr int kThreads = 256;

// A block holds x threads over groups of V columns and y over rows, x·y = 256. Threads keep their columns (their bias,
// their sums) and walk down the rows.
template <class T, class P, int V, Activation act>
__global__ void __launch_bounds__(kThreads) epilogue_kernel(LinearEpilogue a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  const int64_t tile = static_cast<int64_t>(blockDim.x) * V;
  for (int64_t column = blockIdx.y * tile + threadIdx.x * V; column < a.n; column += gridDim.y * tile) {
    accumulate_t<P> bias[V] = {};
    if (a.bias) device::load<true, V>(static_cast<const P*>(a.bias) + column, V, bias);
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; row < a.rows; row += step) {
      A u[V];
      device::load<true, V>(static_cast<const T*>(a.input) + row * a.n + column, V, u);
#pragma unroll
      for (int k = 0; k < V; ++k) u[k] = activate<T, act>(u[k] + A(bias[k]));
      device::store<true, V>(static_cast<T*>(a.output) + row * a.n + column, V, u);
    }
  }
}

template <class T, class P, int V, Activation act>
__global__ void __launch_bounds__(kThreads) epilogue_backward_kernel(LinearEpilogueBackward a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  constexpr bool kFromInput = act == Activation::gelu || act == Activation::silu;
  __shared__ A parts[kThreads * V];
  const int64_t tile = static_cast<int64_t>(blockDim.x) * V;
  // By the block's first column, so that all its threads take part in each barrier.
  for (int64_t first = blockIdx.y * tile; first < a.n; first += gridDim.y * tile) {
    const int64_t column = first + threadIdx.x * V;
    const bool inside = column < a.n;
    accumulate_t<P> bias[V] = {};
    A sum[V] = {};
    if (kFromInput && a.bias && inside) device::load<true, V>(static_cast<const P*>(a.bias) + column, V, bias);
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
    for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; inside && row < a.rows;
         row += step) {
      A grad[V], saved[V] = {};
      device::load<true, V>(static_cast<const T*>(a.grad) + row * a.n + column, V, grad);
      if constexpr (act != Activation::none)
        device::load<true, V>(static_cast<const T*>(a.saved) + row * a.n + column, V, saved);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        grad[k] = differentiate<T, act>(grad[k], saved[k] + A(bias[k]));
        sum[k] += grad[k];
      }
      device::store<true, V>(static_cast<T*>(a.grad_input) + row * a.n + column, V, grad);
    }
    if (!a.partial) continue;
    __syncthreads();  // the tile before this one has been read
#pragma unroll
    for (int k = 0; k < V; ++k) parts[(threadIdx.y * blockDim.x + threadIdx.x) * V + k] = sum[k];
    __syncthreads();
    if (threadIdx.y != 0 || !inside) continue;
    for (int y = 1; y < blockDim.y; ++y)
#pragma unroll
      for (int k = 0; k < V; ++k) sum[k] += parts[(y * blockDim.x + threadIdx.x) * V + k];
    A* partial = static_cast<A*>(a.partial) + blockIdx.x * a.n + column;
#pragma unroll
    for (int k = 0; k < V; ++k) partial[k] = sum[k];
  }
}

struct Geometry {
  bool vector;
  dim3 blocks, threads;
};

// By sizes and alignment; the number of row blocks (chunks of the bias sum) by the device too.
template <class T>
Geometry geometry(int64_t rows, int64_t n, bool aligned, int64_t rows_a_thread, int64_t most_blocks) {
  Geometry g;
  g.vector = aligned && n % device::kVector<T> == 0;
  const int64_t groups = n / (g.vector ? device::kVector<T> : 1);
  unsigned x = 1;
  while (x < groups && x < kThreads) x *= 2;
  g.threads = dim3(x, kThreads / x);
  const unsigned tiles = static_cast<unsigned>(std::min<int64_t>(ceil_div(groups, x), 65535));
  const int64_t wanted = ceil_div(rows, g.threads.y * rows_a_thread);
  const int64_t most = std::max<int64_t>(1, most_blocks / tiles);
  g.blocks = dim3(static_cast<unsigned>(std::min(wanted, most)), tiles);
  return g;
}

template <class T>
Geometry backward_geometry(const LinearEpilogueBackward& a) {
  const bool aligned = aligned16(a.grad) && aligned16(a.saved) && aligned16(a.bias) && aligned16(a.grad_input);
  return geometry<T>(a.rows, a.n, aligned, 8, 16 * multiprocessors());
}

}  // namespace

int linear_epilogue(const LinearEpilogue& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_parameter<T>(a.parameter, [&](auto p) -> int {
      using P = typename decltype(p)::type;
      return dispatch_activation(a.activation, [&](auto activation) -> int {
        constexpr Activation act = decltype(activation)::value;
        Geometry g =
            geometry<T>(a.rows, a.n, aligned16(a.input) && aligned16(a.bias) && aligned16(a.output), 4, INT32_MAX);
        const auto config = launch_config(g.blocks, g.threads, stream);
        if (g.vector) return launch_kernel(&epilogue_kernel<T, P, device::kVector<T>, act>, config, a);
        return launch_kernel(&epilogue_kernel<T, P, 1, act>, config, a);
      });
    });
  });
}

int64_t linear_epilogue_backward_chunks(const LinearEpilogueBackward& a) {
  int64_t chunks = 0;
  dispatch(a.dtype, [&](auto t) -> int {
    chunks = backward_geometry<typename decltype(t)::type>(a).blocks.x;
    return 0;
  });
  return chunks;
}

int linear_epilogue_backward(const LinearEpilogueBackward& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_parameter<T>(a.parameter, [&](auto p) -> int {
      using P = typename decltype(p)::type;
      return dispatch_activation(a.activation, [&](auto activation) -> int {
        constexpr Activation act = decltype(activation)::value;
        Geometry g = backward_geometry<T>(a);
        const auto config = launch_config(g.blocks, g.threads, stream);
        if (g.vector) return launch_kernel(&epilogue_backward_kernel<T, P, device::kVector<T>, act>, config, a);
        return launch_kernel(&epilogue_backward_kernel<T, P, 1, act>, config, a);
      });
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
