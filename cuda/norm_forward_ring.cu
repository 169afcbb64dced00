// The forward of the norms for rows that are too long for registers; see norm_ring.cuh.
#include "norm_forward_cluster.cuh"
#include "norm_plan.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

template <Norm N, class T, class P, bool Residual>
constexpr bool share_bias = N == Norm::layer && !Residual && sizeof(P) == sizeof(T);

constexpr int kRingWarps = kRingThreads / kWarp;

template <Norm N, class T, class P, bool Residual>
__global__ void __launch_bounds__(kRingThreads)
    forward_ring_kernel(const __grid_constant__ Forward<T, P> a, int cluster, int stages) {
#if __CUDA_ARCH__ >= 900
  constexpr int W = kVector<T>, V = kRingVectors<Residual>;
  // There are registers for parameters of the half types alone, and not for all of them.
  constexpr bool kHoldParameters = sizeof(P) == sizeof(T), kShareBias = share_bias<N, T, P, Residual>;
  // Nor for the row beside them, where there is a bias.
  constexpr bool kHoldRow = Residual || N == Norm::rms || !kHoldParameters;
  using Row = Vector<T, W>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ device::Barrier arrived[kMostStages], told[2];
  __shared__ Told<N> parts[2][kMostBlocksOfRow * kRingWarps];

  constexpr int team = kRingThreads;
  const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp;
  const RingPart part(static_cast<int>(a.n / W), cluster);
  const int vectors = part.vectors;
  Row *inputs = reinterpret_cast<Row*>(shared), *residuals = inputs + stages * part.most;
  auto* biases = reinterpret_cast<Vector<P, W>*>(inputs + stages * part.most);  // with kShareBias: a thread's own
  ring_begin(arrived, stages, told, cluster);
  wait_for_earlier_kernels();
  let_next_kernel_start();

  const int rows = static_cast<int>(a.rows), first_row = blockIdx.x / cluster, step = gridDim.x / cluster;
  auto fetch = [&](int row, int slot) {
    if (row >= rows) return;
    const unsigned bytes = vectors * sizeof(Row);
    device::barrier_expect(&arrived[slot], bytes * (Residual ? 2 : 1));
    device::bulk_copy(inputs + slot * part.most, a.input + row * a.input_stride + part.begin * W, bytes,
                      &arrived[slot]);
    if constexpr (Residual)
      device::bulk_copy(residuals + slot * part.most, a.residual + row * a.residual_stride + part.begin * W, bytes,
                        &arrived[slot]);
  };
  if (thread == 0)
    for (int k = 0; k < stages; ++k) fetch(first_row + k * step, k);

  Vector<P, W> w[kHoldParameters ? V : 1], b[kHoldParameters && N == Norm::layer && !kShareBias ? V : 1];
  auto parameters = [&](int g, int at) {
    const int i = part.begin + min(at, vectors - 1);
    w[g] = weight_or_one(a.weight).template vector<W>(i);
    if constexpr (kShareBias) {
      if (at < vectors) biases[at] = bias_or_zero(a.bias).template vector<W>(i);
    } else if constexpr (N == Norm::layer) {
      b[g] = bias_or_zero(a.bias).template vector<W>(i);
    }
  };
  if constexpr (kHoldParameters) {
#pragma unroll
    for (int g = 0; g < V; ++g) parameters(g, g * team + thread);
  }
  ring_meet(cluster);
  const float count = warp_elements<W, V>(vectors, team, warp), inverse = device::short_reciprocal(fmaxf(count, 1));

  int slot = 0;
  unsigned parity = 0, turns = 0;  // of the ring; rows
  for (int row = first_row; row < rows; row += step) {
    const int turn = turns & 1;
    device::barrier_wait(&arrived[slot], parity);
    // A thread without a vector takes the last one along and leaves it out of the sums.
    const Row *input = inputs + slot * part.most, *residual = residuals + slot * part.most;
    Row x[kHoldRow ? V : 1];
    if constexpr (kHoldRow) {
#pragma unroll
      for (int g = 0; g < V; ++g) {
        const int i = g * team + thread, at = min(i, vectors - 1);
        x[g] = input[at];
        if constexpr (Residual) {
          x[g] = rounded_sum(x[g], residual[at]);
          if (i < vectors) reinterpret_cast<Row*>(a.sum + row * a.n)[part.begin + i] = x[g];
        }
      }
    }
    auto each_vector = [&](auto f) {
#pragma unroll
      for (int g = 0; g < V; ++g) {
        const int i = g * team + thread;
        float d[W];
        if constexpr (kHoldRow) {
          device::widen(x[g], d);
          device::hold_narrow(x[g]);
        } else {
          device::widen(input[min(i, vectors - 1)], d);
        }
        f(g, i, d);
      }
    };

    if constexpr (!kHoldRow) asm volatile("" ::: "memory");  // else biases are fetched before there is room for them
    const Told<N> own = told_by_warp<N, W>(a, vectors, count, inverse, each_vector);
    if (cluster == 1) {
      if (lane == 0) parts[turn][warp] = own;
      __syncthreads();
    } else {
      tell_cluster(own, parts[turn], &told[turn], turns >> 1 & 1, cluster, part.rank, kRingWarps);
    }
    ++turns;
    // All threads have the row in registers, or have left the one before.
    if (kHoldRow && thread == 0) fetch(row + stages * step, slot);
    if (!kHoldRow && thread == 0 && row != first_row) fetch(row + (stages - 1) * step, slot ? slot - 1 : stages - 1);
    const Moments<float> moments = moments_told<N>(a, parts[turn], cluster * kRingWarps);
    const Scale<float> scaled = scale_of<N>(a, moments, row, thread == 0 && part.rank == 0);

    Row* output = reinterpret_cast<Row*>(a.output + row * a.n) + part.begin;
    each_vector([&](int g, int i, float (&d)[W]) {
      if constexpr (!kHoldParameters) parameters(0, i);
      if constexpr (N == Norm::layer) {
#pragma unroll
        for (int k = 0; k < W; ++k) d[k] -= moments.mean;
      }
      const int at = kHoldParameters ? g : 0;
      device::hold_narrow(w[at]);
      if constexpr (kShareBias)
        scale<N, P, W, float>(d, scaled, w[at], biases[min(i, vectors - 1)], a.offset);
      else
        scale<N, P, W, float>(d, scaled, w[at], b[N == Norm::layer ? at : 0], a.offset);
      if (i < vectors) output[i] = device::narrow_all<T>(d);
    });
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
  }
  if (cluster > 1) device::cluster_sync();  // no block leaves while another may still write to it
#endif
}

// ---- host ------------------------------------------------------------------------------------------------------------

}  // namespace

static_assert(teams_are<ForwardTable>(ForwardTable::Kernel::ring, plan::kAlone, kRingThreads, kRingVectors<false>));
static_assert(teams_are<ForwardTable>(ForwardTable::Kernel::ring, plan::kResidual, kRingThreads, kRingVectors<true>));

int norm_forward_ring(const NormForward& args, const Plan& plan, cudaStream_t stream) {
  const ClusterShape shape{kRingThreads, static_cast<int>(plan.order.blocks), plan.ring.bytes};
  return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
    return dispatch_bool(args.residual != nullptr, [&](auto residual) -> int {
      using T = typename decltype(t)::type;
      using P = typename decltype(p)::type;
      if constexpr (sizeof(T) < 8) {
        constexpr auto kKernel = &forward_ring_kernel<decltype(norm)::value, T, P, decltype(residual)::value>;
        const int64_t clusters = std::min(args.rows, resident_clusters<kKernel>(shape));
        return launch_clusters<kKernel>(shape, clusters, stream, Forward<T, P>(args), shape.blocks, plan.ring.stages);
      }
      return cudaErrorInvalidValue;
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
