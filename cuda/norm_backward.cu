// The backward of the norms; formulas in norm_backward.cuh. Blocks stay and walk over rows; while one row is worked on, the
// next one is on its way into registers. The sums for the parameters stay in registers to the end and leave as one row of
// `partial` a block. Longer rows go to norm_backward_ring.cu where the card has clusters, those of single elements to
// norm_backward_ragged.cu; what neither takes is read several times.
#include "norm_backward.cuh"
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
  using Row = Vector<T, W>;
  __shared__ Scratch<A, S> scratch[Lanes ? 1 : 2][Lanes ? 1 : kThreads / kWarp / 2];
  const int team = Lanes ? Lanes : warps * kWarp, thread = threadIdx.x % team, which = threadIdx.x / team;
  const int teams = blockDim.x / team, n = static_cast<int>(a.n), vectors = n / W;
  const int rows = static_cast<int>(a.rows);  // 32 bits are enough for kMostRows, and registers are scarce

  wait_for_earlier_kernels();
  Vector<P, W> w[V];
  A weight_sum[V][W] = {}, bias_sum[N == Norm::layer ? V : 1][W] = {};
#pragma unroll
  for (int g = 0; g < V; ++g) w[g] = weight_or_one(a.weight).template vector<W>(min(g * team + thread, vectors - 1));

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
  let_next_kernel_start();
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
#pragma unroll
    for (int k = 0; k < S; ++k) sums.at[k] *= a.inverse_n;
    if (!a.grad_input || row >= rows) continue;
    Row* out = reinterpret_cast<Row*>(a.grad_input + row * a.n);
#pragma unroll
    for (int g = 0; g < V; ++g) {
      const int i = g * team + thread;
      second_pass<N, W, A>(h[g], grad[g], sums, numbers.rstd);
      if constexpr (GradSum) add<T, W, A>(h[g], grad_sum[g]);
      if (i < vectors) out[i] = device::narrow_all<T>(h[g]);
    }
  }
  if (!a.partial && !a.whole) return;

  extern __shared__ __align__(16) unsigned char shared[];
  const int parts = parts_of(a, teams);
  A* const result = a.partial + blockIdx.x * S * a.n;
  A* const own = parts == 1 ? result : reinterpret_cast<A*>(shared) + static_cast<int64_t>(which) * S * n;
#pragma unroll
  for (int g = 0; g < V; ++g) {
    const int i = g * team + thread;
    if (i >= vectors || which >= parts) continue;
    if (a.whole && parts == 1) {
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
  if (parts == 1) return;
  __syncthreads();
  add_parts(a, reinterpret_cast<const A*>(shared), parts, static_cast<int64_t>(S) * n, result);
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
#pragma unroll
    for (int k = 0; k < S; ++k) sums.at[k] *= a.inverse_n;
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
      Sums<A, S> ignored = {};
      first(i, ignored);
      second_pass<N, W, A>(h, grad, sums, numbers.rstd);
      if (a.grad_sum) add<T, W, A>(h, grad_sum[i]);
      out[i] = device::narrow_all<T>(h);
    }
  }
}

constexpr int kColumnRows = 4;                          // of a warp, under way at a time
constexpr int kColumnWarps = 8, kMostColumnWarps = 16;  // where all rows are to be under way at once
constexpr int kFewRows = kMostColumnWarps * kColumnRows;

// The sums over rows where no block holds a whole row, or rows are few: a warp takes 32 vectors of columns, the block's
// warps different rows of its chunk (blockIdx.x), added at the end in the order of the warps. Nothing is needed here of a
// kernel of this problem before it, so that both run at a time: the second rule of dependent.cuh.
template <Norm N, class T, class P, int W>
__global__ void __launch_bounds__(kWarp* kMostColumnWarps)
    backward_columns_kernel(const __grid_constant__ Backward<T, P> a, int64_t chunks) {
  using A = accumulate_t<T>;
  constexpr int S = kSums<N>;
  using Row = Vector<T, W>;
  __shared__ A parts[kMostColumnWarps][S * kWarp * W];
  const int warps = blockDim.x / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t begin = blockIdx.x * a.rows / chunks, end = (blockIdx.x + 1) * a.rows / chunks, vectors = a.n / W;
  A* const result = a.partial + blockIdx.x * S * a.n;
  if (!a.grad_input) wait_for_earlier_kernels();  // else this one is behind the kernel that makes it
  for (int64_t tile = blockIdx.y; tile * kWarp < vectors; tile += gridDim.y) {
    const int64_t at = tile * kWarp + lane;
    A weight_sum[W] = {}, bias_sum[W] = {};
    for (int64_t first = begin + warp; at < vectors && first < end; first += kColumnRows * warps) {
      RowNumbers<A> numbers[kColumnRows];
      Row x[kColumnRows], grad[kColumnRows];
#pragma unroll
      for (int k = 0; k < kColumnRows; ++k) {
        const int64_t row = first + k * warps;
        numbers[k] = {};
        x[k] = grad[k] = Row{};
        if (row >= end) continue;
        numbers[k] = row_numbers<N>(a, row);
        x[k] = reinterpret_cast<const Row*>(a.input + row * a.input_stride)[at];
        grad[k] = reinterpret_cast<const Row*>(a.grad + row * a.grad_stride)[at];
      }
#pragma unroll
      for (int k = 0; k < kColumnRows; ++k) {
        A h[W], g[W];
        device::widen(x[k], h);
        device::widen(grad[k], g);
        Sums<A, S> ignored = {};
        first_pass<N, W, A>(h, g, true, weight_or_one<P>(nullptr).template vector<W>(0), A(0), numbers[k], ignored,
                            weight_sum, bias_sum);
      }
    }
    __syncthreads();  // the tile before this one has been written out
#pragma unroll
    for (int k = 0; k < W; ++k) {
      parts[warp][k * kWarp + lane] = weight_sum[k];
      if constexpr (N == Norm::layer) parts[warp][(W + k) * kWarp + lane] = bias_sum[k];
    }
    __syncthreads();
    for (int j = threadIdx.x; j < S * kWarp * W; j += blockDim.x) {
      const int k = j / kWarp % W, sum = j / (kWarp * W);
      const int64_t to = (tile * kWarp + j % kWarp) * W + k;
      if (to >= a.n) continue;
      A total = 0;
#pragma unroll 8
      for (int part = 0; part < warps; ++part) total += parts[part][j];
      if (a.partial)
        result[sum * a.n + to] = total;
      else
        store_parameter_grad<1>(a, sum, to, {total});
    }
  }
  wait_for_earlier_kernels();  // whoever waits for this kernel waits for those too
}

// ---- host ------------------------------------------------------------------------------------------------------------

struct Plan {
  int lanes;  // of a row; 0: warps
  int warps;  // of a row; 0: the row does not fit registers
  int teams;  // of a block
};

// By the dtype and n, nothing else, but for more rows than anybody has.
Plan plan_of(const NormBackward& a) {
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

int64_t blocks_of(const NormBackward& a, const Plan& plan) {
  if (plan.warps == 0) return resident_blocks(a.rows, 1, 1024 / kThreads);
  const int threads = plan.lanes ? kLaneThreads : plan.teams * plan.warps * kWarp;
  return resident_blocks(a.rows, plan.teams, kThreads / threads);
}

int64_t column_tiles(const NormBackward& a) { return ceil_div(a.n * size_of(a.dtype), 16 * kWarp); }

// Rows so few that reading them again, while the first kernel runs, is faster than partial sums after it.
bool few_rows(const NormBackward& a) { return a.rows <= kFewRows && a.rows * a.n * size_of(a.dtype) <= 1 << 20; }

template <Norm N, class T, class P, int W, int Lanes>
int launch(const NormBackward& args, const Plan& plan, cudaStream_t stream) {
  const Backward<T, P> a(args);
  const int teams = teams_with_rows(args, plan.teams, plan.lanes);
  const int threads = teams * (plan.lanes ? plan.lanes : plan.warps * kWarp);
  const auto blocks = static_cast<unsigned>(args.chunks);
  return dispatch_bool(args.grad_sum != nullptr, [&](auto grad_sum) -> int {
    return launch_kernel(&backward_kernel<N, T, P, W, Lanes, decltype(grad_sum)::value>,
                         launch_config(blocks, threads, stream, parts_bytes(args, teams)), a, plan.warps);
  });
}

template <Norm N, class T, class P, int W>
int launch_width(const NormBackward& args, cudaStream_t stream) {
  const Plan plan = plan_of(args);
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

}  // namespace

void norm_backward_plan(NormBackward& a) {
  const bool ring = ring_takes(a), ragged = ragged_takes(a);
  const Plan plan = plan_of(a);
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
