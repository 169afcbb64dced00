// The forward of the norms for rows of more than 16 to 32 KB; see norm_ring.cuh.
#include "norm_forward.cuh"
#include "norm_ring.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kRingThreads = 512;

// A thread's. With these a block has 64 KB of a row, or of input and residual.
template <bool Residual>
constexpr int kRingVectors = Residual ? 4 : 8;

template <Norm N, class T, class P, bool Residual>
constexpr bool share_bias = N == Norm::layer && !Residual && sizeof(P) == sizeof(T);

constexpr int kMostBlocksOfRow = 8;

// What the blocks of a cluster tell each other about their parts of a row: the sum of squares about the part's own mean,
// the mean as distance from the part's first element, that element.
struct Exchange {
  float squares[kMostBlocksOfRow], mean[kMostBlocksOfRow], first[kMostBlocksOfRow];
};

template <Norm N, class T, class P, bool Residual>
__global__ void __launch_bounds__(kRingThreads)
    forward_ring_kernel(const __grid_constant__ Forward<T, P> a, int cluster, int stages) {
#if __CUDA_ARCH__ >= 900
  constexpr int W = kVector<T>, V = kRingVectors<Residual>;
  // There are registers for parameters of the half types alone, and not for all of them.
  constexpr bool kHoldParameters = sizeof(P) == sizeof(T), kShareBias = share_bias<N, T, P, Residual>;
  using Row = Vector<T, W>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ device::Barrier arrived[kMostStages], told[2];
  __shared__ Scratch<float, 1> scratch[2];
  __shared__ Exchange exchange[2];

  constexpr int team = kRingThreads;
  const int thread = threadIdx.x, rank = cluster > 1 ? device::cluster_rank() : 0;
  const int all = static_cast<int>(a.n / W), part = (all + cluster - 1) / cluster;
  const int begin = rank * part, vectors = min(part, all - begin);
  const unsigned bytes = vectors * sizeof(Row);
  Row *inputs = reinterpret_cast<Row*>(shared), *residuals = inputs + stages * part;
  auto* biases = reinterpret_cast<Vector<P, W>*>(inputs + stages * part);  // with kShareBias: a thread's own
  if (thread == 0) {
    for (int k = 0; k < stages; ++k) device::barrier_init(&arrived[k]);
    device::barrier_init(&told[0]);
    device::barrier_init(&told[1]);
    device::barrier_init_fence();
  }
  if (cluster > 1)
    device::cluster_sync();
  else
    __syncthreads();

  const int rows = static_cast<int>(a.rows), first_row = blockIdx.x / cluster, step = gridDim.x / cluster;
  auto fetch = [&](int row, int slot) {
    if (row >= rows) return;
    device::barrier_expect(&arrived[slot], bytes * (Residual ? 2 : 1));
    device::bulk_copy(inputs + slot * part, a.input + row * a.input_stride + begin * W, bytes, &arrived[slot]);
    if constexpr (Residual)
      device::bulk_copy(residuals + slot * part, a.residual + row * a.residual_stride + begin * W, bytes,
                        &arrived[slot]);
  };
  if (thread == 0)
    for (int k = 0; k < stages; ++k) fetch(first_row + k * step, k);

  Vector<P, W> w[kHoldParameters ? V : 1], b[kHoldParameters && N == Norm::layer && !kShareBias ? V : 1];
  auto parameters = [&](int g, int at) {
    const int i = begin + min(at, vectors - 1);
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
  auto sum_up = [&](Sums<float, 1>& sums, int turn) {
    team_sum(sums, team / kWarp, thread / kWarp, scratch[turn], [] { __syncthreads(); });
  };

  int slot = 0;
  unsigned parity = 0, count = 0;  // of the ring, of rows
  for (int row = first_row; row < rows; row += step) {
    const int turn = count & 1;
    device::barrier_wait(&arrived[slot], parity);
    const Row* input = inputs + slot * part;
    T first = *reinterpret_cast<const T*>(input);
    Row sum[Residual ? V : 1];
    if constexpr (Residual) {
      const Row* residual = residuals + slot * part;
      first = rounded_sum(first, *reinterpret_cast<const T*>(residual));
#pragma unroll
      for (int g = 0; g < V; ++g) {
        const int i = g * team + thread, at = min(i, vectors - 1);
        sum[g] = rounded_sum(input[at], residual[at]);
        if (i < vectors) reinterpret_cast<Row*>(a.sum + row * a.n)[begin + i] = sum[g];
      }
    }
    // A thread without a vector takes the last one along and leaves it out of the sums.
    auto widened = [&](int g, int i, float (&d)[W]) {
      device::widen(Residual ? sum[Residual ? g : 0] : input[min(i, vectors - 1)], d);
    };

    // The block's own part: the sum of squares about its own mean.
    const float x0 = device::widen(first);
    float centre = 0;
    Sums<float, 1> squares = {};
    auto free_slot_before = [&] {  // all threads have left the row before this one
      if (thread == 0 && row != first_row) fetch(row + (stages - 1) * step, slot ? slot - 1 : stages - 1);
    };
    if constexpr (N == Norm::layer) {
      Sums<float, 1> total = {};
#pragma unroll
      for (int g = 0; g < V; ++g) {
        const int i = g * team + thread;
        float d[W];
        widened(g, i, d);
#pragma unroll
        for (int k = 0; k < W; ++k) d[k] -= x0;
        const float part_sum = tree_sum<W>(d);
        total.at[0] += i < vectors ? part_sum : 0.0f;
      }
      sum_up(total, 0);
      free_slot_before();
      centre = total.at[0] * (cluster > 1 ? 1.0f / (vectors * W) : a.inverse_n);
    }
#pragma unroll
    for (int g = 0; g < V; ++g) {
      const int i = g * team + thread;
      float d[W];
      widened(g, i, d);
      float part_sum = 0;
#pragma unroll
      for (int k = 0; k < W; ++k) {
        if constexpr (N == Norm::layer) d[k] = (d[k] - x0) - centre;
        part_sum += d[k] * d[k];
      }
      squares.at[0] += i < vectors ? part_sum : 0.0f;
    }
    sum_up(squares, N == Norm::layer ? 1 : turn);
    if constexpr (N == Norm::rms) free_slot_before();

    // The row's mean and squares from those of its parts.
    float row_centre = centre;
    if (cluster > 1) {
      Exchange& to = exchange[turn];
      if (thread == 0) device::barrier_expect(&told[turn], cluster * (N == Norm::layer ? 3 : 1) * sizeof(float));
      if (thread < cluster) {
        device::send(&to.squares[rank], &told[turn], thread, squares.at[0]);
        if constexpr (N == Norm::layer) {
          device::send(&to.mean[rank], &told[turn], thread, centre);
          device::send(&to.first[rank], &told[turn], thread, x0);
        }
      }
      device::barrier_wait(&told[turn], count >> 1 & 1);
      squares.at[0] = 0;
      if constexpr (N == Norm::layer) {
        auto mean = [&](int k) { return (to.first[k] - to.first[0]) + to.mean[k]; };
        auto count = [&](int k) { return static_cast<float>(min(part, all - k * part) * W); };
        row_centre = 0;
        for (int k = 0; k < cluster; ++k) row_centre += count(k) * mean(k);
        row_centre *= a.inverse_n;
        for (int k = 0; k < cluster; ++k) {
          const float away = mean(k) - row_centre;
          squares.at[0] += to.squares[k] + count(k) * (away * away);
        }
        centre = row_centre + (to.first[0] - x0);
      } else {
        for (int k = 0; k < cluster; ++k) squares.at[0] += to.squares[k];
      }
    }
    ++count;
    const float rstd = inverse_sqrt<T>(squares.at[0] * a.inverse_n, a.eps);
    if (thread == 0 && rank == 0) {
      if (N == Norm::layer && a.centre) a.centre[row] = row_centre;
      if (a.rstd) a.rstd[row] = rstd;
    }

    Row* output = reinterpret_cast<Row*>(a.output + row * a.n) + begin;
#pragma unroll
    for (int g = 0; g < V; ++g) {
      const int i = g * team + thread;
      if constexpr (!kHoldParameters) parameters(0, i);
      float d[W];
      widened(g, i, d);
      if constexpr (N == Norm::layer) {
#pragma unroll
        for (int k = 0; k < W; ++k) d[k] = (d[k] - x0) - centre;
      }
      const int at = kHoldParameters ? g : 0;
      const Vector<P, W> own_bias =
          kShareBias ? biases[min(i, vectors - 1)] : b[N == Norm::layer && !kShareBias ? at : 0];
      scale<N, P, W, float>(d, rstd, w[at], own_bias, a.offset);
      if (i < vectors) output[i] = device::narrow_all<T>(d);
    }
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
  }
  if (cluster > 1) device::cluster_sync();  // no block leaves while another may still write to it
#endif
}

RingPlan plan_of(const NormForward& a) {
  const int64_t vectors = a.n * size_of(a.dtype) / 16, tensors = a.residual ? 2 : 1;
  const int64_t each = a.residual ? kRingVectors<true> : kRingVectors<false>;
  const int cluster = cluster_of(ceil_div(vectors, kRingThreads * each));
  const int64_t part = ceil_div(vectors, cluster);
  const bool bias = a.norm == Norm::layer && !a.residual && a.parameter == a.dtype;
  return ring_plan(kRingThreads, cluster, part * 16 * tensors, bias ? part * 16 : 0);
}

template <class F>
int with_kernel(const NormForward& a, F f) {
  return dispatch_types(a.dtype, a.parameter, [&](auto t, auto p) -> int {
    using T = typename decltype(t)::type;
    using P = typename decltype(p)::type;
    if constexpr (sizeof(T) == 8) {
      return cudaErrorInvalidValue;
    } else {
      return dispatch_norm(a.norm, [&](auto norm) -> int {
        return dispatch_bool(a.residual != nullptr, [&](auto residual) -> int {
          return f(&forward_ring_kernel<decltype(norm)::value, T, P, decltype(residual)::value>, Forward<T, P>(a));
        });
      });
    }
  });
}

}  // namespace

// The kernels are empty where they were compiled for less than compute capability 9.0.
static __global__ void probe() {}

bool ring_runs_here() {
  static PerDevice answers;
  return answers.get([](int) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, probe) == cudaSuccess) return attributes.ptxVersion >= 90 ? 1 : 0;
    cudaGetLastError();
    return 0;
  });
}

bool ring_takes(const NormForward& a) {
  const int64_t bytes = a.n * size_of(a.dtype);
  if (bytes <= 512 * 16 * 4 || bytes % 16 != 0 || a.dtype == DType::f64 || a.rows > kMostRows || !ring_runs_here())
    return false;
  const RingPlan plan = plan_of(a);
  return plan.cluster <= kMostBlocksOfRow && plan.stages >= 2;
}

int norm_forward_ring(const NormForward& args, void* stream) {
  const RingPlan plan = plan_of(args);
  return with_kernel(args, [&](auto* kernel, const auto& a) -> int {
    const int64_t clusters = std::min(a.rows, most_clusters(kernel, plan));
    return launch_ring(kernel, plan, clusters, a, stream);
  });
}

}  // namespace fastops::FASTOPS_ARCH
