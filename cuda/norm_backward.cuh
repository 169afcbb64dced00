#pragma once
// What the kernels of the backward share.
//
// With h = c·rstd, c being the centred input, and g = grad·weight:
//   layer: grad_input = rstd·(g - mean(g) - h·mean(g·h)),   rms: rstd·(g - h·mean(g·h)),
// and for the parameters, summed over rows, grad·h and grad. g is a rounded product in both places: the difference of a
// fused and a rounded one is not 0 where it must be, as in rows of one element.
#include "norm.cuh"

namespace fastops::FASTOPS_ARCH {

template <Norm N>
constexpr int kSums = N == Norm::layer ? 2 : 1;

template <class T, class P>
struct Backward {
  using A = accumulate_t<T>;
  const T *grad, *grad_sum, *input;
  const A *centre, *rstd;
  const P* weight;
  T* grad_input;
  A* partial;
  int64_t rows, n, grad_stride, grad_sum_stride, input_stride;
  A inverse_n, offset;

  explicit Backward(const NormBackward& a)
      : grad(static_cast<const T*>(a.grad)),
        grad_sum(static_cast<const T*>(a.grad_sum)),
        input(static_cast<const T*>(a.input)),
        centre(static_cast<const A*>(a.centre)),
        rstd(static_cast<const A*>(a.rstd)),
        weight(static_cast<const P*>(a.weight)),
        grad_input(static_cast<T*>(a.grad_input)),
        partial(static_cast<A*>(a.partial)),
        rows(a.rows),
        n(a.n),
        grad_stride(a.grad_stride),
        grad_sum_stride(a.grad_sum_stride),
        input_stride(a.input_stride),
        inverse_n(static_cast<A>(1.0 / static_cast<double>(a.n))),
        offset(a.weight ? static_cast<A>(a.weight_offset) : A(0)) {}
};

// A row's numbers as they lie in memory. Those of a later row are asked for early; a conversion would wait for them.
template <class T>
struct RowNumbers {
  T first;
  accumulate_t<T> centre, rstd;
};

// Of the last row, where there is none of this number.
template <Norm N, class T, class P>
__device__ inline RowNumbers<T> row_numbers(const Backward<T, P>& a, int64_t row) {
  row = row < a.rows ? row : a.rows - 1;
  RowNumbers<T> numbers = {};
  if constexpr (N == Norm::layer) {
    numbers.first = a.input[row * a.input_stride];
    numbers.centre = a.centre[row];
  }
  numbers.rstd = a.rstd[row];
  return numbers;
}

// First pass over a vector: x becomes h and grad g; both go into the sums over the row and those over the rows. A vector
// of zeros adds nothing. Each vector has sums of its own at first, so that they do not wait for each other.
template <Norm N, int W, class A, class T, class Weight>
__device__ inline void first_pass(A (&x)[W], A (&grad)[W], const Weight& weight, A offset, const RowNumbers<T>& row,
                                  Sums<A, kSums<N>>& sums, A (&weight_sum)[W], A* bias_sum) {
  const A first = device::widen(row.first);
  A w[W], of_gh = 0, of_g = 0;
  device::widen(weight, w);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    if constexpr (N == Norm::layer)
      x[k] = ((x[k] - first) - row.centre) * row.rstd;
    else
      x[k] *= row.rstd;
    weight_sum[k] += grad[k] * x[k];
    if constexpr (N == Norm::layer) {
      bias_sum[k] += grad[k];
      grad[k] = device::product<A>(grad[k], w[k]);
      of_g += grad[k];
    } else {
      grad[k] = device::product<A>(grad[k], w[k] + offset);
    }
    of_gh += grad[k] * x[k];
  }
  sums.at[0] += of_gh;
  if constexpr (N == Norm::layer) sums.at[1] += of_g;
}

// Second pass: grad_input in place of h, given the means of g·h and g.
template <Norm N, int W, class A>
__device__ inline void second_pass(A (&h)[W], const A (&g)[W], const Sums<A, kSums<N>>& means, A rstd) {
#pragma unroll
  for (int k = 0; k < W; ++k) {
    if constexpr (N == Norm::layer)
      h[k] = ((g[k] - means.at[1]) - h[k] * means.at[0]) * rstd;
    else
      h[k] = (g[k] - h[k] * means.at[0]) * rstd;
  }
}

template <class T, int W, class A>
__device__ inline void add(A (&x)[W], const Vector<T, W>& y) {
  A values[W];
  device::widen(y, values);
#pragma unroll
  for (int k = 0; k < W; ++k) x[k] += values[k];
}

// Adds the column sums of a block's teams, [parts][sums·n], in their order.
template <class A>
__device__ inline void add_parts(const A* parts, int count, int64_t columns, A* result) {
  for (int64_t j = threadIdx.x; j < columns; j += blockDim.x) {
    A total = parts[j];
    for (int part = 1; part < count; ++part) total += parts[part * columns + j];
    result[j] = total;
  }
}

// Blocks that stay: as many as fill the card, no more than there is work for.
inline int64_t resident_blocks(int64_t rows, int64_t rows_a_block, int64_t a_multiprocessor) {
  return std::min(ceil_div(rows, rows_a_block), a_multiprocessor * multiprocessors());
}

}  // namespace fastops::FASTOPS_ARCH
