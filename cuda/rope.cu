// rope: pairs of a head's numbers turned by the angles of its token, of q and k in one launch
#include "rope.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kMostHeads = 8, kMostHeadsByToken = 4;  // of a team

template <class T, bool Aligned>
__global__ void __launch_bounds__(kRopeThreads, kBlocksEach<T>)
    rope_kernel(const __grid_constant__ Rope p, const __grid_constant__ RopeTasks tasks) {
  using A = accumulate_t<T>;
  constexpr int W = kPairs, N = kHeadsAtOnce;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int lane = threadIdx.x % tasks.lanes;
  const int64_t number = static_cast<int64_t>(blockIdx.x) * (kRopeThreads / tasks.lanes) + threadIdx.x / tasks.lanes;
  if (number >= tasks.tokens * (tasks.groups[0] + tasks.groups[1])) return;
  const RopeTask task = task_of(p, tasks, number);
  const int heads = static_cast<int>(p.input[task.tensor].heads);
  const int count = (heads - task.first + task.step - 1) / task.step;
  const TeamHeads<const T> from(p.input[task.tensor], task);
  const TeamHeads<T> to(p.output[task.tensor], task);
  const int64_t row = table_row(p.rotation, task.batch, task.seq);
  for (int turn = lane; turn < tasks.all_turns; turn += tasks.lanes) {
    const Place<W> place(p.rotation, tasks, turn);
    Two<T, W> x[N];
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = load_two<Aligned>(from[k], k < count, place);
    Angles<W, A> angles;
    if (place.rotates)
      angles = angles_of<Aligned, T, W, A>(p.rotation, row, place, p.rotation.adjoint);
    else
      angles.leave();
#pragma unroll 1
    for (int first = 0; first < count; first += N) {
      Two<T, W> next[N];
#pragma unroll
      for (int k = 0; k < N; ++k) next[k] = load_two<Aligned>(from[first + N + k], first + N + k < count, place);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (first + k >= count) break;
        A a[W], b[W];
        device::widen(x[k].a, a);
        device::widen(x[k].b, b);
        if (place.rotates) angles.rotate(p.rotation.interleaved, a, b);
        store_turn<Aligned>(to[first + k], place, a, b);
      }
#pragma unroll
      for (int k = 0; k < N; ++k) x[k] = next[k];
    }
  }
}

}  // namespace

int rope(const Rope& p, void* stream) {
  const RopeTasks tasks = rope_tasks(p, kMostHeads, kMostHeadsByToken);
  const int64_t teams = tasks.tokens * (tasks.groups[0] + tasks.groups[1]);
  const auto blocks = static_cast<unsigned>(ceil_div(teams, kRopeThreads / tasks.lanes));
  const auto config = launch_config(blocks, kRopeThreads, static_cast<cudaStream_t>(stream));
  const bool aligned = rope_is_aligned(p);
  return dispatch(p.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return aligned ? launch_kernel(&rope_kernel<T, true>, config, p, tasks)
                   : launch_kernel(&rope_kernel<T, false>, config, p, tasks);
  });
}

}  // namespace fastops::FASTOPS_ARCH
