// The forward of layer norms of half types over long rows without a residual: as norm_forward_cluster.cu, but clusters have two
// rows where rows are many. Weight and bias, which every row reads from the L2 cache, are then read half as often, and that
// cache's bandwidth is what clusters of one row wait for. They come into registers while the rows are on their way, and both
// sums of a row are told at once (norm_forward.cuh).
#include "norm_forward_cluster.cuh"
#include "norm_plan.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kTeam = 256, kVectorsOfThread = 4, kVectorsOfBlock = kTeam * kVectorsOfThread;
constexpr int kBlocks = 4;  // of a multiprocessor, as many as their registers allow

struct alignas(8) BothSums {
  float distances, squares;
};

template <class T, int Rows>
__global__ void __launch_bounds__(kTeam, kBlocks)
    forward_cluster_pair_kernel(const __grid_constant__ Forward<T, T> a, int cluster, int most) {
#if __CUDA_ARCH__ >= 900
  constexpr int W = kVector<T>, V = kVectorsOfThread, kWarps = kTeam / kWarp;
  using Row = Vector<T, W>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ device::Barrier told[2][Rows];
  __shared__ BothSums parts[2][Rows][kMostBlocksOfRow * kWarps];
  const int thread = threadIdx.x, warp = thread / kWarp, lane = thread % kWarp;
  if (thread == 0) {
#pragma unroll
    for (int k = 0; k < 2 * Rows; ++k) device::barrier_init(&told[0][0] + k);
    device::barrier_init_fence();
  }
  device::cluster_arrive_relaxed();
  wait_for_earlier_kernels();
  let_next_kernel_start();

  // This block's part of a row: `vectors`, of which the thread has its first, and every kTeam-th from there on.
  const int64_t begin = int64_t{device::cluster_number()} * Rows;
  const int rank = device::cluster_rank(), vectors = min(most, static_cast<int>(a.n / W) - rank * most);
  const int64_t first = int64_t{rank} * most + thread;
  const float n = static_cast<float>(a.n);
  auto own = [&](int g) { return g * kTeam + thread < vectors; };
  auto left_out = [&](int g) { return g * kTeam >= vectors; };  // no thread has such a vector
  auto live = [&](int r) { return r == 0 || begin + r < a.rows; };
  // Where the thread has no vector, or the cluster no second row, zeros come in its place.
  Row* x = reinterpret_cast<Row*>(shared) + thread;
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    const Row* input = reinterpret_cast<const Row*>(a.input + (begin + r) * a.input_stride) + first;
#pragma unroll
    for (int g = 0; g < V; ++g) {
      device::copy_async(x + r * kVectorsOfBlock + g * kTeam, input + g * kTeam, live(r) && own(g));
      device::commit_copies();
    }
  }
  Row w[V], b[V];
  auto fetch_parameter = [&](Row(&to)[V], const Parameter<T>& parameter) {
    const Row* from = parameter.template place<W>(int64_t{rank} * most);
#pragma unroll
    for (int g = 0; g < V; ++g) to[g] = from[min(g * kTeam + thread, vectors - 1) * parameter.step];
  };
  fetch_parameter(w, weight_or_one(a.weight));
  fetch_parameter(b, bias_or_zero(a.bias));

  // Every warp tells every block of the cluster both sums of each row: in a second round of those alone that need it, which
  // all blocks see alike.
  auto tell = [&](int r, int round, const Sums<float, 2>& sums) {
    if (thread == 0) device::barrier_expect(&told[round][r], cluster * kWarps * sizeof(BothSums));
    if (lane < cluster)
      device::send(&parts[round][r][rank * kWarps + warp], &told[round][r], lane, BothSums{sums.at[0], sums.at[1]});
  };
  auto heard = [&](int r, int round) {
    device::barrier_wait_cluster(&told[round][r], 0);
    Sums<float, 2> sums = {};
    for (int k = lane; k < cluster * kWarps; k += kWarp) {
      sums.at[0] += parts[round][r][k].distances;
      sums.at[1] += parts[round][r][k].squares;
    }
    lane_sum<kWarp>(sums);
    return sums;
  };
  auto add = [&](Sums<float, 2>& sums, int r, int g, float number) {
    float d[W];
    device::widen(x[r * kVectorsOfBlock + g * kTeam], d);
    add_both(sums, 0, own(g), d, number, a.scale);
  };

#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    if (!live(r)) break;  // nor told: the block may be gone
    Sums<float, 2> sums = {};
#pragma unroll
    for (int g = 0; g < V; ++g) {
      if (left_out(g)) break;
      device::wait_for_copies_but((Rows - r) * V - 1 - g);
      add(sums, r, g, 0);
    }
    lane_sum<kWarp>(sums);
    if (r == 0) device::cluster_wait();
    tell(r, 0, sums);
  }
  device::wait_for_copies_but(0);
#pragma unroll
  for (int r = 0; r < Rows; ++r) {
    if (!live(r)) break;
    Moments<float> moments[1];
    auto sums_from = [&](const float (&number)[1], int round) {
      if (round > 0) {
        Sums<float, 2> sums = {};
#pragma unroll 1
        for (int g = 0; g < V; ++g) add(sums, r, g, number[0]);
        lane_sum<kWarp>(sums);
        tell(r, round, sums);
      }
      return heard(r, round);
    };
    find_moments(a, n, moments, sums_from, [&](int) { return device::widen(a.input[(begin + r) * a.input_stride]); });
    const Scale<float> scaled = scale_of<Norm::layer>(a, moments[0], begin + r, thread == 0 && rank == 0);
    Row* output = reinterpret_cast<Row*>(a.output + (begin + r) * a.n) + first;
#pragma unroll
    for (int g = 0; g < V; ++g) {
      if (left_out(g)) break;
      float d[W];
      device::widen(x[r * kVectorsOfBlock + g * kTeam], d);
#pragma unroll
      for (int k = 0; k < W; ++k) d[k] -= moments[0].mean;
      scale<Norm::layer, T, W, float>(d, scaled, w[g], b[g], a.offset);
      if (own(g)) output[g * kTeam] = device::narrow_all<T>(d);
    }
  }
#endif
}

// ---- host ------------------------------------------------------------------------------------------------------------

}  // namespace

int norm_forward_cluster_pairs(const NormForward& args, const Plan& plan, cudaStream_t stream) {
  return with_form<ForwardTable, ForwardTable::Kernel::cluster_rows, plan::Access::vec16>(plan, [&](auto form) -> int {
    using Form = decltype(form);
    static_assert(Form::rule.team.threads == kTeam && Form::rule.team.each == kVectorsOfThread);
    return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
      using T = typename decltype(t)::type;
      using P = typename decltype(p)::type;
      if constexpr (Form::is_for(kProblem<decltype(norm)::value, T, P>)) {
        constexpr int Rows = Form::schedule.rows_each;
        const ClusterShape shape{kTeam, static_cast<int>(plan.order.blocks), Rows * kVectorsOfBlock * 16};
        return launch_clusters<&forward_cluster_pair_kernel<T, Rows>>(
            shape, ceil_div(args.rows, Rows), stream, Forward<T, T>(args), shape.blocks, part_of_block(args, plan));
      }
      return cudaErrorInvalidValue;
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
