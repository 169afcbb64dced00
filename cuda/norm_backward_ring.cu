// The backward of the norms for rows of more than 4 KB; see norm_ring.cuh. The longest of a layer norm in a half type go to
// norm_backward_wide.cu. A block has up to eight warps, which is all that the registers hold beside the sums for the
// parameters: one team, or several for rows that need fewer.
#include "norm_backward.cuh"
#include "norm_ring.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

using plan::norm_backward::kRingWarps;

// 32 elements a thread.
template <class T>
constexpr int kRingVectors = 32 / kVector<T>;

template <Norm N>
struct Exchange {
  float at[kSums<N>][kMostBlocksOfRow * kRingWarps];
};

template <Norm N, class T, class P, bool GradSum>
__global__ void __launch_bounds__(kRingWarps* kWarp)
    backward_ring_kernel(const __grid_constant__ Backward<T, P> a, int cluster, int stages, int warps) {
#if __CUDA_ARCH__ >= 900
  constexpr int W = kVector<T>, V = kRingVectors<T>, S = kSums<N>, kTensors = GradSum ? 3 : 2;
  constexpr bool kHoldParameters = sizeof(P) == sizeof(T);  // else there are not enough registers
  using Row = Vector<T, W>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ device::Barrier arrived[kRingWarps][kMostStages], told[2];
  __shared__ Scratch<float, S> scratch[2][kRingWarps];
  __shared__ Exchange<N> exchange[2];

  const int team = warps * kWarp, thread = threadIdx.x % team, which = threadIdx.x / team, teams = blockDim.x / team;
  const RingPart part(static_cast<int>(a.n / W), cluster);
  const int begin = part.begin, vectors = part.vectors;
  const unsigned bytes = vectors * sizeof(Row);
  Row* const ring = reinterpret_cast<Row*>(shared) + which * stages * kTensors * part.most;
  auto slot_of = [&](int slot, int tensor) { return ring + (slot * kTensors + tensor) * part.most; };
  ring_begin(&arrived[0][0], teams * kMostStages, told, cluster);
  wait_for_earlier_kernels();

  const int clusters = gridDim.x / cluster, step = clusters * teams, rows = static_cast<int>(a.rows);
  const int first_row = which * clusters + blockIdx.x / cluster;
  auto fetch = [&](int row, int slot) {
    if (row >= rows) return;
    device::Barrier* barrier = &arrived[which][slot];
    device::barrier_expect(barrier, bytes * kTensors);
    device::bulk_copy(slot_of(slot, 0), a.input + row * a.input_stride + begin * W, bytes, barrier);
    device::bulk_copy(slot_of(slot, 1), a.grad + row * a.grad_stride + begin * W, bytes, barrier);
    if constexpr (GradSum)
      device::bulk_copy(slot_of(slot, 2), a.grad_sum + row * a.grad_sum_stride + begin * W, bytes, barrier);
  };
  if (thread == 0)
    for (int k = 0; k < stages; ++k) fetch(first_row + k * step, k);
  // Where each team has a row at most there is no loop to slow down, and the kernel for columns may run beside this one.
  if (rows <= step) let_next_kernel_start();

  Vector<P, W> w[kHoldParameters ? V : 1];
  auto weight = [&](int at) { return weight_or_one(a.weight).template vector_or_zero<W>(at, vectors, begin); };
  if constexpr (kHoldParameters) {
#pragma unroll
    for (int g = 0; g < V; ++g) w[g] = weight(g * team + thread);
  }
  float weight_sum[V][W] = {}, bias_sum[N == Norm::layer ? V : 1][W] = {};

  int slot = 0;
  unsigned parity = 0, count = 0;  // of the ring, of rows
  RowNumbers<float> next = row_numbers<N>(a, first_row);
  ring_meet(cluster);  // while all that was asked for is on its way
  for (int row = first_row; row < rows; row += step) {
    const RowNumbers<float> numbers = next;
    next = row_numbers<N>(a, row + step);
    const int turn = count & 1;
    device::barrier_wait(&arrived[which][slot], parity);
    float h[V][W], grad[V][W];
    Sums<float, S> sums = {};
    Row grad_sum[GradSum ? V : 1];
#pragma unroll
    for (int g = 0; g < V; ++g) {
      const int i = g * team + thread;
      Row x = {}, incoming = {};
      if (i < vectors) {
        x = slot_of(slot, 0)[i];
        incoming = slot_of(slot, 1)[i];
        if constexpr (GradSum) grad_sum[g] = slot_of(slot, 2)[i];
      }
      device::widen(x, h[g]);
      device::widen(incoming, grad[g]);
      if constexpr (!kHoldParameters) w[0] = weight(i);
      first_pass<N, W, float>(h[g], grad[g], i < vectors, w[kHoldParameters ? g : 0], a.offset, numbers, sums,
                              weight_sum[g], bias_sum[N == Norm::layer ? g : 0]);
    }
    // Once the sum is there, every thread has its part of the row in registers.
    if (cluster == 1) {
      team_sum(sums, warps, thread / kWarp, scratch[turn][which], TeamBarrier{which, team});
      if (warps == 1) __syncwarp();
    } else {
      // Every warp tells every block of the cluster, which saves the block's own sum. It has read its part by then.
      if constexpr (GradSum) __threadfence_block();
      lane_sum<kWarp>(sums);
      const int lane = thread % kWarp, told_by = cluster * warps;
      Exchange<N>& to = exchange[turn];
      if (thread == 0) device::barrier_expect(&told[turn], told_by * S * sizeof(float));
      if (lane < cluster) {
#pragma unroll
        for (int k = 0; k < S; ++k)
          device::send(&to.at[k][part.rank * warps + thread / kWarp], &told[turn], lane, sums.at[k]);
      }
      device::barrier_wait_cluster(&told[turn], count >> 1 & 1);
      sums = sum_of_told(to.at, told_by);
    }
    ++count;
    if (thread == 0) fetch(row + stages * step, slot);
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
    if (!a.grad_input) continue;
    divide(sums, a.inverse_n);
    Row* out = reinterpret_cast<Row*>(a.grad_input + row * a.n) + begin;
#pragma unroll
    for (int g = 0; g < V; ++g) {
      const int i = g * team + thread;
      if constexpr (GradSum)
        second_pass<N, W, float>(h[g], grad[g], sums, numbers.rstd, grad_sum[g]);
      else
        second_pass<N, W, float>(h[g], grad[g], sums, numbers.rstd);
      if (i < vectors) out[i] = device::narrow_all<T>(h[g]);
    }
  }

  let_next_kernel_start();  // of more rows not before: beside blocks that wait the loop is up to 10 % slower
  if (a.partial || a.whole) {
    float* const result = a.partial + blockIdx.x / cluster * S * a.n;
    if (teams > 1) __syncthreads();  // the ring's memory is free
    float* const own = teams > 1 ? reinterpret_cast<float*>(shared) + which * S * a.n : result;
#pragma unroll
    for (int g = 0; g < V; ++g) {
      const int i = g * team + thread;
      if (i >= vectors) continue;
      if (a.whole && teams == 1) {
        const int64_t at = static_cast<int64_t>(begin + i) * W;
        store_parameter_grad<W>(a, 0, at, weight_sum[g]);
        if constexpr (N == Norm::layer) store_parameter_grad<W>(a, 1, at, bias_sum[g]);
        continue;
      }
#pragma unroll
      for (int k = 0; k < W; k += 4) {
        const int64_t at = static_cast<int64_t>(begin + i) * W + k;
        device::store<true, 4>(own + at, 4, reinterpret_cast<float (&)[4]>(weight_sum[g][k]));
        if constexpr (N == Norm::layer)
          device::store<true, 4>(own + a.n + at, 4, reinterpret_cast<float (&)[4]>(bias_sum[g][k]));
      }
    }
    if (teams > 1) {
      __syncthreads();
      add_parts(a, reinterpret_cast<const float*>(shared), teams, S * a.n, result);
    }
  }
  if (cluster > 1) device::cluster_sync();  // no block leaves while another may still write to it
#endif
}

// ---- host ------------------------------------------------------------------------------------------------------------

ClusterShape shape_of(const Plan& plan) { return {plan.threads, static_cast<int>(plan.order.blocks), plan.ring.bytes}; }

// f(kernel, tag<T>, tag<P>) for the kernel of this problem; `none` where there is none.
template <class Result, class F>
Result with_kernel(const NormBackward& a, Result none, F f) {
  Result result = none;
  dispatch_problem(a, [&](auto norm, auto t, auto p) -> int {
    return dispatch_bool(a.grad_sum != nullptr, [&](auto grad_sum) -> int {
      using T = typename decltype(t)::type;
      using P = typename decltype(p)::type;
      if constexpr (sizeof(T) < 8) {
        constexpr auto kKernel = &backward_ring_kernel<decltype(norm)::value, T, P, decltype(grad_sum)::value>;
        result = f(std::integral_constant<decltype(kKernel), kKernel>{}, t, p);
      }
      return cudaSuccess;
    });
  });
  return result;
}

}  // namespace

static_assert(teams_are<BackwardTable>(BackwardTable::Kernel::ring, plan::kHalves, kRingWarps* kWarp,
                                       kRingVectors<device::bf16>));
static_assert(teams_are<BackwardTable>(BackwardTable::Kernel::ring, plan::kF32, kRingWarps* kWarp,
                                       kRingVectors<float>));

int64_t norm_backward_ring_clusters(const NormBackward& a, const Plan& plan) {
  return with_kernel<int64_t>(
      a, 1, [&](auto kernel, auto, auto) { return resident_clusters<decltype(kernel)::value>(shape_of(plan)); });
}

int norm_backward_ring(const NormBackward& a, const Plan& plan, cudaStream_t stream) {
  return with_kernel<int>(a, cudaErrorInvalidValue, [&](auto kernel, auto t, auto p) {
    const ClusterShape shape = shape_of(plan);
    return launch_clusters<decltype(kernel)::value>(shape, a.chunks, stream,
                                                    Backward<typename decltype(t)::type, typename decltype(p)::type>(a),
                                                    shape.blocks, plan.ring.stages, plan.order.threads / kWarp);
  });
}

}  // namespace fastops::FASTOPS_ARCH
