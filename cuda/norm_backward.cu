// The backward of the norms; formulas in norm_backward.cuh. Blocks stay and walk over rows; while one row is worked on, the
// next one is on its way into registers. The sums for the parameters stay in registers to the end and leave as one row of
// `partial` a block. Few rows go to norm_backward_few.cu, longer ones to norm_backward_ring.cu where the card has clusters,
// those of single elements to norm_backward_ragged.cu; what none of them takes is read several times.
#include "norm_backward.cuh"
#include "norm_columns.cuh"
#include "norm_ring.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kThreads = 512;  // a multiprocessor's: with 128 registers each, no more fit

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

constexpr int kColumnWarps = 8;

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

// By the dtype and n, nothing else, but for more rows than anybody has.
TeamPlan plan_of(const NormBackward& a) {
  if (a.rows > kMostRows) return {0, 0, 0};
  const int64_t size = size_of(a.dtype), full = 16 / size;
  if (a.n % full != 0 && !(full == 8 && a.n % 4 == 0)) return {0, 0, 0};
  const int64_t each = kVectors * full;  // elements a thread
  auto teams = [&](int64_t most) { return static_cast<int>(std::clamp<int64_t>(kShared / part_bytes(a), 1, most)); };
  if (a.n % full == 0)
    for (int lanes : {8, 16})
      if (a.n <= lanes * each) return {lanes, 1, kLaneThreads / lanes};
  if (a.n <= kWarp * each) return {kWarp, 1, kLaneThreads / kWarp};
  const int64_t warps = ceil_div(a.n, kWarp * each);
  if (warps > kThreads / kWarp) return {0, 0, 0};
  return {0, static_cast<int>(warps), teams(std::max<int64_t>(1, 8 / warps))};
}

int64_t blocks_of(const NormBackward& a, const TeamPlan& plan) {
  if (plan.warps == 0) return resident_blocks(a.rows, 1, 1024 / kThreads);
  return resident_blocks(a.rows, plan.teams, kThreads / plan.threads());
}

int64_t column_tiles(const NormBackward& a) { return ceil_div(a.n * size_of(a.dtype), 16 * kWarp); }

// Rows so few that reading them again, at the same time, is faster than partial sums and a kernel for them.
bool few_rows(const NormBackward& a) { return a.rows <= kFewRows && a.rows * a.n * size_of(a.dtype) <= 1 << 20; }

template <Norm N, class T, class P, int W, int Lanes>
int launch(const NormBackward& args, const TeamPlan& plan, cudaStream_t stream) {
  const Backward<T, P> a(args);
  const auto blocks = static_cast<unsigned>(args.chunks);
  return dispatch_bool(args.grad_sum != nullptr, [&](auto grad_sum) -> int {
    return launch_kernel(&backward_kernel<N, T, P, W, Lanes, decltype(grad_sum)::value>,
                         launch_config(blocks, plan.threads(), stream, parts_bytes(args, plan.teams)), a, plan.warps);
  });
}

template <Norm N, class T, class P, int W>
int launch_width(const NormBackward& args, cudaStream_t stream) {
  const TeamPlan plan = plan_of(args);
  if constexpr (W == kVector<T>) {
    if (plan.lanes == 8) return launch<N, T, P, W, 8>(args, plan, stream);
    if (plan.lanes == 16) return launch<N, T, P, W, 16>(args, plan, stream);
  }
  if constexpr (W > 1) {
    if (plan.lanes == kWarp) return launch<N, T, P, W, kWarp>(args, plan, stream);
    if (plan.warps) return launch<N, T, P, W, 0>(args, plan, stream);
  }
  if (!args.grad_input) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(blocks_of(args, plan));
  return launch_kernel(&backward_long_kernel<N, T, P, W>, launch_config(blocks, kThreads, stream),
                       Backward<T, P>(args));
}

template <Norm N, class T, class P, int W>
int launch_columns(const NormBackward& a, cudaStream_t stream) {
  const int64_t chunks = a.partial ? a.chunks : 1, tiles = a.partial ? column_tiles(a) : ceil_div(a.n / W, kWarp);
  const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(std::min<int64_t>(tiles, 65535)));
  const bool more = a.gather == Gather::columns && a.rows > kColumnWarps * kColumnRows;
  const int threads = (more ? kMostColumnWarps : kColumnWarps) * kWarp;
  return launch_kernel(&backward_columns_kernel<N, T, P, W>, launch_config(grid, threads, stream), Backward<T, P>(a),
                       chunks);
}

// How the kernel of many rows adds up a row, where the problem is one for norm_backward_few.cu.
std::optional<SumOrder> few_order(const NormBackward& a) {
  if (!few_rows(a) || !few_takes(a)) return std::nullopt;
  if (ring_takes(a)) return ring_order(a);
  if (ragged_takes(a)) return ragged_order(a);
  const TeamPlan plan = plan_of(a);
  if (plan.warps == 0) return std::nullopt;
  return SumOrder{plan.lanes ? plan.lanes : kWarp, plan.warps, 0, 0};
}

}  // namespace

void norm_backward_plan(NormBackward& a) {
  if (few_order(a)) {
    a.chunks = 1;
    a.gather = a.rows == 1 ? Gather::whole : Gather::columns;
    return;
  }
  const bool ring = ring_takes(a), ragged = ragged_takes(a);
  const TeamPlan plan = plan_of(a);
  const bool one_pass = ring || ragged || plan.warps;
  if (ring)
    a.chunks = norm_backward_ring_chunks(a);
  else if (ragged)
    a.chunks = norm_backward_ragged_chunks(a);
  else if (one_pass)
    a.chunks = blocks_of(a, plan);
  else
    a.chunks = std::clamp<int64_t>(8 * multiprocessors() / column_tiles(a), 1, ceil_div(a.rows, kColumnWarps));
  a.gather = one_pass && a.chunks == 1 ? Gather::whole : few_rows(a) ? Gather::columns : Gather::partial;
}

int norm_backward(const NormBackward& a, void* stream_handle) {
  if (const auto order = few_order(a)) return norm_backward_few(a, *order, stream_handle);
  auto stream = static_cast<cudaStream_t>(stream_handle);
  const bool ring = ring_takes(a), ragged = ragged_takes(a), one_pass = ring || ragged || plan_of(a).warps;
  const bool columns = a.wants_parameters() && (a.gather == Gather::columns || !one_pass);
  const bool rows = a.grad_input || !columns;
  if ((ring || ragged) && rows) {
    const int error = ring ? norm_backward_ring(a, stream) : norm_backward_ragged(a, stream);
    if (error != cudaSuccess || !columns) return error;
  }
  return dispatch_problem(a, [&](auto norm, auto t, auto p) -> int {
    constexpr Norm N = decltype(norm)::value;
    using T = typename decltype(t)::type;
    using P = typename decltype(p)::type;
    return dispatch_width<T>(a.n, [&](auto width) -> int {
      constexpr int W = decltype(width)::value;
      const int error = rows && !ring && !ragged ? launch_width<N, T, P, W>(a, stream) : cudaSuccess;
      return error == cudaSuccess && columns ? launch_columns<N, T, P, W>(a, stream) : error;
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
