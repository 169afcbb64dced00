// The backward of the norms; formulas in norm_backward.cuh, the choice of a kernel in cpp/plan/norm_backward.h. Here are rows
// that are read several times, and sums over the rows by columns.
#include "card.cuh"
#include "dependent.cuh"
#include "norm_backward.cuh"
#include "norm_columns.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

using plan::norm_backward::kThreads;

// Rows too long for registers: two passes over a row for grad_input.
template <Norm N, class T, int W>
__global__ void __launch_bounds__(kThreads)
    backward_long_kernel(const __grid_constant__ Backward<T, T> a, bool columns_are_f32) {
  using A = accumulate_t<T>;
  constexpr int S = kSums<N>;
  using Row = Vector<T, W>;
  __shared__ Scratch<A, S> scratch[2];
  const int64_t vectors = a.n / W;
  int turn = 0;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const RowNumbers<A> numbers = row_numbers<N>(a, row);
    const Row* input = reinterpret_cast<const Row*>(a.input + row * a.input_stride);
    const Row* incoming = reinterpret_cast<const Row*>(a.grad + row * a.grad_stride);
    const Row* grad_sum = reinterpret_cast<const Row*>(a.grad_sum + row * a.grad_sum_stride);
    Row* out = reinterpret_cast<Row*>(a.grad_input + row * a.n);
    Sums<A, S> sums = {};
    A h[W], grad[W], w[W], unused[W] = {};
    auto read_weight = [&](int64_t i) {
      if constexpr (sizeof(T) == 2)
        if (columns_are_f32)
          return device::widen(weight_or_one(reinterpret_cast<const float*>(a.weight)).template vector<W>(i), w);
      device::widen(weight_or_one(a.weight).template vector<W>(i), w);
    };
    auto first = [&](int64_t i, Sums<A, S>& into) {
      device::widen(input[i], h);
      device::widen(incoming[i], grad);
      read_weight(i);
      first_pass<N, W, A>(h, grad, true, w, a.offset, numbers, into, unused, unused);
    };
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) first(i, sums);
    team_sum(sums, kThreads / kWarp, threadIdx.x / kWarp, scratch[turn], [] { __syncthreads(); });
    turn ^= 1;
    divide(sums, a.inverse_n);
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
      Sums<A, S> ignored = {};
      first(i, ignored);
      if (a.grad_sum)
        second_pass<N, W, A>(h, grad, sums, numbers.rstd, grad_sum[i], h);
      else
        second_pass<N, W, A>(h, grad, sums, numbers.rstd, h);
      out[i] = device::narrow_all<T>(h);
    }
  }
}

using plan::norm_backward::kColumnWarps;

// Where rows are few, nothing is needed here of a kernel of this problem before it, so that both run at a time: the second
// rule of dependent.cuh.
template <Norm N, class T, int W>
__global__ void __launch_bounds__(kWarp* kMostColumnWarps)
    backward_columns_kernel(const __grid_constant__ Backward<T, T> a, int64_t chunks) {
  using A = accumulate_t<T>;
  __shared__ ColumnParts<N, A, W> parts;
  const int64_t begin = blockIdx.x * a.rows / chunks, end = (blockIdx.x + 1) * a.rows / chunks;
  A* const partial = a.partial ? a.partial + blockIdx.x * kSums<N> * a.n : nullptr;
  if (!a.grad_input) wait_for_earlier_kernels();  // else this one is behind the kernel that makes it
  sum_columns<N, W>(a, begin, end, blockIdx.y, gridDim.y, partial, parts);
  wait_for_earlier_kernels();  // whoever waits for this kernel waits for those too
}

// ---- host ------------------------------------------------------------------------------------------------------------

// f(norm, tag<T>, width)
template <class F>
int dispatch_all(const NormBackward& a, F f) {
  return dispatch(a.dtype, [&](auto t) -> int {
    return dispatch_norm(a.norm, [&](auto norm) -> int {
      return dispatch_width<typename decltype(t)::type>(a.n, [&](auto width) -> int { return f(norm, t, width); });
    });
  });
}

int norm_backward_long(const NormBackward& a, const Plan&, cudaStream_t stream) {
  if (!a.grad_input) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(a.rows, 2 * card().multiprocessors));
  return dispatch_all(a, [&](auto norm, auto t, auto width) -> int {
    using T = typename decltype(t)::type;
    return launch_kernel(&backward_long_kernel<decltype(norm)::value, T, decltype(width)::value>,
                         launch_config(blocks, kThreads, stream), Backward<T, T>(a), a.parameter != a.dtype);
  });
}

int launch_columns(const NormBackward& a, cudaStream_t stream) {
  return dispatch_all(a, [&](auto norm, auto t, auto width) -> int {
    constexpr int W = decltype(width)::value;
    using T = typename decltype(t)::type;
    const int64_t chunks = a.partial ? a.chunks : 1,
                  tiles = a.partial ? plan::norm_backward::column_tiles(a.n, a.dtype) : ceil_div(a.n / W, kWarp);
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(std::min<int64_t>(tiles, 65535)));
    const bool more = a.gather == Gather::columns && a.rows > kColumnWarps * kColumnRows;
    const int threads = (more ? kMostColumnWarps : kColumnWarps) * kWarp;
    return launch_kernel(&backward_columns_kernel<decltype(norm)::value, T, W>, launch_config(grid, threads, stream),
                         Backward<T, T>(a), chunks);
  });
}

// By the numbers of plan::norm_backward::Kernel.
using Launcher = int(const NormBackward&, const Plan&, cudaStream_t);
constexpr Launcher* kLaunchers[] = {
    norm_backward_registers, norm_backward_single_wave, norm_backward_words,
    norm_backward_ring,      norm_backward_wide,        norm_backward_long,
};

}  // namespace

Plan norm_backward_plan(const NormBackward& a) {
  using Kernel = plan::norm_backward::Kernel;
  const plan::Row row = row_of(a);
  const Card here = card();
  Plan plan = plan::norm_backward::plan(row, a.rows, here);
  const int64_t clusters = plan.by().kernel == Kernel::ring        ? norm_backward_ring_clusters(a, plan)
                           : plan.by().kernel == Kernel::ring_long ? norm_backward_wide_clusters(a, plan)
                                                                   : 0;
  plan.columns = column_order(plan, row, a.rows, here, clusters);
  return plan;
}

int norm_backward(const NormBackward& a, const Plan& plan, void* stream_handle) {
  using Kernel = plan::norm_backward::Kernel;
  auto stream = static_cast<cudaStream_t>(stream_handle);
  const Kernel kernel = plan.by().kernel;
  const bool columns = kernel != Kernel::single_wave && a.wants_parameters() &&
                       (a.gather == Gather::columns || kernel == Kernel::long_row);
  int error = cudaSuccess;
  if (a.grad_input || !columns) error = kLaunchers[static_cast<int>(kernel)](a, plan, stream);
  return error == cudaSuccess && columns ? launch_columns(a, stream) : error;
}

}  // namespace fastops::FASTOPS_ARCH
