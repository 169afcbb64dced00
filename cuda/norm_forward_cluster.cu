// The forward of the norms over long rows, each spread over the blocks of a cluster of its own. Several small blocks share a
// multiprocessor, so that the rows of some are on their way while others are summed. A thread copies its own vectors into
// shared memory, asynchronously, and needs no barrier for them. The weight has room of its own there, a bias that of the
// residual or, without one, of the row, once they have been read. Layer norms of halves without a residual go to
// norm_forward_cluster_pairs.cu.
#include "norm_forward_cluster.cuh"
#include "norm_plan.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kThreadVectors = 8;
constexpr int kTeam = 128, kWideTeam = 256;  // threads; wide: for rows that sixteen blocks of kTeam cannot take

// Whether a thread holds its part of the row, so that the bias gets the room.
template <Norm N, bool Residual>
constexpr bool kHold = N == Norm::layer && !Residual;

// For each of a block's vectors: the row, the residual, a parameter.
template <bool Residual>
constexpr int kSlots = Residual ? 3 : 2;

// How many blocks a multiprocessor has.
template <bool Residual, int Team>
constexpr int kResident = kSharedBytes / (kSlots<Residual> * kThreadVectors * Team * 16);

template <Norm N, class T, bool Residual, int Team>
__global__ void __launch_bounds__(Team, kResident<Residual, Team>)
    forward_cluster_kernel(const __grid_constant__ Forward<T, T> a, int cluster, int most) {
#if __CUDA_ARCH__ >= 900
  constexpr int W = kVector<T>, V = kThreadVectors, kVectorsOfBlock = V * Team, kWarps = Team / kWarp;
  using Row = Vector<T, W>;
  extern __shared__ __align__(128) unsigned char shared[];  // asynchronous copies to other places are slower
  __shared__ device::Barrier told;
  __shared__ Told<N> parts[kMostBlocksOfRow * kWarps];
  const int thread = threadIdx.x, warp = thread / kWarp;
  if (thread == 0) {
    device::barrier_init(&told);
    device::barrier_init_fence();
  }
  device::cluster_arrive_relaxed();
  wait_for_earlier_kernels();
  let_next_kernel_start();

  // This block's part of the row: `vectors`, of which the thread has its first, and every Team-th from there on.
  const int64_t row = device::cluster_number();
  const int rank = device::cluster_rank(), vectors = min(most, static_cast<int>(a.n / W) - rank * most);
  const int64_t first = int64_t{rank} * most + thread;
  auto own = [&](int g) { return g * Team + thread < vectors; };
  // No thread has such a vector. An rms norm waits for memory, and is not faster without.
  auto left_out = [&](int g) { return N == Norm::layer && g * Team >= vectors; };
  const Row* input = reinterpret_cast<const Row*>(a.input + row * a.input_stride) + first;
  const Row* residual = reinterpret_cast<const Row*>(a.residual + row * a.residual_stride) + first;
  Row* sum = reinterpret_cast<Row*>(a.sum + row * a.n) + first;
  Row* output = reinterpret_cast<Row*>(a.output + row * a.n) + first;
  Row *x = reinterpret_cast<Row*>(shared) + thread, *residuals = x + kVectorsOfBlock;
  Row *weights = x + (kSlots<Residual> - 1) * kVectorsOfBlock, *biases = Residual ? residuals : x;

  auto fetch_parameter = [&](Row* to, const Parameter<T>& parameter) {
    const Row* from = parameter.template place<W>(first);
    const int step = parameter.step * Team;
#pragma unroll
    for (int g = 0; g < V; ++g) device::copy_async(to + g * Team, from + g * step, own(g));
    device::commit_copies();
  };
  // Where the thread has no vector, zeros come in its place.
#pragma unroll
  for (int g = 0; g < V; ++g) {
    device::copy_async(x + g * Team, input + g * Team, own(g));
    if constexpr (Residual) device::copy_async(residuals + g * Team, residual + g * Team, own(g));
    device::commit_copies();
  }
  fetch_parameter(weights, weight_or_one(a.weight));

  Row held[kHold<N, Residual> ? V : 1];
  auto arrive = [&](int g) {
    device::wait_for_copies_but(V - g);  // the later vectors' and the weight's
    Row v = x[g * Team];
    if constexpr (Residual) {
      v = rounded_sum(v, residuals[g * Team]);
      if (own(g)) sum[g * Team] = v;
      x[g * Team] = v;
    }
    if constexpr (kHold<N, Residual>) held[g] = v;
  };
  auto widened = [&](int g, float (&d)[W]) {
    if constexpr (kHold<N, Residual>) {
      device::widen(held[g], d);
    } else {
      const Row v = x[g * Team];
      device::widen(v, d);
    }
  };
  bool arrived = false;
  auto each_vector = [&](auto f) {  // once for an rms norm's sum, twice for a layer norm's
    // What has gone into the first sum has left its room.
    if (N == Norm::layer && arrived) fetch_parameter(biases, bias_or_zero(a.bias));
#pragma unroll
    for (int g = 0; g < V; ++g) {
      if (left_out(g)) break;
      if (!arrived) arrive(g);
      float d[W];
      widened(g, d);
      f(g, g * Team + thread, d);
    }
    arrived = true;
  };
  const float count = N == Norm::layer ? warp_elements<W, V>(vectors, Team, warp) : 0;
  const Told<N> of_warp = told_by_warp<N, W>(a, vectors, count, device::short_reciprocal(fmaxf(count, 1)), each_vector);
  device::cluster_wait();
  tell_cluster(of_warp, parts, &told, 0, cluster, rank, kWarps);
  const Moments<float> moments = moments_told<N>(a, parts, cluster * kWarps);
  const Scale<float> scaled = scale_of<N>(a, moments, row, thread == 0 && rank == 0);

  device::wait_for_copies_but(0);
#pragma unroll
  for (int g = 0; g < V; ++g) {
    if (left_out(g)) break;
    float d[W];
    widened(g, d);
    if constexpr (N == Norm::layer) {
#pragma unroll
      for (int k = 0; k < W; ++k) d[k] -= moments.mean;
    }
    const Row weight = weights[g * Team], bias = biases[N == Norm::layer ? g * Team : 0];
    scale<N, T, W, float>(d, scaled, weight, bias, a.offset);
    if (own(g)) output[g * Team] = device::narrow_all<T>(d);
  }
#endif
}

// ---- host ------------------------------------------------------------------------------------------------------------

template <Norm N, class T, bool Residual, int Team>
int launch(const NormForward& args, const Plan& plan, cudaStream_t stream) {
  const int64_t bytes = int64_t{kSlots<Residual>} * kThreadVectors * Team * 16;
  const ClusterShape shape{Team, static_cast<int>(plan.order.blocks), bytes};
  return launch_clusters<&forward_cluster_kernel<N, T, Residual, Team>>(shape, args.rows, stream, Forward<T, T>(args),
                                                                        shape.blocks, part_of_block(args, plan));
}

}  // namespace

int norm_forward_cluster(const NormForward& args, const Plan& plan, cudaStream_t stream) {
  return with_form<ForwardTable, ForwardTable::Kernel::cluster, plan::Access::vec16>(plan, [&](auto form) -> int {
    using Form = decltype(form);
    static_assert(Form::rule.team.each == kThreadVectors);
    return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
      using T = typename decltype(t)::type;
      constexpr plan::Bits kBits = kProblem<decltype(norm)::value, T, typename decltype(p)::type>;
      if constexpr (Form::is_for(kBits | plan::kResidual))
        if (args.residual) return launch<decltype(norm)::value, T, true, Form::rule.team.threads>(args, plan, stream);
      if constexpr (Form::is_for(kBits | plan::kAlone))
        return launch<decltype(norm)::value, T, false, Form::rule.team.threads>(args, plan, stream);
      return cudaErrorInvalidValue;
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
