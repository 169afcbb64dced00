// The backward of the norms; formulas in norm_backward.cuh, the choice of a kernel in cpp/plan/norm_backward.h. Here are blocks
// that stay and walk over rows; while one row is worked on, the next one is on its way into registers. The sums for the
// parameters stay in registers to the end and leave as one row of `partial` a block. And rows that are read several times.
#include "card.cuh"
#include "dependent.cuh"
#include "norm_backward.cuh"
#include "norm_columns.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

using plan::norm_backward::kThreads;

// Lanes: those of a row; 0: `warps` warps.
template <Norm N, class T, class P, int W, int Lanes, bool GradSum>
__global__ void __launch_bounds__(Lanes ? kLaneThreads : kThreads, Lanes ? kThreads / kLaneThreads : 1)
    backward_kernel(const __grid_constant__ Backward<T, P> a, int warps) {
  using A = accumulate_t<T>;
  constexpr int V = kVectors * kVector<T> / W, S = kSums<N>;
  constexpr bool kLate = N == Norm::rms && W == kVector<T>;  // norm_backward_ring.cu says why; the others lose by it
  using Row = Vector<T, W>;
  __shared__ Scratch<A, S> scratch[Lanes ? 1 : 2][Lanes ? 1 : kThreads / kWarp / 2];
  const int team = Lanes ? Lanes : warps * kWarp, thread = threadIdx.x % team, which = threadIdx.x / team;
  const int teams = blockDim.x / team, n = static_cast<int>(a.n), vectors = n / W;
  const int rows = static_cast<int>(a.rows);  // 32 bits are enough for kMostRows, and registers are scarce

  wait_for_earlier_kernels();
  Vector<P, W> w[V];
  A weight_sum[V][W] = {}, bias_sum[N == Norm::layer ? V : 1][W] = {};
#pragma unroll
  for (int g = 0; g < V; ++g) w[g] = weight_or_one(a.weight).template vector_or_zero<W>(g * team + thread, vectors);

  Row next_x[V], next_grad[V];
  RowNumbers<A> next;
  auto fetch = [&](int row) {
    next = row_numbers<N>(a, row);
#pragma unroll
    for (int g = 0; g < V; ++g) {
      const int i = g * team + thread;
      next_x[g] = next_grad[g] = Row{};
      if (row >= rows || i >= vectors) continue;
      next_x[g] = reinterpret_cast<const Row*>(a.input + row * a.input_stride)[i];
      next_grad[g] = reinterpret_cast<const Row*>(a.grad + row * a.grad_stride)[i];
    }
  };
  const int step = gridDim.x * teams;
  int row = which * gridDim.x + blockIdx.x, turn = 0;
  fetch(row);
  if constexpr (!kLate) let_next_kernel_start();
  // All teams take as many turns: their threads meet.
  for (int base = 0; base < rows; base += step, row += step) {
    const RowNumbers<A> numbers = next;
    A h[V][W], grad[V][W];
#pragma unroll
    for (int g = 0; g < V; ++g) {
      device::widen(next_x[g], h[g]);
      device::widen(next_grad[g], grad[g]);
    }
    Row grad_sum[GradSum ? V : 1];
    if constexpr (GradSum) {
#pragma unroll
      for (int g = 0; g < V; ++g) {
        const int i = g * team + thread;
        if (row < rows && i < vectors)
          grad_sum[g] = reinterpret_cast<const Row*>(a.grad_sum + row * a.grad_sum_stride)[i];
      }
    }
    fetch(row + step);
    Sums<A, S> sums = {};
#pragma unroll
    for (int g = 0; g < V; ++g)
      first_pass<N, W, A>(h[g], grad[g], g * team + thread < vectors, w[g], a.offset, numbers, sums, weight_sum[g],
                          bias_sum[N == Norm::layer ? g : 0]);
    if constexpr (Lanes) {
      lane_sum<Lanes>(sums);
    } else {
      team_sum(sums, warps, thread / kWarp, scratch[turn][which], TeamBarrier{which, team});
      turn ^= 1;
    }
    divide(sums, a.inverse_n);
    if (!a.grad_input || row >= rows) continue;
    Row* out = reinterpret_cast<Row*>(a.grad_input + row * a.n);
#pragma unroll
    for (int g = 0; g < V; ++g) {
      const int i = g * team + thread;
      if constexpr (GradSum)
        second_pass<N, W, A>(h[g], grad[g], sums, numbers.rstd, grad_sum[g]);
      else
        second_pass<N, W, A>(h[g], grad[g], sums, numbers.rstd);
      if (i < vectors) out[i] = device::narrow_all<T>(h[g]);
    }
  }
  if constexpr (kLate) let_next_kernel_start();
  if (!a.partial && !a.whole) return;

  extern __shared__ __align__(16) unsigned char shared[];
  A* const result = a.partial + blockIdx.x * S * a.n;
  A* const own = teams == 1 ? result : reinterpret_cast<A*>(shared) + static_cast<int64_t>(which) * S * n;
#pragma unroll
  for (int g = 0; g < V; ++g) {
    const int i = g * team + thread;
    if (i >= vectors) continue;
    if (a.whole && teams == 1) {
      store_parameter_grad<W>(a, 0, i * W, weight_sum[g]);
      if constexpr (N == Norm::layer) store_parameter_grad<W>(a, 1, i * W, bias_sum[g]);
      continue;
    }
#pragma unroll
    for (int k = 0; k < W; ++k) {
      own[i * W + k] = weight_sum[g][k];
      if constexpr (N == Norm::layer) own[n + i * W + k] = bias_sum[g][k];
    }
  }
  if (teams == 1) return;
  __syncthreads();
  add_parts(a, reinterpret_cast<const A*>(shared), teams, static_cast<int64_t>(S) * n, result);
}

// Rows too long for registers: two passes over a row for grad_input.
template <Norm N, class T, class P, int W>
__global__ void __launch_bounds__(kThreads) backward_long_kernel(const __grid_constant__ Backward<T, P> a) {
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
    A h[W], grad[W], unused[W] = {};
    auto first = [&](int64_t i, Sums<A, S>& into) {
      device::widen(input[i], h);
      device::widen(incoming[i], grad);
      const Vector<P, W> w = weight_or_one(a.weight).template vector<W>(i);
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
        second_pass<N, W, A>(h, grad, sums, numbers.rstd, grad_sum[i]);
      else
        second_pass<N, W, A>(h, grad, sums, numbers.rstd);
      out[i] = device::narrow_all<T>(h);
    }
  }
}

using plan::norm_backward::kColumnWarps;

// Where rows are few, nothing is needed here of a kernel of this problem before it, so that both run at a time: the second
// rule of dependent.cuh.
template <Norm N, class T, class P, int W>
__global__ void __launch_bounds__(kWarp* kMostColumnWarps)
    backward_columns_kernel(const __grid_constant__ Backward<T, P> a, int64_t chunks) {
  using A = accumulate_t<T>;
  __shared__ ColumnParts<N, A, W> parts;
  const int64_t begin = blockIdx.x * a.rows / chunks, end = (blockIdx.x + 1) * a.rows / chunks;
  A* const partial = a.partial ? a.partial + blockIdx.x * kSums<N> * a.n : nullptr;
  if (!a.grad_input) wait_for_earlier_kernels();  // else this one is behind the kernel that makes it
  sum_columns<N, W>(a, begin, end, blockIdx.y, gridDim.y, partial, parts);
  wait_for_earlier_kernels();  // whoever waits for this kernel waits for those too
}

// ---- host ------------------------------------------------------------------------------------------------------------

template <Norm N, class T, class P, int W, int Lanes, bool GradSum>
int launch(const NormBackward& args, const Plan& plan, cudaStream_t stream) {
  const int warps = Lanes ? 1 : plan.order.threads / kWarp;
  const auto blocks = static_cast<unsigned>(args.chunks);
  return launch_kernel(&backward_kernel<N, T, P, W, Lanes, GradSum>,
                       launch_config(blocks, plan.threads, stream, parts_bytes(args, plan.teams)), Backward<T, P>(args),
                       warps);
}

template <plan::Access Access>
int launch_registers(const NormBackward& args, const Plan& plan, cudaStream_t stream) {
  return with_form<BackwardTable, BackwardTable::Kernel::registers, Access>(plan, [&](auto form) -> int {
    using Form = decltype(form);
    return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
      constexpr Norm N = decltype(norm)::value;
      using T = typename decltype(t)::type;
      using P = typename decltype(p)::type;
      constexpr int W = Access == plan::Access::vec16 ? kVector<T> : 4;
      constexpr int Lanes = Form::rule.team.team == plan::Team::lanes ? Form::rule.team.threads : 0;
      if constexpr (Form::is_for(kProblem<N, T, P>)) {
        static_assert(Form::rule.team.each == kVectors * kVector<T> / W);
        return args.grad_sum ? launch<N, T, P, W, Lanes, true>(args, plan, stream)
                             : launch<N, T, P, W, Lanes, false>(args, plan, stream);
      }
      return cudaErrorInvalidValue;
    });
  });
}

int norm_backward_registers(const NormBackward& a, const Plan& plan, cudaStream_t stream) {
  return plan.order.access == plan::Access::vec16 ? launch_registers<plan::Access::vec16>(a, plan, stream)
                                                  : launch_registers<plan::Access::vec8>(a, plan, stream);
}

// f(norm, tag<T>, tag<P>, width)
template <class F>
int dispatch_all(const NormBackward& a, F f) {
  return dispatch_problem(a, [&](auto norm, auto t, auto p) -> int {
    return dispatch_width<typename decltype(t)::type>(a.n, [&](auto width) -> int { return f(norm, t, p, width); });
  });
}

int norm_backward_long(const NormBackward& a, const Plan&, cudaStream_t stream) {
  if (!a.grad_input) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(a.rows, 2 * card().multiprocessors));
  return dispatch_all(a, [&](auto norm, auto t, auto p, auto width) -> int {
    using T = typename decltype(t)::type;
    using P = typename decltype(p)::type;
    return launch_kernel(&backward_long_kernel<decltype(norm)::value, T, P, decltype(width)::value>,
                         launch_config(blocks, kThreads, stream), Backward<T, P>(a));
  });
}

int launch_columns(const NormBackward& a, cudaStream_t stream) {
  return dispatch_all(a, [&](auto norm, auto t, auto p, auto width) -> int {
    constexpr int W = decltype(width)::value;
    using T = typename decltype(t)::type;
    using P = typename decltype(p)::type;
    const int64_t chunks = a.partial ? a.chunks : 1,
                  tiles = a.partial ? plan::norm_backward::column_tiles(a.n, a.dtype) : ceil_div(a.n / W, kWarp);
    const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(std::min<int64_t>(tiles, 65535)));
    const bool more = a.gather == Gather::columns && a.rows > kColumnWarps * kColumnRows;
    const int threads = (more ? kMostColumnWarps : kColumnWarps) * kWarp;
    return launch_kernel(&backward_columns_kernel<decltype(norm)::value, T, P, W>, launch_config(grid, threads, stream),
                         Backward<T, P>(a), chunks);
  });
}

// By the numbers of plan::norm_backward::Kernel.
using Launcher = int(const NormBackward&, const Plan&, cudaStream_t);
constexpr Launcher* kLaunchers[] = {
    norm_backward_registers, norm_backward_single_wave, norm_backward_ragged,
    norm_backward_ring,      norm_backward_wide,        norm_backward_long,
};

}  // namespace

Plan norm_backward_plan(const NormBackward& a) {
  using Kernel = BackwardTable::Kernel;
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
  using Kernel = BackwardTable::Kernel;
  auto stream = static_cast<cudaStream_t>(stream_handle);
  const Kernel kernel = plan.by().kernel;
  const bool columns = kernel != Kernel::single_wave && a.wants_parameters() &&
                       (a.gather == Gather::columns || kernel == Kernel::long_row);
  int error = cudaSuccess;
  if (a.grad_input || !columns) error = kLaunchers[static_cast<int>(kernel)](a, plan, stream);
  return error == cudaSuccess && columns ? launch_columns(a, stream) : error;
}

}  // namespace fastops::FASTOPS_ARCH
