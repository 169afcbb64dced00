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

template <class T, class P, int V, int Rows, Activation act>
__global__ void __launch_bounds__(kTileThreads) epilogue_kernel(LinearEpilogue a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  at_place<V, Rows>(a.rows, a.n, [&](int64_t row, int64_t column) {
    const auto* input = static_cast<const T*>(a.input) + row * a.n + column;
    auto* output = static_cast<T*>(a.output) + row * a.n + column;
    const int64_t step = blockDim.y * a.n;
    const auto inside = [&](int k) { return k == 0 || row + k * blockDim.y < a.rows; };
    A u[Rows][V];
#pragma unroll
    for (int k = 0; k < Rows; ++k)
      if (inside(k)) device::load<true, V>(input + k * step, V, u[k]);
    accumulate_t<P> bias[V];
    device::load<true, V>(static_cast<const P*>(a.bias) + column, V, bias);
#pragma unroll
    for (int k = 0; k < Rows; ++k) {
      if (!inside(k)) continue;
#pragma unroll
      for (int j = 0; j < V; ++j) u[k][j] = activate<T, act>(u[k][j] + A(bias[j]));
      device::store<true, V>(output + k * step, V, u[k]);
    }
  });
}

// Rows of V columns or more that are not whole vectors: groups of V of all numbers, the last one of what is left.
template <class T, class P, int V, Activation act>
__global__ void __launch_bounds__(kTileThreads) epilogue_ragged_kernel(LinearEpilogue a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kTileThreads + threadIdx.x) * V, left = a.rows * a.n - at;
  if (left <= 0) return;
  const auto* input = static_cast<const T*>(a.input) + at;
  const auto* bias = static_cast<const P*>(a.bias);
  auto* output = static_cast<T*>(a.output) + at;
  A u[V];
  if (left >= V)
    device::load<true, V>(input, V, u);
  else
    device::load<false, V>(input, left, u);
  const auto n = static_cast<unsigned>(a.n), first = static_cast<unsigned>(at - device::quotient(at, a.n) * a.n);
  accumulate_t<P> added[V];
#pragma unroll
  for (unsigned k = 0; k < V; ++k)
    added[k] = device::widen(bias[min(first + k, first + k - n)]);  // what is below 0 is large
#pragma unroll
  for (int k = 0; k < V; ++k) u[k] = activate<T, act>(u[k] + A(added[k]));
  if (left >= V)
    device::store<true, V>(output, V, u);
  else
    device::store<false, V>(output, left, u);
}

template <class T, class P, int V, Activation act>
__global__ void __launch_bounds__(kWalkThreads) epilogue_backward_kernel(LinearEpilogueBackward a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  using A = accumulate_t<T>;
  __shared__ A parts[kWalkThreads * V];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x * V, column = first + threadIdx.x * V;
  const bool inside = column < a.n;
  const int64_t read = inside ? column : 0;
  accumulate_t<P> bias[V] = {};
  A grad[V], saved[V] = {}, sum[V] = {};
  const auto load = [&](int64_t row) {
    device::load<true, V>(static_cast<const T*>(a.grad) + row * a.n + read, V, grad);
    if constexpr (act != Activation::none)
      device::load<true, V>(static_cast<const T*>(a.saved) + row * a.n + read, V, saved);
  };
  const auto load_bias = [&] {
    if (kFromInput<act> && a.bias) device::load<true, V>(static_cast<const P*>(a.bias) + read, V, bias);
  };
  walk_rows(a.rows, inside, load, load_bias, [&](int64_t row, bool own) {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      grad[k] = differentiate<T, act>(grad[k], saved[k] + A(bias[k]));
      sum[k] += own ? grad[k] : A(0);
    }
    if (own) device::store_at_once<V>(static_cast<T*>(a.grad_input) + row * a.n + column, grad);
  });
  if (!a.grad_bias) return;
  add_up_rows<V>(sum, parts, [&](int in_tile, A total) {
    const int64_t j = first + in_tile;
    if (j < a.n) store_sum<P>(a.partial, blockIdx.y * a.n + j, a.grad_bias, j, total);
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

// Elements of a thread.
template <class T>
constexpr int elements_of(Kernel kernel) {
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

// f(elements of a thread's vector, how many, each of a row; 0: one that may cross rows), both as types.
template <class T, class F>
int dispatch_elements(Kernel kernel, F f) {
  using std::integral_constant;
  constexpr integral_constant<int, elements_of<T>(Kernel::vector)> vector;
  constexpr integral_constant<int, elements_of<T>(Kernel::word)> word;
  constexpr integral_constant<int, 1> one;
  switch (kernel) {
    case Kernel::two_vectors: return f(vector, integral_constant<int, 2>{});
    case Kernel::vector: return f(vector, one);
    case Kernel::across: return f(vector, integral_constant<int, 0>{});
    case Kernel::word: return f(word, one);
    default: return f(one, one);
  }
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
    return dispatch_parameter<T>(a.parameter, [&](auto p) -> int {
      using P = typename decltype(p)::type;
      return dispatch_activation(a.activation, [&](auto activation) -> int {
        constexpr Activation act = decltype(activation)::value;
        return dispatch_elements<T>(kernel, [&](auto elements, auto rows_each) -> int {
          constexpr int V = decltype(elements)::value, Rows = decltype(rows_each)::value;
          if constexpr (Rows == 0) {
            const auto blocks = static_cast<unsigned>(ceil_div(ceil_div(a.rows * a.n, V), kTileThreads));
            return launch_kernel(&epilogue_ragged_kernel<T, P, V, act>, launch_config(blocks, kTileThreads, stream), a);
          } else {
            const Tiles tiles = tile(a.rows, a.n / V, Rows);
            const auto config = launch_config(tiles.blocks, tiles.threads, stream);
            return launch_kernel(&epilogue_kernel<T, P, V, Rows, act>, config, a);
          }
        });
      });
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
    return dispatch_parameter<T>(a.parameter, [&](auto p) -> int {
      using P = typename decltype(p)::type;
      return dispatch_activation(a.activation, [&](auto activation) -> int {
        constexpr Activation act = decltype(activation)::value;
        constexpr int kVectors = elements_of<T>(Kernel::vector), kWords = elements_of<T>(Kernel::word);
        if (kernel == Kernel::vector) return launch_kernel(&epilogue_backward_kernel<T, P, kVectors, act>, config, a);
        if (kernel == Kernel::word) return launch_kernel(&epilogue_backward_kernel<T, P, kWords, act>, config, a);
        return launch_kernel(&epilogue_backward_kernel<T, P, 1, act>, config, a);
      });
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
