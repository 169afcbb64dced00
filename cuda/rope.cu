// rope: pairs of a head's numbers turned by the angles of its token, of q and k in one launch
#include "rope.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kHeadsEach = 4;

template <class T>
constexpr int kPairs = 16 / sizeof(T);  // of a lane: two vectors of 16 bytes

template <class T, bool Aligned>
__global__ void __launch_bounds__(kRopeThreads)
    rope_kernel(const __grid_constant__ Rope p, const __grid_constant__ RopeTasks tasks) {
  using A = accumulate_t<T>;
  constexpr int W = kPairs<T>;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int lane = threadIdx.x % tasks.lanes;
  const int64_t number = static_cast<int64_t>(blockIdx.x) * (kRopeThreads / tasks.lanes) + threadIdx.x / tasks.lanes;
  if (number >= tasks.tokens * (tasks.groups[0] + tasks.groups[1])) return;
  const RopeTask task = task_of(p, tasks, number);
  const Heads &from = p.input[task.tensor], &to = p.output[task.tensor];
  const int64_t row = table_row(p.rotation, task.batch, task.seq);
  for (int turn = lane; turn < tasks.all_turns; turn += tasks.lanes) {
    const Place<W> place(p.rotation, tasks, turn);
    Vector<T, W> a[kHeadsEach], b[kHeadsEach];
#pragma unroll
    for (int k = 0; k < kHeadsEach; ++k) {
      const int64_t head = task.first + k * task.step;
      if (head >= from.heads) break;
      const T* x = head_of<const T>(from, task, head);
      a[k] = load_narrow<Aligned, W>(x + place.first, place.first_count);
      if (!Aligned || place.second_count > 0) b[k] = load_narrow<Aligned, W>(x + place.second, place.second_count);
    }
    Angles<W, A> angles;
    if (place.rotates) angles = angles_of<Aligned, T, W, A>(p.rotation, row, place, p.rotation.adjoint);
#pragma unroll
    for (int k = 0; k < kHeadsEach; ++k) {
      const int64_t head = task.first + k * task.step;
      if (head >= from.heads) break;
      A x[W], y[W];
      device::widen(a[k], x);
      device::widen(b[k], y);
      if (place.rotates) {
        part(place.interleaved, x, y);
        angles.rotate(x, y);
        join(place.interleaved, x, y);
      }
      store_turn<Aligned>(head_of<T>(to, task, head), place, x, y);
    }
  }
}

}  // namespace

int rope(const Rope& p, void* stream) {
  const int64_t pairs = 16 / size_of(p.dtype);
  const RopeTasks tasks = rope_tasks(p, kHeadsEach, pairs);
  const int64_t teams = tasks.tokens * (tasks.groups[0] + tasks.groups[1]);
  const auto blocks = static_cast<unsigned>(ceil_div(teams, kRopeThreads / tasks.lanes));
  const auto config = launch_config(blocks, kRopeThreads, static_cast<cudaStream_t>(stream));
  const bool aligned = rope_is_aligned(p, pairs);
  return dispatch(p.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return aligned ? launch_kernel(&rope_kernel<T, true>, config, p, tasks)
                   : launch_kernel(&rope_kernel<T, false>, config, p, tasks);
  });
}

}  // namespace fastops::FASTOPS_ARCH
