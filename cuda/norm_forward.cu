// y = h·(weight + weight_offset) + bias over rows of n, with
//
//   layer: h = (x - mean)·rstd,   rstd = 1 / sqrt(mean of (x - mean)² + eps)
//   rms:   h = x·rstd,            rstd = 1 / sqrt(mean of x² + eps)
//
// x - mean is computed as (x - x0) - centre, x0 being the row's first element and centre = mean(x - x0): where |mean| is
// far above the spread, f32 holds the mean itself with too few digits, but neighbours subtract exactly.
// A row that fits the registers of a block stays there between the passes over it; a longer one is read again.
#include "norm.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

template <class A>
__device__ inline A inverse_sqrt(A variance, double eps) {
  return A(1) / sqrt(variance + A(eps));
}

// x of a vector of columns: the input, or input + residual rounded to the dtype, as it is stored in `sum`.
template <class T, class Index, bool Aligned>
__device__ inline void load_rows(const NormForward& a, const Row<T, Index, Aligned>& own, int64_t row, int g,
                                 accumulate_t<T> (&x)[kVector<T>]) {
  own.load(static_cast<const T*>(a.input) + row * a.input_stride, g, x);
  if (!a.residual) return;
  accumulate_t<T> r[kVector<T>];
  own.load(static_cast<const T*>(a.residual) + row * a.residual_stride, g, r);
#pragma unroll
  for (int k = 0; k < kVector<T>; ++k) x[k] = device::widen(device::narrow<T>(x[k] + r[k]));
}

// x0: every thread of the row's team reads the same address.
template <class T>
__device__ inline accumulate_t<T> first_of(const NormForward& a, int64_t row) {
  using A = accumulate_t<T>;
  const A x = device::widen(static_cast<const T*>(a.input)[row * a.input_stride]);
  if (!a.residual) return x;
  const A r = device::widen(static_cast<const T*>(a.residual)[row * a.residual_stride]);
  return device::widen(device::narrow<T>(x + r));
}

template <class T, class P, int Groups, bool Warp, bool Aligned>
__global__ void __launch_bounds__(Warp ? 32 * kWarpRows : 1024) forward_kernel(NormForward a) {
  using A = accumulate_t<T>;
  constexpr int V = kVector<T>;
  __shared__ A scratch[2][Warp ? 1 : 32];
  const Row<T, int, Aligned> own{static_cast<int>(a.n), Warp ? 32 : static_cast<int>(blockDim.x),
                                 static_cast<int>(Warp ? threadIdx.x % 32 : threadIdx.x)};
  const int rows_a_block = Warp ? kWarpRows : 1;
  const bool layer = a.norm == Norm::layer;
  const P *weight = static_cast<const P*>(a.weight), *bias = static_cast<const P*>(a.bias);
  const accumulate_t<P> offset = static_cast<accumulate_t<P>>(a.weight_offset);

  for (int64_t row = static_cast<int64_t>(blockIdx.x) * rows_a_block + (Warp ? threadIdx.x / 32 : 0); row < a.rows;
       row += static_cast<int64_t>(gridDim.x) * rows_a_block) {
    A x[Groups][V], centre = 0;
#pragma unroll
    for (int g = 0; g < Groups; ++g) load_rows(a, own, row, g, x[g]);
    if (a.residual) {
      T* sum = static_cast<T*>(a.sum) + row * a.n;
#pragma unroll
      for (int g = 0; g < Groups; ++g) own.store(sum, g, x[g]);
    }

    if (layer) {
      const A first = first_of<T>(a, row);
      A total[1] = {0};
#pragma unroll
      for (int g = 0; g < Groups; ++g)
#pragma unroll
        for (int k = 0; k < V; ++k) {
          x[g][k] = own.holds(g, k) ? x[g][k] - first : A(0);
          total[0] += x[g][k];
        }
      team_sum<Warp>(total, scratch[0]);
      centre = total[0] / A(a.n);
    }

    A squares[1] = {0};
#pragma unroll
    for (int g = 0; g < Groups; ++g)
#pragma unroll
      for (int k = 0; k < V; ++k) {
        x[g][k] = own.holds(g, k) ? x[g][k] - centre : A(0);
        squares[0] += x[g][k] * x[g][k];
      }
    team_sum<Warp>(squares, scratch[1]);
    // For rms the next row would come to the second scratch while a slow warp still reads it.
    if (!Warp && !layer) __syncthreads();
    const A rstd = inverse_sqrt(squares[0] / A(a.n), a.eps);
    if (own.thread == 0) {
      if (a.centre) static_cast<A*>(a.centre)[row] = centre;
      if (a.rstd) static_cast<A*>(a.rstd)[row] = rstd;
    }

    T* output = static_cast<T*>(a.output) + row * a.n;
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      accumulate_t<P> w[V], b[V];
      if (weight) load_weight<T>(own, weight, offset, g, w);
      if (bias) own.load(bias, g, b);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        x[g][k] *= rstd;
        if (weight) x[g][k] *= w[k];
        if (bias) x[g][k] += b[k];
      }
      own.store(output, g, x[g]);
    }
  }
}

// Rows too long for registers: a block a row, a pass over it for each sum and one for the output.
template <class T, class P, bool Aligned>
__global__ void __launch_bounds__(1024) forward_long_kernel(NormForward a) {
  using A = accumulate_t<T>;
  constexpr int V = kVector<T>;
  __shared__ A scratch[2][32];
  const Row<T, int64_t, Aligned> own{a.n, static_cast<int>(blockDim.x), static_cast<int>(threadIdx.x)};
  const int groups = groups_of<T>(a.n);
  const bool layer = a.norm == Norm::layer;
  const P *weight = static_cast<const P*>(a.weight), *bias = static_cast<const P*>(a.bias);
  const accumulate_t<P> offset = static_cast<accumulate_t<P>>(a.weight_offset);

  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    T* sum = static_cast<T*>(a.sum) + row * a.n;
    A x[V], centre = 0, first = 0;
    if (layer) {
      first = first_of<T>(a, row);
      A total[1] = {0};
      for (int g = 0; g < groups; ++g) {
        load_rows(a, own, row, g, x);
#pragma unroll
        for (int k = 0; k < V; ++k) total[0] += own.holds(g, k) ? x[k] - first : A(0);
      }
      device::block_sum(total, scratch[0]);
      centre = total[0] / A(a.n);
    }

    A squares[1] = {0};
    for (int g = 0; g < groups; ++g) {
      load_rows(a, own, row, g, x);
      if (a.residual) own.store(sum, g, x);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const A h = own.holds(g, k) ? x[k] - first - centre : A(0);
        squares[0] += h * h;
      }
    }
    device::block_sum(squares, scratch[1]);
    if (!layer) __syncthreads();
    const A rstd = inverse_sqrt(squares[0] / A(a.n), a.eps);
    if (own.thread == 0) {
      if (a.centre) static_cast<A*>(a.centre)[row] = centre;
      if (a.rstd) static_cast<A*>(a.rstd)[row] = rstd;
    }

    T* output = static_cast<T*>(a.output) + row * a.n;
    for (int g = 0; g < groups; ++g) {
      accumulate_t<P> w[V], b[V];
      load_rows(a, own, row, g, x);
      if (weight) load_weight<T>(own, weight, offset, g, w);
      if (bias) own.load(bias, g, b);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        x[k] = (x[k] - first - centre) * rstd;
        if (weight) x[k] *= w[k];
        if (bias) x[k] += b[k];
      }
      own.store(output, g, x);
    }
  }
}

// By the number of vectors in a row, nothing else.
Plan forward_plan(int64_t vectors) {
  for (int groups : {1, 2, 4})
    if (vectors <= 32 * groups) return {groups, true, 32 * kWarpRows};
  if (vectors <= 2 * 1024) return {2, false, static_cast<int>(ceil_div(vectors, 2 * 32) * 32)};
  return {0, false, 1024};
}

}  // namespace

int norm_forward(const NormForward& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_parameter<T>(a.parameter, [&](auto p) -> int {
      using P = typename decltype(p)::type;
      const Plan plan = forward_plan(vectors_of<T>(a.n));
      const bool aligned = a.n % kVector<T> == 0 && rows_aligned<T>(a.input, a.input_stride) &&
                           rows_aligned<T>(a.residual, a.residual_stride) && aligned16(a.sum) && aligned16(a.output) &&
                           aligned16(a.weight) && aligned16(a.bias);
      const int64_t wanted = ceil_div(a.rows, plan.warp ? kWarpRows : 1);
      const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(wanted, INT32_MAX));
      return dispatch_bool(aligned, [&](auto al) -> int {
        constexpr bool Aligned = decltype(al)::value;
        if (plan.groups == 0) {
          forward_long_kernel<T, P, Aligned><<<blocks, plan.threads, 0, stream>>>(a);
        } else if (plan.warp) {
          dispatch_groups<1, 2, 4>(plan.groups, [&](auto groups) {
            forward_kernel<T, P, decltype(groups)::value, true, Aligned><<<blocks, plan.threads, 0, stream>>>(a);
            return 0;
          });
        } else {
          forward_kernel<T, P, 2, false, Aligned><<<blocks, plan.threads, 0, stream>>>(a);
        }
        return cudaGetLastError();
      });
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
