// qk_norm_rope: heads of q and k divided by their root mean square, times a weight, then turned by the angles of their token. With
// h = x·rstd and g the incoming gradient turned back, the gradients are rstd·(g·w - h·mean(g·w·h)) and, of w, the sum of g·h.
#include "rope.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kMostHeads = 8;  // of a team

__device__ inline float reciprocal_root(float x) { return 1 / sqrtf(x); }
__device__ inline double reciprocal_root(double x) { return 1 / sqrt(x); }

template <class A>
__device__ inline A team_sum(A x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// weight + offset at the two vectors of a turn; 1 where there is no weight.
template <bool Aligned, class T, int W, class A>
__device__ inline void load_weight(const QkNormRope& p, int tensor, const Place<W>& place, A (&a)[W], A (&b)[W]) {
  const void* weight = p.weight[tensor];
  const A offset = weight ? A(p.weight_offset) : A(1);
#pragma unroll
  for (int k = 0; k < W; ++k) a[k] = b[k] = 0;
  if (weight) {
    const bool f32 = p.parameter == DType::f32;
    load_either<Aligned, W, T>(weight, place.first, place.first_count, f32, a);
    if (!Aligned || place.second_count > 0)
      load_either<Aligned, W, T>(weight, place.second, place.second_count, f32, b);
  }
#pragma unroll
  for (int k = 0; k < W; ++k) {
    a[k] += offset;
    b[k] += offset;
  }
}

// The tables' numbers of a turn, and the weight's. What is behind the rotary part is turned by nothing.
template <bool Aligned, class T, int W>
struct Factors {
  using A = accumulate_t<T>;
  Angles<W, A> angles;
  A first[W], second[W];

  __device__ void load(const QkNormRope& p, int tensor, int64_t row, const Place<W>& place, bool transposed) {
    load_weight<Aligned, T>(p, tensor, place, first, second);
    if (place.rotates)
      angles = angles_of<Aligned, T, W, A>(p.rotation, row, place, transposed);
    else
      angles.leave();
  }
};

// A head has no more turns than a team has lanes. All lanes of a warp stay until its sums are done: those of a team without a task,
// and those without a turn, have no heads.
template <class T, bool Aligned>
__global__ void __launch_bounds__(kRopeThreads, kBlocksEach<T>)
    forward_kernel(const __grid_constant__ QkNormRope p, const __grid_constant__ RopeTasks tasks) {
  using A = accumulate_t<T>;
  constexpr int W = kPairs, N = kHeadsAtOnce;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int lane = threadIdx.x % tasks.lanes;
  const int64_t all = tasks.tokens * (tasks.groups[0] + tasks.groups[1]);
  const int64_t own = static_cast<int64_t>(blockIdx.x) * (kRopeThreads / tasks.lanes) + threadIdx.x / tasks.lanes;
  const RopeTask task = task_of(p, tasks, own < all ? own : all - 1);
  const int heads = static_cast<int>(p.input[task.tensor].heads);
  const int count = own < all ? (heads - task.first + task.step - 1) / task.step : 0;
  const TeamHeads<const T> from(p.input[task.tensor], task);
  const TeamHeads<T> to(p.output[task.tensor], task);
  const int64_t row = table_row(p.rotation, task.batch, task.seq);
  const bool interleaved = p.rotation.interleaved;
  const A each = 1 / A(p.rotation.dim), eps = A(p.eps);

  const Place<W> place(p.rotation, tasks, lane);
  const bool has_turn = lane < tasks.all_turns;
  Angles<W, A> angles;
  const auto add_squares = [](const Two<T, W>& x, A& sum) {
    A a[W], b[W], terms[W];
    device::widen(x.a, a);
    device::widen(x.b, b);
#pragma unroll
    for (int j = 0; j < W; ++j) terms[j] = fma(a[j], a[j], b[j] * b[j]);
    sum += device::tree_sum(terms);
  };
  const auto write = [&](const Two<T, W>& x, A rstd, T* head) {
    A a[W], b[W];
    device::widen(x.a, a);
    device::widen(x.b, b);
    angles.apply(place.rotates, interleaved, a, b);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      a[j] *= rstd;
      b[j] *= rstd;
    }
    store_turn<Aligned>(head, place, a, b);
  };

  Two<T, W> x[N];
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = load_two<Aligned>(from[k], has_turn && k < count, place);
  if (has_turn) {
    Factors<Aligned, T, W> factors;
    factors.load(p, task.tensor, row, place, false);
    angles = factors.angles;
    angles.multiply(interleaved, factors.first, factors.second);
  }
#pragma unroll 1
  for (int first = 0; first < tasks.heads_each; first += N) {
    Two<T, W> next[N];
    A squares[N] = {}, rstd[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      next[k] = load_two<Aligned>(from[first + N + k], has_turn && first + N + k < count, place);
      add_squares(x[k], squares[k]);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) rstd[k] = reciprocal_root(fma(team_sum(squares[k], tasks.lanes), each, eps));
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (has_turn && first + k < count) write(x[k], rstd[k], to[first + k]);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = next[k];
  }
}

// The blocks of a tensor, which come one tensor behind the other.
struct BackwardTasks : RopeTasks {
  int blocks[2];
};

// A block goes through the tasks of one tensor. What it finds for the gradient of the weight is in shared memory, a place for each
// thread and number.
template <class T, bool Aligned>
__global__ void __launch_bounds__(kRopeThreads, 2)
    backward_kernel(const __grid_constant__ QkNormRopeBackward p, const __grid_constant__ BackwardTasks tasks) {
  using A = accumulate_t<T>;
  constexpr int W = kPairs, N = kHeadsAtOnce;
  extern __shared__ double shared[];
  wait_for_earlier_kernels();
  let_next_kernel_start();
  A* const sums = reinterpret_cast<A*>(shared);
  constexpr int threads = kRopeThreads;
  const int teams = threads / tasks.lanes;
  const int lane = threadIdx.x % tasks.lanes, team = threadIdx.x / tasks.lanes;
  const int tensor = blockIdx.x >= static_cast<unsigned>(tasks.blocks[0]);
  const int block = blockIdx.x - (tensor ? tasks.blocks[0] : 0), groups = tasks.groups[tensor];
  const int heads = static_cast<int>(p.input[tensor].heads);
  const bool adds = p.partial[tensor] != nullptr;
  const bool interleaved = p.rotation.interleaved;
  if (adds)
    for (int k = 0; k < 2 * W; ++k) sums[k * threads + threadIdx.x] = 0;
  const Place<W> place(p.rotation, tasks, lane);
  const bool has_turn = lane < tasks.all_turns;

  const A each = 1 / A(p.rotation.dim), eps = A(p.eps);
  const int64_t all = tasks.tokens * groups, step = static_cast<int64_t>(tasks.blocks[tensor]) * teams;
  // All lanes of a warp go on until none has a task left, because sums need them.
  for (int64_t base = static_cast<int64_t>(block) * teams; base < all; base += step) {
    const int64_t number = min(base + team, all - 1), token = device::quotient(number, groups);
    const RopeTask task =
        task_of(p, tasks, token, static_cast<int>(number - token * groups) + (tensor ? tasks.groups[0] : 0));
    const int count = base + team < all ? (heads - task.first + task.step - 1) / task.step : 0;
    const TeamHeads<const T> from(p.input[tensor], task), grads(p.grad[tensor], task);
    const TeamHeads<T> to(p.output[tensor], task);
    const int64_t row = table_row(p.rotation, task.batch, task.seq);

    Factors<Aligned, T, W> by;
    A of_a[W] = {}, of_b[W] = {};  // for the gradient of the weight
    // x and the gradient turned back.
    const auto widen = [&](const Two<T, W>& x, const Two<T, W>& g, A(&a)[W], A(&b)[W], A(&u)[W], A(&v)[W]) {
      device::widen(x.a, a);
      device::widen(x.b, b);
      device::widen(g.a, u);
      device::widen(g.b, v);
      by.angles.apply(place.rotates, interleaved, u, v);
    };
    const auto add_sums = [&](const Two<T, W>& x, const Two<T, W>& g, A& squares, A& products) {
      A a[W], b[W], u[W], v[W], s[W], t[W];
      widen(x, g, a, b, u, v);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        s[j] = fma(a[j], a[j], b[j] * b[j]);
        t[j] = fma(u[j] * by.first[j], a[j], v[j] * by.second[j] * b[j]);
      }
      squares += device::tree_sum(s);
      products += device::tree_sum(t);
    };
    const auto write = [&](const Two<T, W>& x, const Two<T, W>& g, A rstd, A mean, T* head) {
      A a[W], b[W], u[W], v[W];
      widen(x, g, a, b, u, v);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const A h = a[j] * rstd, i = b[j] * rstd;
        of_a[j] = fma(u[j], h, of_a[j]);
        of_b[j] = fma(v[j], i, of_b[j]);
        a[j] = rstd * fma(-h, mean, u[j] * by.first[j]);
        b[j] = rstd * fma(-i, mean, v[j] * by.second[j]);
      }
      store_turn<Aligned>(head, place, a, b);
    };
    Two<T, W> x[N], g[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[k] = load_two<Aligned>(from[k], has_turn && k < count, place);
      g[k] = load_two<Aligned>(grads[k], has_turn && k < count, place);
    }
    if (has_turn) by.load(p, tensor, row, place, true);
#pragma unroll 1
    for (int first = 0; first < tasks.heads_each; first += N) {
      Two<T, W> next_x[N], next_g[N];
      A squares[N] = {}, products[N] = {}, rstd[N], mean[N];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const bool live = has_turn && first + N + k < count;
        next_x[k] = load_two<Aligned>(from[first + N + k], live, place);
        next_g[k] = load_two<Aligned>(grads[first + N + k], live, place);
        if (has_turn) add_sums(x[k], g[k], squares[k], products[k]);
      }
#pragma unroll
      for (int k = 0; k < N; ++k) {
        rstd[k] = reciprocal_root(fma(team_sum(squares[k], tasks.lanes), each, eps));
        mean[k] = team_sum(products[k], tasks.lanes) * each * rstd[k];  // of g·w·h
      }
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (has_turn && first + k < count) write(x[k], g[k], rstd[k], mean[k], to[first + k]);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        x[k] = next_x[k];
        g[k] = next_g[k];
      }
    }
    if (!adds || !has_turn) continue;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      sums[2 * j * threads + threadIdx.x] += of_a[j];
      sums[(2 * j + 1) * threads + threadIdx.x] += of_b[j];
    }
  }
  if (!adds) return;
  __syncthreads();
  // Number d of a head: the sum of its places, over the teams in their order.
  A* const partial = static_cast<A*>(p.partial[tensor]) + block * p.rotation.dim;
  for (int d = threadIdx.x; d < p.rotation.dim; d += threads) {
    const int rotary = static_cast<int>(p.rotation.rotary), half = rotary / 2;
    int turn, j, second;
    if (d < rotary && !interleaved) {
      turn = d % half / W;
      second = d / half;
      j = d % half % W;
    } else {
      const int at = d < rotary ? d : d - rotary;
      turn = at / (2 * W) + (d < rotary ? 0 : tasks.rotary_turns);
      second = at / W % 2;
      j = at % W;
    }
    const A* own = sums + (2 * j + second) * threads + turn;
    A sum = 0;
    for (int k = 0; k < teams; ++k) sum += own[k * tasks.lanes];
    partial[d] = sum;
  }
}

// What a block finds for the gradients of the weights.
size_t shared_bytes(const Rope& p) { return 2 * kPairs * size_of(accumulate_type(p.dtype)) * kRopeThreads; }

// In the order of the tokens, whatever lies where: the order of the weights' sums depends on it. Both layouts have as many heads a
// team for the same reason.
BackwardTasks backward_tasks(const QkNormRopeBackward& p) {
  BackwardTasks tasks{rope_tasks(p, kMostHeads, kMostHeads), {}};
  const int64_t at_once = 2 * card().multiprocessors, groups = tasks.groups[0] + tasks.groups[1];
  const int64_t teams = kRopeThreads / tasks.lanes;
  for (int k = 0; k < p.tensors; ++k) {
    const int64_t share = std::max<int64_t>(1, at_once * tasks.groups[k] / groups);
    tasks.blocks[k] = static_cast<int>(std::min(share, ceil_div(tasks.tokens * tasks.groups[k], teams)));
  }
  return tasks;
}

bool weights_are_aligned(const QkNormRope& p) { return aligned16(p.weight[0]) && aligned16(p.weight[1]); }

}  // namespace

int qk_norm_rope(const QkNormRope& p, void* stream) {
  const RopeTasks tasks = rope_tasks(p, kMostHeads, kMostHeads);
  const int64_t teams = tasks.tokens * (tasks.groups[0] + tasks.groups[1]);
  const auto blocks = static_cast<unsigned>(ceil_div(teams, kRopeThreads / tasks.lanes));
  const auto config = launch_config(blocks, kRopeThreads, static_cast<cudaStream_t>(stream));
  const bool aligned = rope_is_aligned(p) && weights_are_aligned(p);
  return dispatch(p.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return aligned ? launch_kernel(&forward_kernel<T, true>, config, p, tasks)
                   : launch_kernel(&forward_kernel<T, false>, config, p, tasks);
  });
}

void qk_norm_rope_chunks(const QkNormRopeBackward& p, int64_t* chunks) {
  const BackwardTasks tasks = backward_tasks(p);
  for (int k = 0; k < p.tensors; ++k) chunks[k] = tasks.blocks[k];
}

int qk_norm_rope_backward(const QkNormRopeBackward& p, void* stream) {
  const BackwardTasks tasks = backward_tasks(p);
  const size_t shared = p.partial[0] || p.partial[1] ? shared_bytes(p) : 0;
  const auto config = launch_config(static_cast<unsigned>(tasks.blocks[0] + tasks.blocks[1]), kRopeThreads,
                                    static_cast<cudaStream_t>(stream), shared);
  const bool aligned = rope_is_aligned(p, p.grad, p.tensors) && weights_are_aligned(p);
  return dispatch(p.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return aligned ? launch_kernel(&backward_kernel<T, true>, config, p, tasks)
                   : launch_kernel(&backward_kernel<T, false>, config, p, tasks);
  });
}

}  // namespace fastops::FASTOPS_ARCH
