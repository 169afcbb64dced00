// The backward of the norms for rows of more than 4 KB; see norm_ring.cuh. The longest of a layer norm in a half type go to
// norm_backward_wide.cu. A block has up to eight warps, which is all that the registers hold beside the sums for the
// parameters: one team, or several for rows that need fewer.
#include "norm_backward.cuh"
#include "norm_ring.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kRingWarps = 8;

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

struct Plan {
  RingPlan ring;
  int warps, teams;
};

Plan plan_of(const NormBackward& a) {
  const int64_t size = size_of(a.dtype), vectors = a.n * size / 16, warp_vectors = kWarp * 32 * size / 16;
  const int cluster = cluster_of(ceil_div(vectors, kRingWarps * warp_vectors));
  const int64_t part = ceil_div(vectors, cluster);
  const int warps = static_cast<int>(ceil_div(part, warp_vectors)), teams = cluster > 1 ? 1 : kRingWarps / warps;
  const int64_t stage = teams * part * 16 * (a.grad_sum ? 3 : 2);
  // Two stages where they keep memory busy: with more on their way most were slower (docs/kernels). Several teams take
  // turns, and an rms norm without a residual has least to do between rows. The ring's memory takes the teams' sums at the
  // end: two stages of halves are just enough.
  const bool quick = teams > 1 || (a.norm == Norm::rms && !a.grad_sum && cluster <= 2);
  const int most_stages = stage * 2 >= (quick ? 64 << 10 : 80 << 10) ? 2 : kMostStages;
  return {ring_plan(teams * warps * kWarp, cluster, stage, 0, most_stages), warps, teams};
}

// f(kernel, arguments, last answer) for the kernel of this problem.
template <class F>
int64_t with_kernel(const NormBackward& a, F f) {
  return dispatch_ring(
      a, a.grad_sum != nullptr, [&](auto norm, auto t, auto p, auto sum, LastAnswer& known) -> int64_t {
        using T = typename decltype(t)::type;
        using P = typename decltype(p)::type;
        return f(&backward_ring_kernel<decltype(norm)::value, T, P, decltype(sum)::value>, Backward<T, P>(a), known);
      });
}

}  // namespace

bool ring_takes(const NormBackward& a) {
  const int64_t bytes = a.n * size_of(a.dtype);
  if (bytes <= 4096 || bytes % 16 != 0 || a.dtype == DType::f64 || a.rows > kMostRows || !compute90_runs_here())
    return false;
  if (wide_takes(a)) return true;
  const Plan plan = plan_of(a);
  // Large clusters are not granted everywhere.
  return plan.ring.cluster <= kMostBlocksOfRow && plan.ring.stages >= 2 && norm_backward_ring_chunks(a) > 0;
}

std::optional<SumOrder> ring_order(const NormBackward& a) {
  const Plan plan = plan_of(a);
  if (plan.ring.cluster > 1 || wide_takes(a)) return std::nullopt;
  return SumOrder{kWarp, plan.warps, 0, 0};
}

int64_t norm_backward_ring_chunks(const NormBackward& a) {
  if (wide_takes(a)) return norm_backward_wide_chunks(a);
  const Plan plan = plan_of(a);
  return with_kernel(a, [&](auto* kernel, const auto&, LastAnswer& known) {
    return std::min(ceil_div(a.rows, plan.teams), most_clusters(kernel, plan.ring, known));
  });
}

int norm_backward_ring(const NormBackward& args, void* stream) {
  if (wide_takes(args)) return norm_backward_wide(args, stream);
  const Plan plan = plan_of(args);
  return static_cast<int>(with_kernel(args, [&](auto* kernel, const auto& a, LastAnswer&) -> int64_t {
    return launch_ring(kernel, plan.ring, args.chunks, a, stream, plan.warps);
  }));
}

}  // namespace fastops::FASTOPS_ARCH
