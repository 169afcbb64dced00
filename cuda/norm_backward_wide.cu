// The backward of layer_norm in a half type for rows of more than 64 KB; see engine/row/ring.cuh. Half as many blocks share a row
// as in walk.cuh: clusters of sixteen leave many multiprocessors without work, and each sum crosses fewer
// blocks. That is twice the row a block, for which there are no registers: 512 threads hold the weight and the sums for the
// parameters, which takes all there are, and the row stays packed in the ring, from which its second pass reads it again.
// That pass comes after the first pass of the next row: the sums over the row cross the cluster meanwhile.
#include "engine/row/ring.cuh"
#include "norm_backward.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kWideThreads = 512, kWideWarps = kWideThreads / kWarp, kWideVectors = 4;
constexpr int kMostWideBlocks = 8;
constexpr int kTurns = 4;  // a block writes the sums of a row while another may still read those of three rows before

struct Exchange {
  float at[kSums<Norm::layer>][kMostWideBlocks * kWideWarps];
};

template <class T>
__global__ void __launch_bounds__(kWideThreads, 1)
    backward_wide_kernel(const __grid_constant__ Backward<T, T> a, int cluster, int stages) {
#if __CUDA_ARCH__ >= 900
  constexpr Norm N = Norm::layer;
  constexpr int W = kVector<T>, V = kWideVectors, S = kSums<N>, kTensors = 2;
  using Row = Vector<T, W>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ device::Barrier arrived[kMostStages], sent[kTurns];
  __shared__ Exchange exchange[kTurns];
  __shared__ RowNumbers<float> statistics[kMostStages];

  const int thread = threadIdx.x, lane = thread % kWarp;
  const RingPart part(static_cast<int>(a.n / W), cluster);
  const int begin = part.begin, vectors = part.vectors;
  const unsigned bytes = vectors * sizeof(Row);
  Row* const ring = reinterpret_cast<Row*>(shared);
  auto slot_of = [&](int slot, int tensor) { return ring + (slot * kTensors + tensor) * part.most; };
  ring_init_barriers<2>(arrived, stages, sent, cluster);  // a row arrives, and so do its statistics
  wait_for_earlier_kernels();

  const int rows = static_cast<int>(a.rows), first_row = blockIdx.x / cluster, step = gridDim.x / cluster;
  // Statistics that each thread loaded would go to uniform registers, being the same for all, and wait there for the memory.
  auto fetch = [&](int row, int slot) {
    if (row >= rows) return;
    device::barrier_expect(&arrived[slot], bytes * kTensors);
    device::bulk_copy(slot_of(slot, 0), a.input + row * a.input_stride + begin * W, bytes, &arrived[slot]);
    device::bulk_copy(slot_of(slot, 1), a.grad + row * a.grad_stride + begin * W, bytes, &arrived[slot]);
    const int64_t at = row * a.statistics_step;
    device::copy_word_async(&statistics[slot].mean, a.mean + at);
    if (a.shift) device::copy_word_async(&statistics[slot].shift, a.shift + at);
    device::copy_word_async(&statistics[slot].rstd, a.rstd + at);
    device::barrier_arrive_behind_copies(&arrived[slot]);
  };
  if (!a.shift && thread < stages) statistics[thread].shift = 0;  // seen by all from ring_wait_for_cluster() on
  if (thread == 0)
    for (int k = 0; k < stages; ++k) fetch(first_row + k * step, k);
  if (rows <= step) let_next_kernel_start();  // as in walk.cuh

  Vector<T, W> w[V];
#pragma unroll
  for (int g = 0; g < V; ++g)
    w[g] = weight_or_one(a.weight).template vector_or_zero<W>(g * kWideThreads + thread, vectors, begin);
  float weight_sum[V][W] = {}, bias_sum[V][W] = {};
  ring_wait_for_cluster(cluster);  // while all that was asked for is on its way

  // The first pass over one row after the other. Every warp tells every block of the cluster its sums.
  struct {
    int row, slot;
    unsigned parity, count;  // of the ring, of rows
  } at = {first_row, 0, 0, 0};
  auto first_pass_over = [&] {
    device::barrier_wait(&arrived[at.slot], at.parity);
    const RowNumbers<float> numbers = statistics[at.slot];
    Sums<float, S> sums = {};
#pragma unroll
    for (int g = 0; g < V; ++g) {
      const int i = g * kWideThreads + thread;
      Row x = {}, incoming = {};
      if (i < vectors) {
        x = slot_of(at.slot, 0)[i];
        incoming = slot_of(at.slot, 1)[i];
      }
      float h[W], grad[W];
      device::widen(x, h);
      device::widen(incoming, grad);
      device::hold_narrow(w[g]);
      first_pass<N, W, float>(h, grad, i < vectors, w[g], a.offset, numbers, sums, weight_sum[g], bias_sum[g]);
    }
    lane_sum<kWarp>(sums);
    const int turn = at.count++ % kTurns;
    if (thread == 0) device::barrier_expect(&sent[turn], cluster * kWideWarps * S * sizeof(float));
    if (lane < cluster) {
#pragma unroll
      for (int k = 0; k < S; ++k)
        device::send(&exchange[turn].at[k][part.rank * kWideWarps + thread / kWarp], &sent[turn], lane, sums.at[k]);
    }
    at.row += step;
    if (++at.slot == stages) {
      at.slot = 0;
      at.parity ^= 1;
    }
  };

  int slot = 0;
  unsigned count = 0;
  first_pass_over();
#pragma unroll 1
  for (int row = first_row; row < rows; row += step) {
    if (at.row < rows) first_pass_over();
    const int turn = count % kTurns;
    device::barrier_wait_cluster(&sent[turn], count++ / kTurns & 1);
    Sums<float, S> sums = sum_received(exchange[turn].at, cluster * kWideWarps);
    divide(sums, a.inverse_n);
    const RowNumbers<float> numbers = statistics[slot];
    if (a.grad_input) {
      Row* out = reinterpret_cast<Row*>(a.grad_input + row * a.n) + begin;
      const float shift = -numbers.shift * numbers.rstd;
#pragma unroll
      for (int g = 0; g < V; ++g) {
        const int i = g * kWideThreads + thread;
        if (i >= vectors) continue;
        float h[W], grad[W], weight[W];
        device::widen(slot_of(slot, 0)[i], h);
        device::widen(slot_of(slot, 1)[i], grad);
        device::hold_narrow(w[g]);
        device::widen(w[g], weight);
#pragma unroll
        for (int k = 0; k < W; ++k) {
          h[k] = fma(h[k] - numbers.mean, numbers.rstd, shift);  // as in the first pass
          grad[k] = device::product<float>(grad[k], weight[k]);
        }
        second_pass<N, W, float>(h, grad, sums, numbers.rstd, h);
        out[i] = device::narrow_all<T>(h);
      }
    }
    __syncthreads();  // the slot has been read
    if (thread == 0) fetch(row + stages * step, slot);
    if (++slot == stages) slot = 0;
  }

  let_next_kernel_start();  // as in walk.cuh
  if (a.partial || a.whole) {
    float* const result = a.partial + blockIdx.x / cluster * S * a.n;
#pragma unroll
    for (int g = 0; g < V; ++g) {
      const int i = g * kWideThreads + thread;
      if (i >= vectors) continue;
      const int64_t at = static_cast<int64_t>(begin + i) * W;
      if (a.whole) {
        store_parameter_grad<W>(a, 0, at, weight_sum[g]);
        store_parameter_grad<W>(a, 1, at, bias_sum[g]);
        continue;
      }
#pragma unroll
      for (int k = 0; k < W; k += 4) {
        device::store<true, 4>(result + at + k, 4, reinterpret_cast<float (&)[4]>(weight_sum[g][k]));
        device::store<true, 4>(result + a.n + at + k, 4, reinterpret_cast<float (&)[4]>(bias_sum[g][k]));
      }
    }
  }
  device::cluster_sync();  // no block leaves while another may still write to it
#endif
}

// ---- host ------------------------------------------------------------------------------------------------------------

ClusterShape shape_of(const Plan& plan) { return {plan.threads, static_cast<int>(plan.order.blocks), plan.ring.bytes}; }

// f(tag<T>) for the half type.
template <class F>
auto dispatch_half(DType dtype, F f) {
  return dtype == DType::f16 ? f(tag<device::f16>{}) : f(tag<device::bf16>{});
}

}  // namespace

int64_t norm_backward_wide_clusters(const NormBackward& a, const Plan& plan) {
  return dispatch_half(a.dtype, [&](auto t) {
    return resident_clusters<&backward_wide_kernel<typename decltype(t)::type>>(shape_of(plan));
  });
}

int norm_backward_wide(const NormBackward& a, const Plan& plan, cudaStream_t stream) {
  return dispatch_half(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const ClusterShape shape = shape_of(plan);
    return launch_clusters<&backward_wide_kernel<T>>(shape, a.chunks, stream, Backward<T, T>(a), shape.blocks,
                                                     plan.ring.stages);
  });
}

}  // namespace fastops::FASTOPS_ARCH
