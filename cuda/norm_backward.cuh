#pragma once
// What the kernels of the backward share.
//
// With h = c·rstd, c being the centred input, and g = grad·weight:
//   layer: grad_input = rstd·(g - mean(g) - h·mean(g·h)),   rms: rstd·(g - h·mean(g·h)),
// and for the parameters, summed over rows, grad·h and grad. g is a rounded product in both places: the difference of a
// fused and a rounded one is not 0 where it must be, as in rows of one element. What is fused in a row's own numbers says so:
// every kernel gives it the same bits.
#include "norm.cuh"
#include "plan/norm_backward.h"

namespace fastops::FASTOPS_ARCH {

using Plan = plan::norm_backward::Plan;

// The launchers of the kernels, each in a file of its own. clusters: how many of the plan's a card has at once.
int norm_backward_registers(const NormBackward& a, const Plan& plan, cudaStream_t stream);
int norm_backward_single_wave(const NormBackward& a, const Plan& plan, cudaStream_t stream);
int norm_backward_words(const NormBackward& a, const Plan& plan, cudaStream_t stream);
int norm_backward_ring(const NormBackward& a, const Plan& plan, cudaStream_t stream);
int64_t norm_backward_ring_clusters(const NormBackward& a, const Plan& plan);
int norm_backward_wide(const NormBackward& a, const Plan& plan, cudaStream_t stream);
int64_t norm_backward_wide_clusters(const NormBackward& a, const Plan& plan);

inline plan::Row row_of(const NormBackward& a) {
  return {a.norm, a.dtype, a.parameter, a.grad_sum != nullptr, a.n, a.rows > plan::kMostRows};
}

template <Norm N>
constexpr int kSums = N == Norm::layer ? 2 : 1;

template <class T, class P>
struct Backward {
  using A = accumulate_t<T>;
  const T *grad, *grad_sum, *input;
  const A *mean, *shift, *rstd;  // NormStatistics
  int64_t statistics_step;
  const P* weight;
  T* grad_input;
  A* partial;
  void* parameter_grads[2];
  bool wide[2];  // those in A, not in T
  bool whole;    // the kernel writes them itself
  int64_t rows, n, grad_stride, grad_sum_stride, input_stride;
  A inverse_n, offset;

  explicit Backward(const NormBackward& a)
      : grad(static_cast<const T*>(a.grad)),
        grad_sum(static_cast<const T*>(a.grad_sum)),
        input(static_cast<const T*>(a.input)),
        mean(static_cast<const A*>(a.statistics.mean)),
        shift(static_cast<const A*>(a.statistics.shift)),
        rstd(static_cast<const A*>(a.statistics.rstd)),
        statistics_step(a.statistics.step),
        weight(static_cast<const P*>(a.weight)),
        grad_input(static_cast<T*>(a.grad_input)),
        partial(static_cast<A*>(a.partial)),
        parameter_grads{a.parameter_grads[0], a.parameter_grads[1]},
        wide{a.parameter_grad_dtypes[0] != a.dtype, a.parameter_grad_dtypes[1] != a.dtype},
        whole(a.gather == Gather::whole && a.wants_parameters()),
        rows(a.rows),
        n(a.n),
        grad_stride(a.grad_stride),
        grad_sum_stride(a.grad_sum_stride),
        input_stride(a.input_stride),
        inverse_n(static_cast<A>(1.0 / static_cast<double>(a.n))),
        offset(a.weight ? static_cast<A>(a.weight_offset) : A(0)) {}
};

// A row's statistics. Those of a later row are asked for early; to compute with them there would wait for them.
template <class A>
struct RowNumbers {
  A mean, shift, rstd;
};

// Zeros where there is no row of this number: what is 0 of it stays 0.
template <Norm N, class T, class P>
__device__ inline RowNumbers<accumulate_t<T>> row_numbers(const Backward<T, P>& a, int64_t row) {
  RowNumbers<accumulate_t<T>> numbers = {};
  if (row < a.rows) {
    const int64_t at = row * (N == Norm::layer ? a.statistics_step : 1);
    if constexpr (N == Norm::layer) {
      numbers.mean = a.mean[at];
      if (a.shift) numbers.shift = a.shift[at];
    }
    numbers.rstd = a.rstd[at];
  }
  return numbers;
}

// First pass over a vector: x becomes h and grad g; both go into the sums over the row and those over the rows. A vector
// of zeros that is not `own` adds nothing, however large the row's mean. Each vector has sums of its own at first, so that
// they do not wait for each other.
template <Norm N, int W, class A>
__device__ inline void first_pass(A (&x)[W], A (&grad)[W], bool own, const A (&w)[W], A offset,
                                  const RowNumbers<A>& row, Sums<A, kSums<N>>& sums, A* weight_sum, A* bias_sum) {
  const A rstd = N == Norm::rms || own ? row.rstd : A(0), shift = -row.shift * rstd;
  A of_gh = 0, of_g = 0;
#pragma unroll
  for (int k = 0; k < W; ++k) {
    if constexpr (N == Norm::layer)
      x[k] = fma(x[k] - row.mean, rstd, shift);
    else
      x[k] *= rstd;
    weight_sum[k] += grad[k] * x[k];
    if constexpr (N == Norm::layer) {
      bias_sum[k] += grad[k];
      grad[k] = device::product<A>(grad[k], w[k]);
      of_g += grad[k];
    } else {
      grad[k] = device::product<A>(grad[k], w[k] + offset);
    }
    of_gh = fma(grad[k], x[k], of_gh);
  }
  sums.at[0] += of_gh;
  if constexpr (N == Norm::layer) sums.at[1] += of_g;
}

template <Norm N, int W, class A, class P>
__device__ inline void first_pass(A (&x)[W], A (&grad)[W], bool own, const Vector<P, W>& weight, A offset,
                                  const RowNumbers<A>& row, Sums<A, kSums<N>>& sums, A (&weight_sum)[W], A* bias_sum) {
  A w[W];
  device::widen(weight, w);
  first_pass<N, W, A>(x, grad, own, w, offset, row, sums, weight_sum, bias_sum);
}

template <class A, int N>
__device__ inline void divide(Sums<A, N>& sums, A inverse_n) {
#pragma unroll
  for (int k = 0; k < N; ++k) sums.at[k] = device::product<A>(sums.at[k], inverse_n);
}

// Second pass: writes grad_input, with grad_sum added, to y, which may be h. means: of g·h and of g.
template <Norm N, class A>
__device__ inline A before_rstd(A h, A g, const Sums<A, kSums<N>>& means) {
  return fma(-h, means.at[0], N == Norm::layer ? g - means.at[kSums<N> - 1] : g);
}
template <Norm N, int W, class A>
__device__ inline void second_pass(const A (&h)[W], const A (&g)[W], const Sums<A, kSums<N>>& means, A rstd,
                                   A (&y)[W]) {
#pragma unroll
  for (int k = 0; k < W; ++k) y[k] = before_rstd<N>(h[k], g[k], means) * rstd;
}
template <Norm N, int W, class A>
__device__ inline void second_pass(const A (&h)[W], const A (&g)[W], const Sums<A, kSums<N>>& means, A rstd,
                                   const A (&grad_sum)[W], A (&y)[W]) {
#pragma unroll
  for (int k = 0; k < W; ++k) y[k] = fma(before_rstd<N>(h[k], g[k], means), rstd, grad_sum[k]);
}
template <Norm N, int W, class A, class T>
__device__ inline void second_pass(const A (&h)[W], const A (&g)[W], const Sums<A, kSums<N>>& means, A rstd,
                                   const Vector<T, W>& grad_sum, A (&y)[W]) {
  A more[W];
  device::widen(grad_sum, more);
  second_pass<N, W, A>(h, g, means, rstd, more, y);
}

// W elements of a parameter's gradient, 0: weight, 1: bias.
template <int W, class T, class P, class A>
__device__ inline void store_parameter_grad(const Backward<T, P>& a, int which, int64_t at, const A (&values)[W]) {
  if (!a.parameter_grads[which]) return;
  if (a.wide[which])
    device::store<true, W>(static_cast<A*>(a.parameter_grads[which]) + at, W, values);
  else
    device::store<true, W>(static_cast<T*>(a.parameter_grads[which]) + at, W, values);
}

using plan::norm_backward::kLaneThreads;

// Of one team's column sums, [sums·n], and of all that a block adds up in shared memory.
inline int64_t part_bytes(const NormBackward& a) { return a.sums() * a.n * size_of(accumulate_type(a.dtype)); }
inline size_t parts_bytes(const NormBackward& a, int teams) {
  const bool asked_for = a.partial || a.gather == Gather::whole;
  return asked_for && teams > 1 ? teams * part_bytes(a) : 0;
}

// Adds the column sums of a block's teams, [count][columns], in the order of the teams, W columns at a time.
template <int W, class T, class P, class A>
__device__ inline void add_parts(const Backward<T, P>& a, const A* parts, int count, int64_t columns, A* result) {
  using Columns = Vector<A, W>;
  for (int64_t j = threadIdx.x * W; j < columns; j += blockDim.x * W) {
    Columns total = *reinterpret_cast<const Columns*>(parts + j);
    for (int part = 1; part < count; ++part) {
      const Columns more = *reinterpret_cast<const Columns*>(parts + part * columns + j);
#pragma unroll
      for (int k = 0; k < W; ++k) total.at[k] += more.at[k];
    }
    if (!a.whole)
      *reinterpret_cast<Columns*>(result + j) = total;
    else
      store_parameter_grad<W>(a, j >= a.n, j >= a.n ? j - a.n : j, total.at);
  }
}
}  // namespace fastops::FASTOPS_ARCH
