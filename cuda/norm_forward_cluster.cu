// The forward of norms over rows of more than 64 KB, each spread over the blocks of a cluster of its own: rms norms of the half
// types, and float32 with a residual, whose parameters find room in registers. Two clusters' blocks share a multiprocessor, so
// that one row is on its way while another is summed; the row waits in shared memory, where each thread has its own vectors.
#include "norm_forward_cluster.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kTeam = 256, kTeamWarps = kTeam / kWarp, kThreadVectors = 8;

template <Norm N, class T, bool Residual>
constexpr bool kMade = sizeof(T) == 2 ? N == Norm::rms : sizeof(T) == 4 && Residual;

template <Norm N, class T, class P, bool Residual>
__global__ void __launch_bounds__(kTeam, 2)
    forward_cluster_kernel(const __grid_constant__ Forward<T, P> a, int cluster) {
#if __CUDA_ARCH__ >= 900
  constexpr int W = kVector<T>, V = kThreadVectors;
  using Row = Vector<T, W>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ device::Barrier told[1];
  __shared__ Told<N> parts[kMostBlocksOfRow * kTeamWarps];
  ring_begin(nullptr, 0, told, cluster);
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int thread = threadIdx.x;
  const int64_t row = blockIdx.x / cluster;
  const RingPart part(static_cast<int>(a.n / W), cluster);
  const int vectors = part.vectors;
  auto own = [&](int g) { return g * kTeam + thread < vectors; };
  auto at = [&](int g) { return part.begin + min(g * kTeam + thread, vectors - 1); };

  // A thread without a vector has zeros in its place.
  Row *x = reinterpret_cast<Row*>(shared) + thread, *residuals = x + V * kTeam;
  const Row* input = reinterpret_cast<const Row*>(a.input + row * a.input_stride);
  const Row* residual = reinterpret_cast<const Row*>(a.residual + row * a.residual_stride);
#pragma unroll
  for (int g = 0; g < V; ++g) {
    device::copy_async(x + g * kTeam, input + at(g), own(g));
    if constexpr (Residual) device::copy_async(residuals + g * kTeam, residual + at(g), own(g));
  }
  Vector<P, W> w[V], b[N == Norm::layer ? V : 1];
#pragma unroll
  for (int g = 0; g < V; ++g) {
    w[g] = weight_or_one(a.weight).template vector<W>(at(g));
    if constexpr (N == Norm::layer) b[g] = bias_or_zero(a.bias).template vector<W>(at(g));
  }
  device::wait_for_copies();
  if constexpr (Residual) {
    auto* sum = reinterpret_cast<Row*>(a.sum + row * a.n);
#pragma unroll
    for (int g = 0; g < V; ++g) {
      x[g * kTeam] = rounded_sum(x[g * kTeam], residuals[g * kTeam]);
      if (own(g)) sum[at(g)] = x[g * kTeam];
    }
  }
  auto each_vector = [&](auto f) {
#pragma unroll
    for (int g = 0; g < V; ++g) {
      float d[W];
      device::widen(x[g * kTeam], d);
      f(g, g * kTeam + thread, d);
    }
  };

  const int warp = thread / kWarp;
  const float count = N == Norm::layer ? warp_elements<W, V>(vectors, kTeam, warp) : 0;
  const Told<N> of_warp = told_by_warp<N, W>(a, vectors, count, device::short_reciprocal(fmaxf(count, 1)), each_vector);
  ring_meet(cluster);
  tell_cluster(of_warp, parts, told, 0, cluster, part.rank, kTeamWarps);
  const Moments<float> moments = moments_told<N>(a, parts, cluster * kTeamWarps);
  const Scale<float> scaled = scale_of<N>(a, moments, row, thread == 0 && part.rank == 0);

  auto* output = reinterpret_cast<Row*>(a.output + row * a.n);
  asm volatile("" ::: "memory");  // read the row again, rather than hold it beside the parameters
  each_vector([&](int g, int, float (&d)[W]) {
    if constexpr (N == Norm::layer) {
#pragma unroll
      for (int k = 0; k < W; ++k) d[k] -= moments.mean;
    }
    device::hold_narrow(w[g]);
    scale<N, P, W, float>(d, scaled, w[g], b[N == Norm::layer ? g : 0], a.offset);
    if (own(g)) output[at(g)] = device::narrow_all<T>(d);
  });
#endif
}

// ---- host ------------------------------------------------------------------------------------------------------------

RingPlan plan_of(const NormForward& a) {
  const int64_t vectors = a.n * size_of(a.dtype) / 16, tensors = a.residual ? 2 : 1;
  const int cluster = static_cast<int>(std::min<int64_t>(ceil_div(vectors, kTeam * kThreadVectors), INT_MAX));
  return {kTeam, cluster, 1, static_cast<unsigned>(kTeam * kThreadVectors * 16 * tensors)};
}

// f(kernel, arguments, last answer) for the kernel of this problem; 0: there is none.
template <class F>
int64_t with_kernel(const NormForward& a, F f) {
  return dispatch_ring(a, a.residual != nullptr,
                       [&](auto norm, auto t, auto p, auto residual, LastAnswer& known) -> int64_t {
                         using T = typename decltype(t)::type;
                         using P = typename decltype(p)::type;
                         constexpr Norm N = decltype(norm)::value;
                         constexpr bool kResidual = decltype(residual)::value;
                         if constexpr (kMade<N, T, kResidual>)
                           return f(&forward_cluster_kernel<N, T, P, kResidual>, Forward<T, P>(a), known);
                         else
                           return 0;
                       });
}

}  // namespace

bool cluster_takes(const NormForward& a) {
  const int64_t bytes = a.n * size_of(a.dtype);
  if (bytes <= 2 * kBlockBytes || bytes % 16 != 0 || a.rows > kMostRows || !compute90_runs_here()) return false;
  const RingPlan plan = plan_of(a);
  return plan.cluster <= kMostBlocksOfRow && with_kernel(a, [&](auto* kernel, const auto&, LastAnswer& known) {
                                               return most_clusters(kernel, plan, known);
                                             }) > 0;
}

int norm_forward_cluster(const NormForward& args, void* stream) {
  const RingPlan plan = plan_of(args);
  return static_cast<int>(with_kernel(args, [&](auto* kernel, const auto& a, LastAnswer&) -> int64_t {
    cudaLaunchAttribute shape;
    return launch_kernel(kernel, ring_config(plan, a.rows, &shape, stream), a, plan.cluster);
  }));
}

}  // namespace fastops::FASTOPS_ARCH
