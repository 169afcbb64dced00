// The forward of norms over many rows of two warps each, two vectors a thread, without a residual: a block takes two rows. It
// widens parameters once for both and sums both in the same exchanges, and half as many blocks start. Few rows, and those with
// a residual, go one by one to as many threads (norm_forward.cu), so that a row's bits are the same.
#include "norm_forward.cuh"

#include "dependent.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kTeam = 2 * kWarp, kRows = 2;
// Threads of a multiprocessor, as many as their registers allow.
template <class T, class P>
constexpr int kResident = sizeof(P) == sizeof(T) ? 896 : 768;

template <Norm N, class T, class P>
__global__ void __launch_bounds__(kTeam, resident_blocks(kTeam, kResident<T, P>))
    forward_pair_kernel(const __grid_constant__ Forward<T, P> a) {
  using A = accumulate_t<T>;
  constexpr int W = kVector<T>, D = kDistanceSums<T>;
  using Row = Vector<T, W>;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int thread = threadIdx.x, n = static_cast<int>(a.n), vectors = n / W;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRows;
  auto live = [&](int r) { return begin + r < a.rows; };  // a block with one row takes that twice

  const Places<kVectors> mine(vectors, kTeam, thread);
  Row x[kRows][kVectors];
  T first[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const T* input = a.input + (live(r) ? begin + r : begin) * a.input_stride;
#pragma unroll
    for (int g = 0; g < kVectors; ++g) x[r][g] = reinterpret_cast<const Row*>(input)[mine.at[g]];
    first[r] = N == Norm::layer ? *input : T{};
  }
  Vector<P, W> w[kVectors], b[kVectors];
  const Parameter<P> weight = weight_or_one(a.weight), bias = bias_or_zero(a.bias);
#pragma unroll
  for (int g = 0; g < kVectors; ++g) {
    w[g] = weight.template vector<W>(mine.at[g]);
    if constexpr (N == Norm::layer) b[g] = bias.template vector<W>(mine.at[g]);
  }

  A d[kRows][kVectors][W];  // elements, then distances from the mean
  auto each_vector = [&](auto f) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int g = 0; g < kVectors; ++g) f(r, g, d[r][g]);
  };
  auto sum_up = [&](auto& sums, auto& scratch) {
    team_sum(sums, kTeam / kWarp, thread / kWarp, scratch, [] { __syncthreads(); });
  };
  __shared__ Scratch<A, kRows> scratch;
  Sums<A, kRows> totals = {};
  Moments<A> moments[kRows] = {};
  each_vector([&](int r, int g, A(&c)[W]) {
    device::widen(x[r][g], c);
    const A part = N == Norm::layer ? tree_sum<W>(c) * a.scale : square_sum<W>(c);
    totals.at[r] += mine.own[g] ? part : A(0);
  });
  sum_up(totals, scratch);
  if constexpr (N == Norm::layer) {
    __shared__ Scratch<A, kRows * D> distance_scratch;
    PartMean<A> mean[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      mean[r] = part_mean<T>(totals.at[r], device::widen(first[r]), A(n), a.inverse_n, a.scale, a.unscale);
    Sums<A, D> distances[kRows] = {};
    each_vector([&](int r, int g, A(&c)[W]) {
#pragma unroll
      for (int k = 0; k < W; ++k) c[k] -= mean[r].mean;
      add_distances<T>(distances[r], mine.own[g], c);
    });
    Sums<A, kRows * D> all;
#pragma unroll
    for (int k = 0; k < kRows * D; ++k) all.at[k] = distances[k / D].at[k % D];
    sum_up(all, distance_scratch);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < D; ++k) distances[r].at[k] = all.at[r * D + k];
      moments[r] = moments_about<T>(mean[r], distances[r], A(n), a.inverse_n);
    }
  } else {
#pragma unroll
    for (int r = 0; r < kRows; ++r) moments[r].squares = totals.at[r];
  }

  Scale<A> scaled[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) scaled[r] = scale_of<N>(a, moments[r], begin + r, thread == 0 && live(r));
#pragma unroll
  for (int g = 0; g < kVectors; ++g)
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      A(&c)[W] = d[r][g];
      scale<N, P, W, A>(c, scaled[r], w[g], b[g], a.offset);
      if (mine.own[g] && live(r))
        reinterpret_cast<Row*>(a.output + (begin + r) * n)[mine.at[g]] = device::narrow_all<T>(c);
    }
}

}  // namespace

// ---- host ------------------------------------------------------------------------------------------------------------

bool pairs_takes(const NormForward& a) {
  const int64_t bytes = a.n * size_of(a.dtype), vectors = bytes / 16;
  return !a.residual && bytes % 16 == 0 && vectors > kMostOfWarp && vectors <= kMostOfTwo &&
         !all_at_once(a.rows, kTeam, kShortThreads);
}

int norm_forward_pairs(const NormForward& args, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
    using T = typename decltype(t)::type;
    using P = typename decltype(p)::type;
    constexpr Norm N = decltype(norm)::value;
    return in_launches<N>(Forward<T, P>(args), kRows, [&](const Forward<T, P>& a, unsigned blocks) -> int {
      return launch_kernel(&forward_pair_kernel<N, T, P>, launch_config(blocks, kTeam, stream), a);
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
