// The forward of the norms; formulas in kernels/norm.h. Rows that fit registers go to the kernels of norm_forward_rows.cuh: of
// vectors of 16 bytes from here, of halves of 8 bytes from norm_forward_narrow.cu; many of two warps, and some of up to eight,
// to norm_forward_pairs.cu; others whose bytes are no multiple of 16 to norm_forward_ragged.cu. Where the card has clusters,
// long rows go to norm_forward_cluster_pairs.cu or norm_forward_cluster.cu, those that it does not take to
// norm_forward_ring.cu; many rows of 32 to 64 KB that stay to norm_forward_twice.cu or norm_forward_held.cu. Longer ones are
// read three times.
#include "norm_forward_rows.cuh"
#include "norm_ring.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

// Threads that are to fit a multiprocessor at once: as many as their registers allow, but for 16 bytes of spills at most.
template <Norm N, class T, class P, int Vectors, int Threads, Fetch F>
constexpr int resident_threads() {
  constexpr bool kSame = sizeof(T) < 8 && sizeof(P) == sizeof(T);
  if (F == Fetch::few) return kSame ? std::max(kFewThreads, Threads) : Threads;
  if (sizeof(P) != sizeof(T)) return 1024;
  if (F == Fetch::late) return !kSame ? 1024 : Threads <= 256 ? 1280 : Threads == 384 ? 1152 : 1024;
  if (Vectors > kVectors) return 1024;
  return N == Norm::rms && Threads == 512 ? 1536 : kShortThreads;
}

// Rows too long for registers: a block a row, read again in each pass.
template <Norm N, class T, class P, int W>
__global__ void __launch_bounds__(1024) forward_long_kernel(const __grid_constant__ Forward<T, P> a) {
  using A = accumulate_t<T>;
  __shared__ Scratch<A, 1> first_scratch;
  __shared__ Scratch<A, kDistanceSums<T>> scratch;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int64_t row = blockIdx.x, vectors = a.n / W;
  const auto* input = reinterpret_cast<const Vector<T, W>*>(a.input + row * a.input_stride);
  const auto* residual = reinterpret_cast<const Vector<T, W>*>(a.residual + row * a.residual_stride);
  auto* sum = reinterpret_cast<Vector<T, W>*>(a.sum + row * a.n);
  if (a.residual) {
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) sum[i] = rounded_sum(input[i], residual[i]);
    input = sum;  // each thread reads back what it wrote
  }
  auto sum_up = [&](auto& sums, auto& room) {
    team_sum(sums, static_cast<int>(blockDim.x) / kWarp, threadIdx.x / kWarp, room, [] { __syncthreads(); });
  };
  auto each_vector = [&](auto f) {
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
      A d[W];
      device::widen(input[i], d);
      f(i, d);
    }
  };
  Moments<A> moments = {};
  if constexpr (N == Norm::layer) {
    Sums<A, 1> total = {};
    each_vector([&](int64_t, A(&d)[W]) { total.at[0] += tree_sum<W>(d) * a.scale; });
    sum_up(total, first_scratch);
    T first = *reinterpret_cast<const T*>(a.input + row * a.input_stride);
    if (a.residual) first = rounded_sum(first, *reinterpret_cast<const T*>(residual));
    const PartMean<A> part = part_mean<T>(total.at[0], device::widen(first), A(a.n), a.inverse_n, a.scale, a.unscale);
    Sums<A, kDistanceSums<T>> sums = {};
    each_vector([&](int64_t, A(&d)[W]) {
#pragma unroll
      for (int k = 0; k < W; ++k) d[k] -= part.mean;
      add_distances<T>(sums, true, d);
    });
    sum_up(sums, scratch);
    moments = moments_about<T>(part, sums, A(a.n), a.inverse_n);
  } else {
    Sums<A, 1> squares = {};
    each_vector([&](int64_t, A(&d)[W]) { squares.at[0] += square_sum<W>(d); });
    sum_up(squares, first_scratch);
    moments.squares = squares.at[0];
  }
  const Scale<A> scaled = scale_of<N>(a, moments, row, threadIdx.x == 0);
  const Parameter<P> weight = weight_or_one(a.weight), bias = bias_or_zero(a.bias);
  auto* output = reinterpret_cast<Vector<T, W>*>(a.output + row * a.n);
  each_vector([&](int64_t i, A(&d)[W]) {
    if constexpr (N == Norm::layer) {
#pragma unroll
      for (int k = 0; k < W; ++k) d[k] -= moments.mean;
    }
    scale<N, P, W, A>(d, scaled, weight.template vector<W>(i), bias.template vector<W>(i), a.offset);
    output[i] = device::narrow_all<T>(d);
  });
}

// ---- host ------------------------------------------------------------------------------------------------------------

template <Norm N, class T, class P, int Vectors, int Lanes, int Threads>
int launch(const Forward<T, P>& a, int threads, cudaStream_t stream) {
  constexpr bool kSame = sizeof(P) == sizeof(T), kRegisters = N == Norm::rms && sizeof(T) == 4;
  constexpr Fetch kFetch = Vectors <= kVectors || (kSame && (Lanes || kRegisters)) ? Fetch::early : Fetch::late;
  // 256 threads have many rows, and 1024 no registers for parameters beside them.
  constexpr bool kAskFew = kFetch == Fetch::late && Threads != 256 && Threads != 1024;
  auto run = [&](auto fetch) -> int {
    constexpr Fetch F = decltype(fetch)::value;
    constexpr int kResident = resident_threads<N, T, P, Vectors, Threads, F>();
    return launch_rows<N, T, P, Vectors, Lanes, Threads, F, kVector<T>, kResident>(a, threads, stream);
  };
  const bool few = Threads == 384 ? all_at_once(a.rows, threads, kFewThreads) : a.few;
  if constexpr (kAskFew)
    if (few) return run(std::integral_constant<Fetch, Fetch::few>{});
  return run(std::integral_constant<Fetch, kFetch>{});
}

template <Norm N, class T, class P, int W>
int launch_long(const NormForward& args, cudaStream_t stream) {
  return in_launches<N>(Forward<T, P>(args), 1, [&](const Forward<T, P>& a, unsigned blocks) -> int {
    return launch_kernel(&forward_long_kernel<N, T, P, W>, launch_config(blocks, 1024, stream), a);
  });
}

// Whether a row of up to 1024 vectors is faster with two a thread, and parameters fetched with it, than with four. Without a
// residual two are too few bytes on their way, but for an rms norm's, which has more threads, of whole warps or few vectors.
template <Norm N, class T>
bool takes_few(int64_t vectors, bool residual) {
  if (residual) return true;
  return N == Norm::rms && (vectors % (kVectors * kWarp) == 0 || vectors <= (sizeof(T) == 2 ? 512 : 384));
}

// By the number of vectors in a row: lanes of a warp while a few vectors a lane are enough, two warps likewise, then blocks
// with more a thread. Three a thread where two, or whole warps of four, would leave a fourth of the threads without: rows of
// 192, 384, 768, 1536, 4608 halves, but for those that pairs_of_more_warps(). How many threads have a row, and how many vectors
// each, depends on the row's length, the dtypes and whether there is a residual, never on the number of rows.
template <Norm N, class T, class P>
int launch_registers(const NormForward& args, cudaStream_t stream) {
  const Forward<T, P> a(args);
  constexpr int W = kVector<T>, kFew = kVectors, kThree = 3, kMany = 2 * kFew;
  constexpr int kSmall = 128;
  const int64_t vectors = a.n / W;
  auto threads = [&](int each) { return static_cast<int>(ceil_div(vectors, each * kWarp) * kWarp); };
  if (vectors <= 8 * kFew) return launch<N, T, P, kFew, 8, kSmall>(a, kSmall, stream);
  if (vectors > 8 * 2 && vectors <= 8 * kThree) return launch<N, T, P, kThree, 8, kSmall>(a, kSmall, stream);
  if (vectors <= 16 * kFew) return launch<N, T, P, kFew, 16, kSmall>(a, kSmall, stream);
  if (vectors <= 16 * kThree) return launch<N, T, P, kThree, 16, kSmall>(a, kSmall, stream);
  if (vectors > 32 * kFew && vectors <= kMostOfWarp) return launch<N, T, P, kThree, 32, kSmall>(a, kSmall, stream);
  if constexpr (N == Norm::layer && sizeof(T) == 2 && sizeof(P) == 2)
    if (pairs_of_more_warps(args)) return launch<N, T, P, kFew, 0, 512>(a, threads(kFew), stream);
  if (vectors > kMostOfTwo && vectors <= 256 * kMany && vectors % (3 * kWarp) == 0 && vectors % (4 * kWarp) != 0)
    return launch<N, T, P, kThree, 0, 512>(a, threads(kThree), stream);
  if (vectors <= 32 * kFew) return launch<N, T, P, kFew, 32, kSmall>(a, kSmall, stream);
  if (vectors <= kMostOfTwo) return launch<N, T, P, kFew, 0, 64>(a, threads(kFew), stream);
  if constexpr (sizeof(T) < 8 && sizeof(P) == sizeof(T)) {
    if (vectors <= 512 * kFew && takes_few<N, T>(vectors, a.residual))
      return launch<N, T, P, kFew, 0, 512>(a, threads(kFew), stream);
    // A layer norm's short rows in float32 have more of them on their way with three, or of whole warps with two; longer ones
    // did not gain.
    if constexpr (N == Norm::layer && sizeof(T) == 4) {
      if (vectors <= kThree * 2 * kWarp) return launch<N, T, P, kThree, 0, 512>(a, threads(kThree), stream);
      if (vectors == 256) return launch<N, T, P, kFew, 0, 256>(a, threads(kFew), stream);
    }
    const int each = threads(kMany);
    if (each <= 384 && !a.few && (each > 256 || all_at_once(a.rows, each, kFewThreads)))
      return launch<N, T, P, kMany, 0, 384>(a, each, stream);
    // All rows at once, where fewer registers a thread allow that and more do not.
    if (each <= 256 && !all_at_once(a.rows, each, 1024) && all_at_once(a.rows, each, 1280))
      return launch<N, T, P, kMany, 0, 256>(a, each, stream);
  }
  if (vectors <= 512 * kMany) return launch<N, T, P, kMany, 0, 512>(a, threads(kMany), stream);
  if constexpr (sizeof(T) < 8 && N == Norm::rms) {
    if (!a.residual && vectors <= kLongThree) return launch<N, T, P, kThree, 0, 1024>(a, threads(kThree), stream);
    if (vectors <= 1024 * kMany) return launch<N, T, P, kMany, 0, 1024>(a, threads(kMany), stream);
  }
  if constexpr (sizeof(T) == 4 && N == Norm::layer)
    if (a.n * 4 <= bytes_in_registers(args)) return launch<N, T, P, 2 * kMany, 0, 512>(a, threads(2 * kMany), stream);
  return launch_long<N, T, P, W>(args, stream);
}

}  // namespace

int norm_forward(const NormForward& a, void* stream_handle) {
  if (cluster_pairs_takes(a)) return norm_forward_cluster_pairs(a, stream_handle);
  if (cluster_takes(a)) return norm_forward_cluster(a, stream_handle);
  if (held_takes(a)) return norm_forward_held(a, stream_handle);
  if (ring_takes(a)) return norm_forward_ring(a, stream_handle);
  if (pairs_takes(a)) return norm_forward_pairs(a, stream_handle);
  if (narrow_takes(a)) return norm_forward_narrow(a, stream_handle);
  if (ragged_takes(a)) return norm_forward_ragged(a, stream_handle);
  if (twice_takes(a)) return norm_forward_twice(a, stream_handle);
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch_problem(a, [&](auto norm, auto t, auto p) -> int {
    using T = typename decltype(t)::type;
    using P = typename decltype(p)::type;
    constexpr Norm N = decltype(norm)::value;
    return dispatch_width<T>(a.n, [&](auto width) -> int {
      constexpr int W = decltype(width)::value;
      if constexpr (W == kVector<T>)
        return launch_registers<N, T, P>(a, stream);
      else
        return launch_long<N, T, P, W>(a, stream);
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
