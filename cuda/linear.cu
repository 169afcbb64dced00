// Around linear's GEMM:  output = activation(input + bias);  grad_input = grad·activation'(.), grad_bias = its column sums
#include "kernels/linear.h"

#include "card.cuh"
#include "column_walk.cuh"
#include "dependent.cuh"
#include "device/math.cuh"
#include "device/vector.cuh"
#include "engine/pointwise.cuh"
#include "plan/linear.h"
#include "tiles.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

using device::accumulate_t;

template <class T, Activation act, class A>
__device__ A activate(A u) {
  if constexpr (act == Activation::relu) return u <= 0 ? A(0) : u;
  if constexpr (act == Activation::sigmoid) return device::sigmoid_to<T>(u);
  if constexpr (act == Activation::gelu) return u * device::normal_to<T>(u).cdf;
  if constexpr (act == Activation::gelu_tanh) return u * device::logistic_normal_to<T>(u).cdf;
  if constexpr (act == Activation::silu) return u * device::sigmoid_to<T>(u);
  return u;
}

// grad·activation'. `s` is the input u = x + bias where it is computed from that, else the output.
template <class T, Activation act, class A>
__device__ A differentiate(A grad, A s) {
  if constexpr (act == Activation::relu) return s <= 0 ? A(0) : grad;
  if constexpr (act == Activation::sigmoid) return grad * s * (1 - s);
  if constexpr (act == Activation::gelu) {
    auto at = device::normal_to<T>(s);
    return grad * (at.cdf + s * at.pdf);
  }
  if constexpr (act == Activation::gelu_tanh) {
    auto at = device::logistic_normal_to<T>(s);
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
    case Activation::gelu_tanh: return f(activation_tag<Activation::gelu_tanh>{});
    case Activation::silu: return f(activation_tag<Activation::silu>{});
    default: return f(activation_tag<Activation::none>{});
  }
}

// Elements [at, at + V) of a bias of dtype T or, beside halves, f32.
template <class T, int V, class A>
__device__ inline void load_bias(const void* bias, DType dtype, int64_t at, A (&x)[V]) {
  if constexpr (sizeof(T) == 2)
    if (dtype == DType::f32) return device::load<true, V>(static_cast<const float*>(bias) + at, V, x);
  device::load<true, V>(static_cast<const T*>(bias) + at, V, x);
}

template <class T, int V, Activation act>
__global__ void __launch_bounds__(kTileThreads) epilogue_kernel(LinearEpilogue a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  at_place<V>(a.rows, a.n, [&](int64_t row, int64_t column) {
    A u[V], bias[V];
    device::load<true, V>(static_cast<const T*>(a.input) + row * a.n + column, V, u);
    load_bias<T>(a.bias, a.parameter, column, bias);
#pragma unroll
    for (int k = 0; k < V; ++k) u[k] = activate<T, act>(u[k] + bias[k]);
    device::store<true, V>(static_cast<T*>(a.output) + row * a.n + column, V, u);
  });
}

// Rows of V columns or more that are not whole vectors: groups of V of all numbers, the last one of what is left.
template <class T, int V, Activation act>
__global__ void __launch_bounds__(kTileThreads) epilogue_ragged_kernel(LinearEpilogue a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x) * V, left = a.rows * a.n - at;
  if (left <= 0) return;
  const auto* input = static_cast<const T*>(a.input) + at;
  auto* output = static_cast<T*>(a.output) + at;
  A u[V];
  if (left >= V)
    device::load<true, V>(input, V, u);
  else
    device::load<false, V>(input, left, u);
  const auto n = static_cast<unsigned>(a.n), first = static_cast<unsigned>(at - device::quotient(at, a.n) * a.n);
  A added[V];
#pragma unroll
  for (unsigned k = 0; k < V; ++k) {
    A one[1];
    load_bias<T>(a.bias, a.parameter, min(first + k, first + k - n), one);  // what is below 0 is large
    added[k] = one[0];
  }
#pragma unroll
  for (int k = 0; k < V; ++k) u[k] = activate<T, act>(u[k] + added[k]);
  if (left >= V)
    device::store<true, V>(output, V, u);
  else
    device::store<false, V>(output, left, u);
}

template <class T, int V, Activation act>
__global__ void __launch_bounds__(kWalkThreads) epilogue_backward_kernel(LinearEpilogueBackward a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  __shared__ A parts[kWalkThreads * V];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x * V, column = first + threadIdx.x * V;
  const bool inside = column < a.n;
  const int64_t read = inside ? column : 0;
  A bias[V] = {}, grad[V], saved[V] = {}, sum[V] = {};
  const auto load = [&](int64_t row) {
    device::load<true, V>(static_cast<const T*>(a.grad) + row * a.n + read, V, grad);
    if constexpr (act != Activation::none)
      device::load<true, V>(static_cast<const T*>(a.saved) + row * a.n + read, V, saved);
  };
  const auto read_bias = [&] {
    if (kFromInput<act> && a.bias) load_bias<T>(a.bias, a.parameter, read, bias);
  };
  walk_rows(a.rows, inside, load, read_bias, [&](int64_t row, bool own) {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      grad[k] = differentiate<T, act>(grad[k], saved[k] + bias[k]);
      sum[k] += own ? grad[k] : A(0);
    }
    if (own) device::store_at_once<V>(static_cast<T*>(a.grad_input) + row * a.n + column, grad);
  });
  if (!a.grad_bias) return;
  add_up_rows<V>(sum, parts, [&](int in_tile, A total) {
    const int64_t j = first + in_tile;
    if (j >= a.n) return;
    if (sizeof(T) == 2 && a.parameter == DType::f32)
      store_sum<float>(a.partial, blockIdx.y * a.n + j, a.grad_bias, j, total);
    else
      store_sum<T>(a.partial, blockIdx.y * a.n + j, a.grad_bias, j, total);
  });
}

template <class T, Activation act>
struct Activate {
  using A = accumulate_t<T>;
  __device__ A operator()(A u) const { return activate<T, act>(u); }
};

// Without a bias every number is by itself.
int activate_each(const LinearEpilogue& a, cudaStream_t stream) {
  Pointwise p{};
  p.operands = 2;
  p.numel = a.rows * a.n;
  p.data[0] = a.output;
  p.data[1] = const_cast<void*>(a.input);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_activation(a.activation, [&](auto activation) -> int {
      return launch_contiguous<T, 1, 1>(p, Activate<T, decltype(activation)::value>{}, stream,
                                        pointwise_kernel_of<T, 2>(p, false) == plan::pointwise::Kernel::vector);
    });
  });
}

using plan::linear::Kernel;
static_assert(plan::linear::kThreads == kTileThreads);

// Elements of a thread; of f64 one, because these kernels are the largest.
template <class T>
constexpr int elements_of(Kernel kernel) {
  if (sizeof(T) == 8) return 1;
  if (kernel == Kernel::word) return std::max<int>(1, 4 / sizeof(T));
  return kernel == Kernel::element ? 1 : device::kVector<T>;
}

Kernel kernel_of(const LinearEpilogue& a) {
  const plan::linear::Pass pass{
      a.rows, a.n, a.dtype, a.bias != nullptr, aligned16(a.input) && aligned16(a.output), aligned16(a.bias)};
  return plan::linear::kForward[plan::linear::plan(plan::linear::kForward, pass, card())].kernel;
}

Kernel kernel_of(const LinearEpilogueBackward& a) {
  const bool aligned = aligned16(a.grad) && aligned16(a.saved) && aligned16(a.bias) && aligned16(a.grad_input);
  const plan::linear::Pass pass{a.rows, a.n, a.dtype, true, aligned, aligned};
  return plan::linear::kBackward[plan::linear::plan(plan::linear::kBackward, pass, card())].kernel;
}

template <class T>
Walk walk_of(const LinearEpilogueBackward& a, Kernel kernel) {
  constexpr int64_t kWhole = 64;  // a second kernel for the sums costs more than a second row
  return walk_columns(a.rows, a.n / elements_of<T>(kernel), kWhole);
}

}  // namespace

int linear_epilogue(const LinearEpilogue& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  const Kernel kernel = kernel_of(a);
  if (kernel == Kernel::pointwise) return activate_each(a, stream);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_activation(a.activation, [&](auto activation) -> int {
      constexpr Activation act = decltype(activation)::value;
      constexpr int kVectors = elements_of<T>(Kernel::vector), kWords = elements_of<T>(Kernel::word);
      if constexpr (sizeof(T) < 8)
        if (kernel == Kernel::across) {
          const auto blocks = static_cast<unsigned>(ceil_div(ceil_div(a.rows * a.n, kVectors), kTileThreads));
          return launch_kernel(&epilogue_ragged_kernel<T, kVectors, act>, launch_config(blocks, kTileThreads, stream),
                               a);
        }
      const Tiles tiles = tile(a.rows, a.n / elements_of<T>(kernel));
      const auto config = launch_config(tiles.blocks, tiles.threads, stream);
      if (kernel == Kernel::vector) return launch_kernel(&epilogue_kernel<T, kVectors, act>, config, a);
      if (kernel == Kernel::word) return launch_kernel(&epilogue_kernel<T, kWords, act>, config, a);
      return launch_kernel(&epilogue_kernel<T, 1, act>, config, a);
    });
  });
}

int64_t linear_epilogue_backward_chunks(const LinearEpilogueBackward& a) {
  int64_t chunks = 0;
  const Kernel kernel = kernel_of(a);
  dispatch(a.dtype, [&](auto t) -> int {
    chunks = walk_of<typename decltype(t)::type>(a, kernel).blocks.y;
    return 0;
  });
  return chunks;
}

int linear_epilogue_backward(const LinearEpilogueBackward& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  const Kernel kernel = kernel_of(a);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    const Walk walk = walk_of<T>(a, kernel);
    const auto config = launch_config(walk.blocks, walk.threads, stream);
    return dispatch_activation(a.activation, [&](auto activation) -> int {
      constexpr Activation act = decltype(activation)::value;
      constexpr int kVectors = elements_of<T>(Kernel::vector), kWords = elements_of<T>(Kernel::word);
      if (kernel == Kernel::vector) return launch_kernel(&epilogue_backward_kernel<T, kVectors, act>, config, a);
      if (kernel == Kernel::word) return launch_kernel(&epilogue_backward_kernel<T, kWords, act>, config, a);
      return launch_kernel(&epilogue_backward_kernel<T, 1, act>, config, a);
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
