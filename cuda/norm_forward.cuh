#pragma once
// What the kernels of the forward share.
#include <cmath>

#include "norm.cuh"

namespace fastops::FASTOPS_ARCH {

// Rows that fit registers, of which not every one starts at 16 bytes: those of halves that start at 8, with parameters of the
// same dtype, and all others.
bool narrow_takes(const NormForward& a);
int norm_forward_narrow(const NormForward& a, void* stream);
bool ragged_takes(const NormForward& a);
int norm_forward_ragged(const NormForward& a, void* stream);

// Elements of a narrow vector; how many of them a thread has where two warps have the row, else 0.
constexpr int kNarrow = 4;
inline int narrow_of_two_warps(int64_t vectors) {
  return vectors <= 6 * kWarp || vectors > 12 * kWarp ? 0 : vectors <= 8 * kWarp ? 4 : 6;
}

// Many rows of two warps each without a residual, a layer norm's of halves also of up to eight.
bool pairs_takes(const NormForward& a);
int norm_forward_pairs(const NormForward& a, void* stream);

// The vectors of a row that a warp has, three a lane, and two warps; the threads of a multiprocessor that have short rows.
constexpr int64_t kMostOfWarp = 3 * kWarp, kMostOfTwo = kVectors * 2 * kWarp;
constexpr int kShortThreads = 1280;

// Whether the row is a layer norm's of halves, without a residual, that more than two warps have with two vectors a thread:
// four warps or less, seven or eight. With five or six, 1000 rows took a seventh longer than with four vectors a thread.
inline bool pairs_of_more_warps(const NormForward& a) {
  constexpr int64_t kOfWarp = kVectors * kWarp;
  const int64_t bytes = a.n * size_of(a.dtype), vectors = bytes / 16;
  return a.norm == Norm::layer && size_of(a.dtype) == 2 && a.parameter == a.dtype && !a.residual && bytes % 16 == 0 &&
         vectors > 2 * kOfWarp && vectors <= 8 * kOfWarp && (vectors <= 4 * kOfWarp || vectors > 6 * kOfWarp);
}

// Whether a card has rows of so many threads each at once, where a multiprocessor takes `resident` of them.
inline bool all_at_once(int64_t rows, int64_t threads, int64_t resident) {
  return rows <= resident / threads * multiprocessors();
}

constexpr int64_t kMostBlocks = INT32_MAX;  // of a launch

// Blocks that are to fit a multiprocessor at once, of so many threads in all where it takes them.
constexpr int resident_blocks(int threads, int all) {
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 750 || __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870)
  constexpr int kThreads = __CUDA_ARCH__ == 750 ? 1024 : 1536, kBlocks = 16;
#elif defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ == 1200)
  constexpr int kThreads = 1536, kBlocks = 24;
#else
  constexpr int kThreads = 2048, kBlocks = 24;
#endif
  return std::min(std::min(all, kThreads) / threads, kBlocks);
}

// The bytes of a row that a block of 512 threads holds in registers, four vectors each; of one without a residual in f32, which
// needs not be widened, eight. Of an rms norm's rows, 1024 threads hold four, or read them twice.
constexpr int64_t kBlockBytes = 512 * 4 * 16;
inline int64_t bytes_in_registers(const NormForward& a) {
  const bool twice = a.norm == Norm::rms ? a.dtype != DType::f64 : a.dtype == DType::f32 && !a.residual;
  return kBlockBytes * (twice ? 2 : 1);
}

// A row above that which 1024 threads have: three vectors each up to so many vectors, else four.
constexpr int64_t kLongThree = 3 * 1024;
inline bool is_long(const NormForward& a) {
  const int64_t bytes = a.n * size_of(a.dtype);
  return a.dtype != DType::f64 && bytes % 16 == 0 && bytes > kBlockBytes && bytes <= 2 * kBlockBytes;
}

// Many such rows of an rms norm, read twice.
bool twice_takes(const NormForward& a);
int norm_forward_twice(const NormForward& a, void* stream);

// Such rows of a layer norm with a residual, held and summed as the ring's cluster of two blocks does: many, or all.
bool held_takes(const NormForward& a);
int norm_forward_held(const NormForward& a, void* stream);

// Rows of more than 24 KB, an rms norm's of more than 20, with a residual of more than 32, each with a cluster of its own; not
// an rms norm's of 32 to 64 KB. A layer norm's of halves, without a residual, by two.
bool cluster_takes(const NormForward& a);
int norm_forward_cluster(const NormForward& a, void* stream);
bool cluster_pairs_takes(const NormForward& a);
int norm_forward_cluster_pairs(const NormForward& a, void* stream);

// Of the ring: a block's threads, and a thread's vectors, with which a block has 64 KB of a row, or of input and residual.
constexpr int kRingThreads = 512;
template <bool Residual>
constexpr int kRingVectors = Residual ? 4 : 8;

// What a kernel needs, in the types it computes in.
template <class T, class P>
struct Forward {
  using A = accumulate_t<T>;
  const T *input, *residual;
  const P *weight, *bias;
  T *output, *sum;
  A* statistics;
  int64_t rows, n, input_stride, residual_stride;
  A inverse_n, scale, unscale, eps, offset;  // scale: a power of two about 1 / n
  bool few;                                  // a block a multiprocessor at most

  explicit Forward(const NormForward& a)
      : input(static_cast<const T*>(a.input)),
        residual(static_cast<const T*>(a.residual)),
        weight(static_cast<const P*>(a.weight)),
        bias(static_cast<const P*>(a.bias)),
        output(static_cast<T*>(a.output)),
        sum(static_cast<T*>(a.sum)),
        statistics(static_cast<A*>(a.statistics)),
        rows(a.rows),
        n(a.n),
        input_stride(a.input_stride),
        residual_stride(a.residual_stride),
        inverse_n(static_cast<A>(1.0 / static_cast<double>(a.n))),
        scale(static_cast<A>(std::exp2(-std::ceil(std::log2(static_cast<double>(a.n)))))),
        unscale(1 / scale),
        eps(static_cast<A>(a.eps)),
        offset(a.weight ? static_cast<A>(a.weight_offset) : A(0)),
        few(a.rows <= multiprocessors()) {}

  // From that row on, as a launch has at most kMostBlocks blocks.
  Forward from_row(Norm norm, int64_t row) const {
    Forward a = *this;
    a.input += row * input_stride;
    if (residual) a.residual += row * residual_stride;
    a.output += row * n;
    if (sum) a.sum += row * n;
    if (statistics) a.statistics += row * statistics_of(norm);
    a.rows -= row;
    return a;
  }
};

// f(problem, blocks) for as many rows at a time as a launch has blocks for, `each` a block; the first error.
template <Norm N, class T, class P, class F>
int in_launches(const Forward<T, P>& all, int64_t each, F f) {
  for (int64_t row = 0; row < all.rows; row += kMostBlocks * each) {
    const Forward<T, P> a = all.from_row(N, row);
    const int error = f(a, static_cast<unsigned>(std::min(ceil_div(a.rows, each), kMostBlocks)));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// f(problem, std::integral_constant<int, vectors a thread>) for rows that are long.
template <class F>
int dispatch_long(const NormForward& a, F f) {
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_parameter<T>(a.parameter, [&](auto p) -> int {
      if constexpr (sizeof(T) < 8) {
        const Forward<T, typename decltype(p)::type> all(a);
        return a.n / kVector<T> <= kLongThree ? f(all, std::integral_constant<int, 3>{})
                                              : f(all, std::integral_constant<int, 4>{});
      }
      return cudaErrorInvalidValue;
    });
  });
}

// Which vectors of a row a thread of the team has. Without one it takes the last along and leaves it out of the sums: no
// branch parts the vectors. Full: every thread has all of them.
template <int Vectors, bool Full = false>
struct Places {
  int at[Vectors];
  bool own[Vectors];

  __device__ Places(int vectors, int team, int thread) {
#pragma unroll
    for (int g = 0; g < Vectors; ++g) {
      own[g] = Full || g * team + thread < vectors;
      at[g] = Full ? g * team + thread : min(g * team + thread, vectors - 1);
    }
  }
};

template <class T>
__device__ inline T rounded_sum(T a, T b) {
  return device::narrow<T>(device::widen(a) + device::widen(b));
}

template <class T, int W>
__device__ inline Vector<T, W> rounded_sum(const Vector<T, W>& a, const Vector<T, W>& b) {
  Vector<T, W> sum;
  if constexpr (sizeof(T) == 2 && W % 2 == 0) {
#pragma unroll
    for (int k = 0; k < W / 2; ++k) sum.pair[k] = device::add_pairs<T>(a.pair[k], b.pair[k]);
  } else {
#pragma unroll
    for (int k = 0; k < W; ++k) sum.at[k] = rounded_sum(a.at[k], b.at[k]);
  }
  return sum;
}

// Moments of a warp's part of a row, of `vectors` in its block, `count` elements in all. each_vector(f) calls f(g, i, d) for
// the thread's vectors: their numbers g in the thread and i in the block, their elements d.
template <int W, class T, class P, class EachVector>
__device__ inline Moments<float> warp_moments(const Forward<T, P>& a, int vectors, float count, float inverse_count,
                                              EachVector each_vector) {
  Sums<float, 1> total = {};
  float first;
  each_vector([&](int g, int i, float (&d)[W]) {
    if (g == 0) first = __shfl_sync(0xffffffffu, d[0], 0);
    const float share = tree_sum<W>(d) * a.scale;
    total.at[0] += i < vectors ? share : 0.0f;
  });
  lane_sum<kWarp>(total);
  const PartMean<float> mean = part_mean<T>(total.at[0], first, count, inverse_count, a.scale, a.unscale);
  Sums<float, kDistanceSums<T>> sums = {};
  each_vector([&](int, int i, float (&d)[W]) {
#pragma unroll
    for (int k = 0; k < W; ++k) d[k] -= mean.mean;
    add_distances<T>(sums, i < vectors, d);
  });
  lane_sum<kWarp>(sums);
  return moments_about<T>(mean, sums, count, inverse_count);
}

// What a row is scaled by: d·rstd + shift, of d = x - mean or x itself.
template <class A>
struct Scale {
  A rstd, shift;
};

// By the moments of a layer norm's row, of which the squares are all that an rms norm has; keeps the statistics.
template <Norm N, class T, class P, class A>
__device__ inline Scale<A> scale_of(const Forward<T, P>& a, const Moments<A>& row, int64_t number, bool keep) {
  const A rstd = inverse_sqrt<T>(row.squares * a.inverse_n, a.eps);
  if (keep && a.statistics) {
    A* statistics = a.statistics + number * kStatistics<N>;
    if constexpr (N == Norm::layer) {
      statistics[0] = row.mean;
      statistics[1] = row.shift;
    }
    statistics[kStatistics<N> - 1] = rstd;
  }
  return {rstd, N == Norm::layer ? -row.shift * rstd : A(0)};
}

// Of a half type's rows the moments in one pass: the sums of the elements, and of their squares, are enough where the mean is
// near 0. Where it is not, for there they cancel, a second round takes distances from the mean. Of narrow vectors up to six a
// thread were as fast or faster without.
template <Norm N, class T, class P, int W, int Vectors, int Lanes>
constexpr bool kInRounds = N == Norm::layer && sizeof(T) == 2 && sizeof(P) == sizeof(T) && Lanes == 0 &&
                           (W == kVector<T> ? Vectors == kVectors : Vectors > 6);

// The mean is at most so many standard deviations from 0: their square, and 1, is what the variance loses of f32's digits.
constexpr int kNearDeviations = 4;
__device__ inline bool near_zero(const Moments<float>& row) {  // not if squares overflowed, underflowed or are all 0
  return row.squares >= FLT_MIN && row.squares <= FLT_MAX &&
         row.squares * (kNearDeviations * kNearDeviations) >= row.count * (row.mean * row.mean);
}

// Adds a vector's distances from the number, times the scale, and their squares to the sums of row r.
template <int W, int Count>
__device__ inline void add_both(Sums<float, Count>& sums, int r, bool own, float (&x)[W], float number, float scale) {
#pragma unroll
  for (int k = 0; k < W; ++k) x[k] -= number;
  const float distances = tree_sum<W>(x) * scale, squares = square_sum<W>(x);
  sums.at[2 * r] += own ? distances : 0.0f;
  sums.at[2 * r + 1] += own ? squares : 0.0f;
}

// By the sums of distances from a number, times the scale, and of their squares; scale and unscale as in part_mean(). Rounded
// where product() stands, lest kernels of one row and of two, which share a row's bits, fuse it into other sums.
template <class T, class P>
__device__ inline Moments<float> moments_from(const Forward<T, P>& a, float n, float number, float distances,
                                              float squares) {
  const float each = a.inverse_n * a.unscale, mean = device::product(distances, each);
  const float shift = fma(-mean, n * a.scale, distances) * each, whole = mean + shift;
  const float about_mean = fma(-n * whole, whole, squares);
  if (number == 0) return {mean, shift, about_mean, n};
  return {number, whole, about_mean < 0 ? 0 : about_mean, n};
}

// Of as many rows as `rows` has, the same for all threads of a block. sums_from(numbers, round): of each row both sums, from
// its number. element(r): one of a row, for which see near_mean().
template <int Rows, class T, class P, class SumsFrom, class Element>
__device__ inline void find_moments(const Forward<T, P>& a, float n, Moments<float> (&rows)[Rows], SumsFrom sums_from,
                                    Element element) {
  float numbers[Rows] = {};
#pragma unroll 1
  for (int round = 0;; ++round) {
    const Sums<float, 2 * Rows> sums = sums_from(numbers, round);
    bool near = true;
#pragma unroll
    for (int r = 0; r < Rows; ++r) {
      rows[r] = moments_from(a, n, numbers[r], sums.at[2 * r], sums.at[2 * r + 1]);
      near &= near_zero(rows[r]);
    }
    if (near || round > 0) return;
#pragma unroll
    for (int r = 0; r < Rows; ++r)
      if (!near_zero(rows[r])) numbers[r] = near_mean(rows[r].mean, element(r));
    __syncthreads();  // all have read the sums; and the warps are whole, which ptxas would not know
  }
}

// Output of one vector in place of d.
template <Norm N, class P, int W, class A>
__device__ inline void scale(A (&d)[W], const Scale<A>& row, const Vector<P, W>& weight, const Vector<P, W>& bias,
                             A offset) {
  accumulate_t<P> w[W], b[W];
  device::widen(weight, w);
  if constexpr (N == Norm::layer) device::widen(bias, b);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    if constexpr (N == Norm::layer)
      d[k] = (d[k] * row.rstd + row.shift) * w[k] + b[k];
    else
      d[k] = d[k] * row.rstd * (w[k] + offset);
  }
}

}  // namespace fastops::FASTOPS_ARCH
