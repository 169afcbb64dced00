// qk_norm_rope: heads of q and k divided by their root mean square, times a weight, then turned by the angles of their token. With
// h = x·rstd and g the incoming gradient turned back, the gradients are rstd·(g·w - h·mean(g·w·h)) and, of w, the sum of g·h.
#include "rope.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kHeadsEach = 4, kBackwardHeadsEach = 2;
constexpr int kBlocksEach = 2;  // of a multiprocessor

// Pairs of a lane: of the half types two vectors of 8 bytes, because with 16 a lane has too few registers.
constexpr int pairs_of(int64_t size) { return size == 8 ? 2 : 4; }
template <class T>
constexpr int kPairs = pairs_of(sizeof(T));

__device__ inline float reciprocal_root(float x) { return 1 / sqrtf(x); }
__device__ inline double reciprocal_root(double x) { return 1 / sqrt(x); }

template <class A>
__device__ inline A team_sum(A x, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// weight + offset at a turn's numbers; 1 where there is no weight.
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

// The tables' numbers times the weights: what is behind the rotary part is turned by nothing.
template <bool Aligned, class T, int W>
__device__ inline Angles<W, accumulate_t<T>> weighted_angles(const QkNormRope& p, int tensor, int64_t row,
                                                             const Place<W>& place) {
  using A = accumulate_t<T>;
  A first[W], second[W];
  load_weight<Aligned, T>(p, tensor, place, first, second);
  Angles<W, A> angles;
  if (place.rotates) {
    angles = angles_of<Aligned, T, W, A>(p.rotation, row, place, false);
    part(place.interleaved, first, second);
  }
#pragma unroll
  for (int k = 0; k < W; ++k) {
    angles.first[k] = place.rotates ? angles.first[k] * first[k] : first[k];
    angles.first_sine[k] = place.rotates ? angles.first_sine[k] * second[k] : A(0);
    angles.second[k] = place.rotates ? angles.second[k] * second[k] : second[k];
    angles.second_sine[k] = place.rotates ? angles.second_sine[k] * first[k] : A(0);
  }
  return angles;
}

// The two vectors of a turn; of a lane without one, or of a head that is not there, 0.
template <class T, int W>
struct Two {
  Vector<T, W> a, b;
};
template <bool Aligned, class T, int W>
__device__ inline Two<T, W> load_two(const T* head, bool live, const Place<W>& place) {
  Two<T, W> v = {};
  if (!live) return v;
  v.a = load_narrow<Aligned, W>(head + place.first, place.first_count);
  if (!Aligned || place.second_count > 0) v.b = load_narrow<Aligned, W>(head + place.second, place.second_count);
  return v;
}

template <class T, bool Aligned>
__global__ void __launch_bounds__(kRopeThreads, kBlocksEach)
    forward_kernel(const __grid_constant__ QkNormRope p, const __grid_constant__ RopeTasks tasks) {
  using A = accumulate_t<T>;
  constexpr int W = kPairs<T>;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int lane = threadIdx.x % tasks.lanes;
  const int64_t count = tasks.tokens * (tasks.groups[0] + tasks.groups[1]);
  const int64_t own = static_cast<int64_t>(blockIdx.x) * (kRopeThreads / tasks.lanes) + threadIdx.x / tasks.lanes;
  const bool there = own < count;  // the others' lanes are needed for the sums of their warp
  const RopeTask task = task_of(p, tasks, there ? own : count - 1);
  const Heads &from = p.input[task.tensor], &to = p.output[task.tensor];
  const auto head = [&](int k) { return task.first + k * task.step; };
  const auto live = [&](int k) { return there && head(k) < from.heads; };

  Two<T, W> x[kHeadsEach] = {};
  A squares[kHeadsEach] = {};
  for (int turn = lane; turn < tasks.all_turns; turn += tasks.lanes) {
    const Place<W> place(p.rotation, tasks, turn);
#pragma unroll
    for (int k = 0; k < kHeadsEach; ++k)
      x[k] = load_two<Aligned>(head_of<const T>(from, task, head(k)), live(k), place);
#pragma unroll
    for (int k = 0; k < kHeadsEach; ++k) {
      A a[W], b[W], terms[W];
      device::widen(x[k].a, a);
      device::widen(x[k].b, b);
#pragma unroll
      for (int j = 0; j < W; ++j) terms[j] = fma(a[j], a[j], b[j] * b[j]);
      squares[k] += device::tree_sum(terms);
    }
  }
  A rstd[kHeadsEach];
#pragma unroll
  for (int k = 0; k < kHeadsEach; ++k)
    rstd[k] = reciprocal_root(team_sum(squares[k], tasks.lanes) / A(p.rotation.dim) + A(p.eps));

  const int64_t row = table_row(p.rotation, task.batch, task.seq);
  for (int turn = lane; turn < tasks.all_turns; turn += tasks.lanes) {
    const Place<W> place(p.rotation, tasks, turn);
    const Angles<W, A> angles = weighted_angles<Aligned, T>(p, task.tensor, row, place);
#pragma unroll
    for (int k = 0; k < kHeadsEach; ++k) {
      if (!live(k)) break;
      if (tasks.all_turns > tasks.lanes) x[k] = load_two<Aligned>(head_of<const T>(from, task, head(k)), true, place);
      A a[W], b[W];
      device::widen(x[k].a, a);
      device::widen(x[k].b, b);
      part(place.interleaved, a, b);
      angles.rotate(a, b);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        a[j] *= rstd[k];
        b[j] *= rstd[k];
      }
      join(place.interleaved, a, b);
      store_turn<Aligned>(head_of<T>(to, task, head(k)), place, a, b);
    }
  }
}

// The blocks of a tensor, which come one tensor behind the other.
struct BackwardTasks : RopeTasks {
  int blocks[2];
};

// A block goes through the tasks of one tensor; what it finds for a weight's gradient is in shared memory, a place for each team.
template <class T, bool Aligned>
__global__ void __launch_bounds__(kRopeThreads, kBlocksEach)
    backward_kernel(const __grid_constant__ QkNormRopeBackward p, const __grid_constant__ BackwardTasks tasks) {
  using A = accumulate_t<T>;
  constexpr int W = kPairs<T>;
  extern __shared__ double shared[];
  wait_for_earlier_kernels();
  let_next_kernel_start();
  A* const sums = reinterpret_cast<A*>(shared);
  const int threads = blockDim.x, teams = threads / tasks.lanes;
  const int lane = threadIdx.x % tasks.lanes, team = threadIdx.x / tasks.lanes;
  const int tensor = blockIdx.x >= static_cast<unsigned>(tasks.blocks[0]);
  const int block = blockIdx.x - (tensor ? tasks.blocks[0] : 0);
  const bool adds = p.partial[tensor] != nullptr;
  const int turns = static_cast<int>((tasks.all_turns + tasks.lanes - 1) / tasks.lanes);
  if (adds)
    for (int k = threadIdx.x; k < turns * 2 * W * threads; k += threads) sums[k] = 0;
  __syncthreads();

  const Heads &from = p.input[tensor], &to = p.output[tensor], &grads = p.grad[tensor];
  const A each = 1 / A(p.rotation.dim);
  const int64_t count = tasks.tokens * tasks.groups[tensor];
  const int64_t step = static_cast<int64_t>(tasks.blocks[tensor]) * teams;
  // All lanes of a warp go on until none has a task left, because sums need them.
  for (int64_t base = static_cast<int64_t>(block) * teams; base < count; base += step) {
    const bool there = base + team < count;
    RopeTask task;
    {
      const int64_t number = there ? base + team : count - 1;
      const int64_t groups = tasks.groups[tensor];
      const int64_t slow = device::quotient(number, tasks.tokens_first ? tasks.tokens : groups);
      const int64_t fast = number - slow * (tasks.tokens_first ? tasks.tokens : groups);
      const int64_t token = tasks.tokens_first ? fast : slow;
      task.tensor = tensor;
      task.batch = device::quotient(token, p.rotation.seq);
      task.seq = token - task.batch * p.rotation.seq;
      task.first = tasks.tokens_first ? slow : fast;
      task.step = groups;
    }
    const auto head = [&](int k) { return task.first + k * task.step; };
    const auto live = [&](int k) { return there && head(k) < from.heads; };
    const int64_t row = table_row(p.rotation, task.batch, task.seq);

    Two<T, W> x[kBackwardHeadsEach] = {}, g[kBackwardHeadsEach] = {};
    A squares[kBackwardHeadsEach] = {}, products[kBackwardHeadsEach] = {};
    A first[W], second[W];
    Angles<W, A> angles;
    const auto prepare = [&](const Place<W>& place) {
      load_weight<Aligned, T>(p, tensor, place, first, second);
      if (place.rotates) {
        angles = angles_of<Aligned, T, W, A>(p.rotation, row, place, true);
        part(place.interleaved, first, second);
      }
    };
    // x and the gradient turned back, in pairs.
    const auto widen = [&](const Place<W>& place, int k, A(&a)[W], A(&b)[W], A(&u)[W], A(&v)[W]) {
      device::widen(x[k].a, a);
      device::widen(x[k].b, b);
      device::widen(g[k].a, u);
      device::widen(g[k].b, v);
      if (place.rotates) {
        part(place.interleaved, a, b);
        part(place.interleaved, u, v);
        angles.rotate(u, v);
      }
    };
    for (int turn = lane; turn < tasks.all_turns; turn += tasks.lanes) {
      const Place<W> place(p.rotation, tasks, turn);
#pragma unroll
      for (int k = 0; k < kBackwardHeadsEach; ++k) {
        x[k] = load_two<Aligned>(head_of<const T>(from, task, head(k)), live(k), place);
        g[k] = load_two<Aligned>(head_of<const T>(grads, task, head(k)), live(k), place);
      }
      prepare(place);
#pragma unroll
      for (int k = 0; k < kBackwardHeadsEach; ++k) {
        A a[W], b[W], u[W], v[W], s[W], t[W];
        widen(place, k, a, b, u, v);
#pragma unroll
        for (int j = 0; j < W; ++j) {
          s[j] = fma(a[j], a[j], b[j] * b[j]);
          t[j] = fma(u[j] * first[j], a[j], v[j] * second[j] * b[j]);
        }
        squares[k] += device::tree_sum(s);
        products[k] += live(k) ? device::tree_sum(t) : A(0);
      }
    }
    A rstd[kBackwardHeadsEach], mean[kBackwardHeadsEach];
#pragma unroll
    for (int k = 0; k < kBackwardHeadsEach; ++k) {
      rstd[k] = reciprocal_root(team_sum(squares[k], tasks.lanes) * each + A(p.eps));
      mean[k] = team_sum(products[k], tasks.lanes) * each * rstd[k];  // of g·w·h
    }
    int place_of_turn = 0;
    for (int turn = lane; turn < tasks.all_turns; turn += tasks.lanes, ++place_of_turn) {
      const Place<W> place(p.rotation, tasks, turn);
      if (turns > 1) prepare(place);
#pragma unroll
      for (int k = 0; k < kBackwardHeadsEach; ++k) {
        if (!live(k)) break;
        if (turns > 1) {
          x[k] = load_two<Aligned>(head_of<const T>(from, task, head(k)), true, place);
          g[k] = load_two<Aligned>(head_of<const T>(grads, task, head(k)), true, place);
        }
        A a[W], b[W], u[W], v[W];
        widen(place, k, a, b, u, v);
#pragma unroll
        for (int j = 0; j < W; ++j) {
          const A h = a[j] * rstd[k], i = b[j] * rstd[k];
          if (adds) {
            A* const own = sums + (place_of_turn * 2 * W + 2 * j) * threads + threadIdx.x;
            own[0] = fma(u[j], h, own[0]);
            own[threads] = fma(v[j], i, own[threads]);
          }
          a[j] = rstd[k] * fma(-h, mean[k], u[j] * first[j]);
          b[j] = rstd[k] * fma(-i, mean[k], v[j] * second[j]);
        }
        if (place.rotates) join(place.interleaved, a, b);
        store_turn<Aligned>(head_of<T>(to, task, head(k)), place, a, b);
      }
    }
  }
  if (!adds) return;
  __syncthreads();
  // Number d of a head: the sum of its places, over the teams in their order.
  A* const partial = static_cast<A*>(p.partial[tensor]) + block * p.rotation.dim;
  for (int d = threadIdx.x; d < p.rotation.dim; d += threads) {
    const int rotary = static_cast<int>(p.rotation.rotary), half = rotary / 2;
    int turn, j, second;
    if (d >= rotary) {
      turn = tasks.rotary_turns + (d - rotary) / (2 * W);
      second = (d - rotary) / W % 2;
      j = (d - rotary) % W;
    } else {
      const int pair = p.rotation.interleaved ? d / 2 : d % half;
      second = p.rotation.interleaved ? d % 2 : d / half;
      turn = pair / W;
      j = pair % W;
    }
    const A* own = sums + (turn / tasks.lanes * 2 * W + 2 * j + second) * threads + turn % tasks.lanes;
    A sum = 0;
    for (int k = 0; k < teams; ++k) sum += own[k * tasks.lanes];
    partial[d] = sum;
  }
}

// Threads of a block: what they find fits in 48 KB of shared memory.
int backward_threads(const Rope& p, const RopeTasks& tasks) {
  const int64_t W = pairs_of(size_of(p.dtype)), size = size_of(accumulate_type(p.dtype));
  int threads = kRopeThreads;
  while (threads > tasks.lanes && ceil_div(tasks.all_turns, tasks.lanes) * 2 * W * size * threads > 48 * 1024)
    threads /= 2;
  return std::max(threads, 32);
}

BackwardTasks backward_tasks(const QkNormRopeBackward& p) {
  BackwardTasks tasks{rope_tasks(p, kBackwardHeadsEach, pairs_of(size_of(p.dtype))), {}};
  const int64_t at_once = 2 * multiprocessors(), groups = tasks.groups[0] + tasks.groups[1];
  const int64_t teams = backward_threads(p, tasks) / tasks.lanes;
  for (int k = 0; k < p.tensors; ++k) {
    const int64_t share = std::max<int64_t>(1, at_once * tasks.groups[k] / groups);
    tasks.blocks[k] = static_cast<int>(std::min(share, ceil_div(tasks.tokens * tasks.groups[k], teams)));
  }
  return tasks;
}

}  // namespace

int qk_norm_rope(const QkNormRope& p, void* stream) {
  const RopeTasks tasks = rope_tasks(p, kHeadsEach, pairs_of(size_of(p.dtype)));
  const int64_t teams = tasks.tokens * (tasks.groups[0] + tasks.groups[1]);
  const auto blocks = static_cast<unsigned>(ceil_div(teams, kRopeThreads / tasks.lanes));
  const auto config = launch_config(blocks, kRopeThreads, static_cast<cudaStream_t>(stream));
  const bool aligned =
      rope_is_aligned(p, pairs_of(size_of(p.dtype))) && aligned16(p.weight[0]) && aligned16(p.weight[1]);
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
  const int threads = backward_threads(p, tasks);
  const int64_t W = pairs_of(size_of(p.dtype)), size = size_of(accumulate_type(p.dtype));
  const bool adds = p.partial[0] || p.partial[1];
  const size_t shared = adds ? ceil_div(tasks.all_turns, tasks.lanes) * 2 * W * size * threads : 0;
  const auto config = launch_config(static_cast<unsigned>(tasks.blocks[0] + tasks.blocks[1]), threads,
                                    static_cast<cudaStream_t>(stream), shared);
  const bool aligned = rope_is_aligned(p, pairs_of(size_of(p.dtype)), p.grad, p.tensors) && aligned16(p.weight[0]) &&
                       aligned16(p.weight[1]);
  return dispatch(p.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return aligned ? launch_kernel(&backward_kernel<T, true>, config, p, tasks)
                   : launch_kernel(&backward_kernel<T, false>, config, p, tasks);
  });
}

}  // namespace fastops::FASTOPS_ARCH
