// The forward of the norms; formulas in kernels/norm.h. A row's input is read once and held in registers, packed, through the
// passes over it: the mean, the sums of the distances from it and of their squares, the output; or both sums at once, for which
// see norm_forward.cuh. Many rows of two warps, and some of up to eight, go to norm_forward_pairs.cu. Where the card has
// clusters, long rows go to norm_forward_cluster_pairs.cu or norm_forward_cluster.cu, those that it does not take to
// norm_forward_ring.cu; many rows of 32 to 64 KB that stay to norm_forward_twice.cu or norm_forward_held.cu. Longer ones are
// read three times. Rows whose bytes are no multiple of 16 go to norm_forward_ragged.cu, unless they are too long for it.
#include "norm_forward.cuh"
#include "norm_ring.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kMostWithResidual = 4;  // vectors a thread; there are no registers for more of two rows

// When parameters are fetched: late, once the sums are there, which leaves registers for another block; early, with the row;
// or so by few blocks, all on the card at once, which have registers for it and nothing else to do while they wait.
enum class Fetch { late, early, few };

constexpr int kFewThreads = 768;  // of a multiprocessor, with registers for that

// Threads that are to fit a multiprocessor at once: as many as their registers allow, but for 16 bytes of spills at most.
template <Norm N, class T, class P, int Vectors, int Threads, Fetch F>
constexpr int resident_threads() {
  constexpr bool kNarrow = sizeof(T) < 8 && sizeof(P) == sizeof(T);
  if (F == Fetch::few) return kNarrow ? std::max(kFewThreads, Threads) : Threads;
  if (sizeof(P) != sizeof(T)) return 1024;
  if (F == Fetch::late) return !kNarrow ? 1024 : Threads <= 256 ? 1280 : Threads == 384 ? 1152 : 1024;
  if (Vectors > kVectors) return 1024;
  return N == Norm::rms && Threads == 512 ? 1536 : kShortThreads;
}

// Lanes: those of a row; 0: the block.
template <Norm N, class T, class P, int Vectors, int Lanes, int Threads, Fetch F>
__device__ __forceinline__ void forward_rows(const Forward<T, P>& a) {
  using A = accumulate_t<T>;
  constexpr int W = kVector<T>, kTeamRows = Lanes ? Threads / Lanes : 1;
  constexpr bool Early = F != Fetch::late, kRounds = kInRounds<N, T, P, Vectors, Lanes>;
  const int team = Lanes ? Lanes : Threads == 64 ? 64 : static_cast<int>(blockDim.x);  // of 64 none is missing
  const int thread = Lanes ? threadIdx.x % Lanes : threadIdx.x;
  const int n = static_cast<int>(a.n), vectors = n / W;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kTeamRows + (Lanes ? threadIdx.x / Lanes : 0);
  // Lanes beyond the last row take it along: their warp's other lanes need them in the sums.
  const bool live = !Lanes || row < a.rows;
  const int64_t source = live ? row : a.rows - 1;
  const T* input = a.input + source * a.input_stride;

  const Places<Vectors> mine(vectors, team, thread);
  Vector<T, W> x[Vectors];
#pragma unroll
  for (int g = 0; g < Vectors; ++g) x[g] = reinterpret_cast<const Vector<T, W>*>(input)[mine.at[g]];
  T first = N == Norm::layer && !kRounds ? *input : T{};
  Vector<P, W> w[Early ? Vectors : 1], b[Early ? Vectors : 1];
  auto fetch_parameters = [&](int g) {
    const Parameter<P> weight = weight_or_one(a.weight), bias = bias_or_zero(a.bias);
    w[Early ? g : 0] = weight.template vector<W>(mine.at[g]);
    if constexpr (N == Norm::layer) b[Early ? g : 0] = bias.template vector<W>(mine.at[g]);
  };
  if constexpr (Early) {
#pragma unroll
    for (int g = 0; g < Vectors; ++g) fetch_parameters(g);
  }
  if (Vectors <= kMostWithResidual && a.residual) {
    const T* residual = a.residual + source * a.residual_stride;
    Vector<T, W> r[Vectors];
#pragma unroll
    for (int g = 0; g < Vectors; ++g) r[g] = reinterpret_cast<const Vector<T, W>*>(residual)[mine.at[g]];
    if constexpr (N == Norm::layer && !kRounds) first = rounded_sum(first, *residual);
#pragma unroll
    for (int g = 0; g < Vectors; ++g) {
      x[g] = rounded_sum(x[g], r[g]);
      if (live && mine.own[g]) reinterpret_cast<Vector<T, W>*>(a.sum + row * a.n)[mine.at[g]] = x[g];
    }
  }

  auto sum_up = [&](auto& sums, auto& scratch) {
    if constexpr (Lanes)
      lane_sum<Lanes>(sums);
    else
      team_sum(sums, team / kWarp, thread / kWarp, scratch, [] { __syncthreads(); });
  };
  A d[Early ? Vectors : 1][W];  // early kernels keep the distances from the mean, but for those in rounds
  Moments<A> moments = {};
  const unsigned zero = device::unknown_zero();
  if constexpr (kRounds) {
    __shared__ Scratch<A, 2> scratch;
    __shared__ A of_row;  // an element
    auto sums_from = [&](const A(&number)[1], int) {
      Sums<A, 2> sums = {};
#pragma unroll
      for (int g = 0; g < Vectors; ++g) {
        A c[W];
        device::hold_narrow(x[g], zero);
        device::widen(x[g], c);
        if (g == 0 && thread == 0) of_row = c[0];
        add_both(sums, 0, mine.own[g], c, number[0], a.scale);
      }
      sum_up(sums, scratch);
      return sums;
    };
    Moments<A> rows[1];
    find_moments(a, A(n), rows, sums_from, [&](int) { return of_row; });
    moments = rows[0];
  } else if constexpr (N == Norm::layer) {
    __shared__ Scratch<A, 1> total_scratch;
    __shared__ Scratch<A, kDistanceSums<T>> scratch;
    Sums<A, 1> total = {};
#pragma unroll
    for (int g = 0; g < Vectors; ++g) {
      A(&c)[W] = d[Early ? g : 0];
      device::widen(x[g], c);
      const A part = tree_sum<W>(c) * a.scale;
      total.at[0] += mine.own[g] ? part : A(0);
    }
    sum_up(total, total_scratch);
    const PartMean<A> mean = part_mean<T>(total.at[0], device::widen(first), A(n), a.inverse_n, a.scale, a.unscale);
    Sums<A, kDistanceSums<T>> sums = {};
#pragma unroll
    for (int g = 0; g < Vectors; ++g) {
      A(&c)[W] = d[Early ? g : 0];
      if constexpr (!Early) device::widen(x[g], c);
#pragma unroll
      for (int k = 0; k < W; ++k) c[k] -= mean.mean;
      add_distances<T>(sums, mine.own[g], c);
    }
    sum_up(sums, scratch);
    moments = moments_about<T>(mean, sums, A(n), a.inverse_n);
  } else {
    __shared__ Scratch<A, 1> scratch;
    Sums<A, 1> squares = {};
#pragma unroll
    for (int g = 0; g < Vectors; ++g) {
      A(&c)[W] = d[Early ? g : 0];
      device::widen(x[g], c);
      const A part = square_sum<W>(c);
      squares.at[0] += mine.own[g] ? part : A(0);
    }
    sum_up(squares, scratch);
    moments.squares = squares.at[0];
  }
  if (!live) return;
  const Scale<A> scaled = scale_of<N>(a, moments, row, thread == 0);

  T* output = a.output + row * a.n;
#pragma unroll
  for (int g = 0; g < Vectors; ++g) {
    A(&c)[W] = d[Early ? g : 0];
    if constexpr (!Early) fetch_parameters(g);
    if constexpr (!Early || kRounds) {
      if constexpr (kRounds) device::hold_narrow(x[g], zero);
      device::widen(x[g], c);
      if constexpr (N == Norm::layer) {
#pragma unroll
        for (int k = 0; k < W; ++k) c[k] -= moments.mean;
      }
    }
    scale<N, P, W, A>(c, scaled, w[Early ? g : 0], b[Early ? g : 0], a.offset);
    if (mine.own[g]) reinterpret_cast<Vector<T, W>*>(output)[mine.at[g]] = device::narrow_all<T>(c);
  }
}

template <Norm N, class T, class P, int Vectors, int Lanes, int Threads, Fetch F>
__global__ void __launch_bounds__(Threads, resident_blocks(Threads, resident_threads<N, T, P, Vectors, Threads, F>()))
    forward_kernel(const __grid_constant__ Forward<T, P> a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  forward_rows<N, T, P, Vectors, Lanes, Threads, F>(a);
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
int launch(const Forward<T, P>& all, int threads, cudaStream_t stream) {
  constexpr int kRows = Lanes ? Threads / Lanes : 1;
  constexpr bool kSame = sizeof(P) == sizeof(T), kRegisters = N == Norm::rms && sizeof(T) == 4;
  constexpr Fetch kFetch = Vectors <= kVectors || (kSame && (Lanes || kRegisters)) ? Fetch::early : Fetch::late;
  // 256 threads have many rows, and 1024 no registers for parameters beside them.
  constexpr bool kAskFew = kFetch == Fetch::late && Threads != 256 && Threads != 1024;
  return in_launches<N>(all, kRows, [&](const Forward<T, P>& a, unsigned blocks) -> int {
    const auto config = launch_config(blocks, threads, stream);
    auto run = [&](auto fetch) -> int {
      return launch_kernel(&forward_kernel<N, T, P, Vectors, Lanes, Threads, decltype(fetch)::value>, config, a);
    };
    const bool few = Threads == 384 ? all_at_once(a.rows, threads, kFewThreads) : a.few;
    if constexpr (kAskFew)
      if (few) return run(std::integral_constant<Fetch, Fetch::few>{});
    return run(std::integral_constant<Fetch, kFetch>{});
  });
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
  if (ragged_takes(a)) return norm_forward_ragged(a, stream_handle);
  if (pairs_takes(a)) return norm_forward_pairs(a, stream_handle);
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
