#pragma once
// What the kernels of the forward share.
#include <cmath>

#include "norm.cuh"
#include "plan/norm_forward.h"

namespace fastops::FASTOPS_ARCH {

using Plan = plan::norm_forward::Plan;

// The launchers of the kernels, each in a file of its own.
int norm_forward_narrow(const NormForward& a, const Plan& plan, cudaStream_t stream);
int norm_forward_pairs(const NormForward& a, const Plan& plan, cudaStream_t stream);
int norm_forward_twice(const NormForward& a, const Plan& plan, cudaStream_t stream);
int norm_forward_held(const NormForward& a, const Plan& plan, cudaStream_t stream);
int norm_forward_cluster(const NormForward& a, const Plan& plan, cudaStream_t stream);
int norm_forward_cluster_pairs(const NormForward& a, const Plan& plan, cudaStream_t stream);
int norm_forward_ring(const NormForward& a, const Plan& plan, cudaStream_t stream);
int norm_forward_ragged(const NormForward& a, const Plan& plan, cudaStream_t stream);

inline plan::Row row_of(const NormForward& a) {
  return {a.norm, a.dtype, a.parameter, a.residual != nullptr, a.n, false};
}

constexpr int kShortThreads = 1280;         // of a multiprocessor, that have short rows
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
  A *mean, *shift, *rstd;  // NormStatistics
  int64_t statistics_step;
  int64_t rows, n, input_stride, residual_stride;
  A inverse_n, scale, unscale, eps, offset;  // scale: a power of two about 1 / n

  explicit Forward(const NormForward& a)
      : input(static_cast<const T*>(a.input)),
        residual(static_cast<const T*>(a.residual)),
        weight(static_cast<const P*>(a.weight)),
        bias(static_cast<const P*>(a.bias)),
        output(static_cast<T*>(a.output)),
        sum(static_cast<T*>(a.sum)),
        mean(static_cast<A*>(a.statistics.mean)),
        shift(static_cast<A*>(a.statistics.shift)),
        rstd(static_cast<A*>(a.statistics.rstd)),
        statistics_step(a.statistics.step),
        rows(a.rows),
        n(a.n),
        input_stride(a.input_stride),
        residual_stride(a.residual_stride),
        inverse_n(static_cast<A>(1.0 / static_cast<double>(a.n))),
        scale(static_cast<A>(std::exp2(-std::ceil(std::log2(static_cast<double>(a.n)))))),
        unscale(1 / scale),
        eps(static_cast<A>(a.eps)),
        offset(a.weight ? static_cast<A>(a.weight_offset) : A(0)) {}

  // From that row on, as a launch has at most kMostBlocks blocks.
  Forward from_row(int64_t row) const {
    Forward a = *this;
    a.input += row * input_stride;
    if (residual) a.residual += row * residual_stride;
    a.output += row * n;
    if (sum) a.sum += row * n;
    for (A** numbers : {&a.mean, &a.shift, &a.rstd})
      if (*numbers) *numbers += row * statistics_step;
    a.rows -= row;
    return a;
  }
};

// f(problem, blocks) for as many rows at a time as a launch has blocks for, `each` a block; the first error.
template <Norm N, class T, class P, class F>
int in_launches(const Forward<T, P>& all, int64_t each, F f) {
  for (int64_t row = 0; row < all.rows; row += kMostBlocks * each) {
    const Forward<T, P> a = all.from_row(row);
    const int error = f(a, static_cast<unsigned>(std::min(ceil_div(a.rows, each), kMostBlocks)));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
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
  if (keep && a.rstd) {
    const int64_t at = number * (N == Norm::layer ? a.statistics_step : 1);
    if constexpr (N == Norm::layer) {
      a.mean[at] = a.shift ? row.mean : row.mean + row.shift;
      if (a.shift) a.shift[at] = row.shift;
    }
    a.rstd[at] = rstd;
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
