// With w = weight + weight_offset, g = grad·w and h as in norm_forward.cu:
//
//   layer: grad_input = rstd·(g - mean(g) - h·mean(g·h)) + grad_sum
//   rms:   grad_input = rstd·(g - h·mean(g·h)) + grad_sum
//   grad_weight = sum over rows of grad·h,   grad_bias = of grad
//
// g is a rounded product in both places: a difference of a fused and a rounded one is not 0 where it must be, as in rows
// of one.
#include "norm.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

// NormBackward::sums() is the host's.
__host__ __device__ inline int sums_of(const NormBackward& a) { return a.norm == Norm::layer ? 2 : 1; }

// What a row is normalised with.
template <class T>
struct Statistics {
  using A = accumulate_t<T>;
  A first, centre, rstd;
  __device__ Statistics(const NormBackward& a, int64_t row)
      : first(0), centre(0), rstd(static_cast<const A*>(a.rstd)[row]) {
    if (a.norm == Norm::layer) {
      first = device::widen(static_cast<const T*>(a.input)[row * a.input_stride]);
      centre = static_cast<const A*>(a.centre)[row];
    }
  }
  __device__ A centred(A x) const { return x - first - centre; }
};

// The row's sums of g and g·(x - mean) turned into what grad_input needs.
template <class A>
struct RowMeans {
  A g, gh;
  __device__ RowMeans(const NormBackward& a, const A (&sums)[2], A rstd)
      : g(a.norm == Norm::layer ? sums[0] / A(a.n) : A(0)), gh(sums[1] / A(a.n) * rstd) {}
};

// Each block walks over its rows and keeps the sums of grad·h and grad for its columns in registers; they end as one row
// of `partial`.
template <class T, class P, int Groups, bool Warp, bool Aligned, bool Sums>
__global__ void __launch_bounds__(Warp ? 32 * kWarpRows : 512) backward_kernel(NormBackward a) {
  using A = accumulate_t<T>;
  constexpr int V = kVector<T>;
  __shared__ A scratch[2][Warp ? 1 : 64];
  const Row<T, int, Aligned> own{static_cast<int>(a.n), Warp ? 32 : static_cast<int>(blockDim.x),
                                 static_cast<int>(Warp ? threadIdx.x % 32 : threadIdx.x)};
  const int rows_a_block = Warp ? kWarpRows : 1, own_row = Warp ? threadIdx.x / 32 : 0;
  const bool layer = a.norm == Norm::layer;
  const P* weight = static_cast<const P*>(a.weight);
  const accumulate_t<P> offset = static_cast<accumulate_t<P>>(a.weight_offset);
  A weight_sum[Sums ? Groups : 1][V] = {}, bias_sum[Sums ? Groups : 1][V] = {};

  int turn = 0;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * rows_a_block + own_row; row < a.rows;
       row += static_cast<int64_t>(gridDim.x) * rows_a_block) {
    const T* input = static_cast<const T*>(a.input) + row * a.input_stride;
    const T* grad = static_cast<const T*>(a.grad) + row * a.grad_stride;
    const Statistics<T> row_has(a, row);
    A h[Groups][V], g[Groups][V], sums[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < Groups; ++i) {
      own.load(input, i, h[i]);
      own.load(grad, i, g[i]);
    }
#pragma unroll
    for (int i = 0; i < Groups; ++i) {
      accumulate_t<P> w[V];
      if (weight) load_weight<T>(own, weight, offset, i, w);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        h[i][k] = own.holds(i, k) ? row_has.centred(h[i][k]) : A(0);
        const A gw = weight ? device::product<A>(g[i][k], w[k]) : g[i][k];
        sums[0] += gw;
        sums[1] += gw * h[i][k];
      }
    }
    team_sum<Warp>(sums, scratch[turn]);
    turn ^= 1;
    const RowMeans<A> mean(a, sums, row_has.rstd);

    T* grad_input = a.grad_input ? static_cast<T*>(a.grad_input) + row * a.n : nullptr;
    const T* grad_sum = a.grad_sum ? static_cast<const T*>(a.grad_sum) + row * a.grad_sum_stride : nullptr;
#pragma unroll
    for (int i = 0; i < Groups; ++i) {
      accumulate_t<P> w[V];
      A added[V];
      if (weight) load_weight<T>(own, weight, offset, i, w);
      if (grad_sum) own.load(grad_sum, i, added);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        h[i][k] *= row_has.rstd;
        if constexpr (Sums) {
          weight_sum[i][k] += g[i][k] * h[i][k];
          bias_sum[i][k] += g[i][k];
        }
        const A gw = weight ? device::product<A>(g[i][k], w[k]) : g[i][k];
        h[i][k] = (gw - mean.g - h[i][k] * mean.gh) * row_has.rstd;
        if (grad_sum) h[i][k] += added[k];
      }
      if (grad_input) own.store(grad_input, i, h[i]);
    }
  }

  if constexpr (Sums) {
    A* partial = static_cast<A*>(a.partial) + blockIdx.x * sums_of(a) * a.n;
    if constexpr (Warp) {
      // The warps add in turn, in the block's shared row: a fixed order.
      extern __shared__ __align__(16) unsigned char shared[];
      A* total = reinterpret_cast<A*>(shared);
      for (int warp = 0; warp < kWarpRows; ++warp) {
        if (own_row == warp) {
#pragma unroll
          for (int i = 0; i < Groups; ++i)
#pragma unroll
            for (int k = 0; k < V; ++k) {
              if (!own.holds(i, k)) continue;
              const int j = own.start(i) + k;
              total[j] = (warp ? total[j] : A(0)) + weight_sum[i][k];
              if (layer) total[a.n + j] = (warp ? total[a.n + j] : A(0)) + bias_sum[i][k];
            }
        }
        __syncthreads();
      }
      for (int64_t j = threadIdx.x; j < sums_of(a) * a.n; j += blockDim.x) partial[j] = total[j];
    } else {
#pragma unroll
      for (int i = 0; i < Groups; ++i)
#pragma unroll
        for (int k = 0; k < V; ++k) {
          if (!own.holds(i, k)) continue;
          partial[own.start(i) + k] = weight_sum[i][k];
          if (layer) partial[a.n + own.start(i) + k] = bias_sum[i][k];
        }
    }
  }
}

// Rows too long for registers: two passes over a row for grad_input.
template <class T, class P, bool Aligned>
__global__ void __launch_bounds__(512) backward_long_kernel(NormBackward a) {
  using A = accumulate_t<T>;
  constexpr int V = kVector<T>;
  __shared__ A scratch[2][64];
  const Row<T, int64_t, Aligned> own{a.n, static_cast<int>(blockDim.x), static_cast<int>(threadIdx.x)};
  const int groups = groups_of<T>(a.n);
  const P* weight = static_cast<const P*>(a.weight);
  const accumulate_t<P> offset = static_cast<accumulate_t<P>>(a.weight_offset);

  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* input = static_cast<const T*>(a.input) + row * a.input_stride;
    const T* grad = static_cast<const T*>(a.grad) + row * a.grad_stride;
    const T* grad_sum = a.grad_sum ? static_cast<const T*>(a.grad_sum) + row * a.grad_sum_stride : nullptr;
    const Statistics<T> row_has(a, row);
    A h[V], g[V], added[V], sums[2] = {0, 0};
    accumulate_t<P> w[V];
    for (int i = 0; i < groups; ++i) {
      own.load(input, i, h);
      own.load(grad, i, g);
      if (weight) load_weight<T>(own, weight, offset, i, w);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const A centred = own.holds(i, k) ? row_has.centred(h[k]) : A(0);
        const A gw = weight ? device::product<A>(g[k], w[k]) : g[k];
        sums[0] += gw;
        sums[1] += gw * centred;
      }
    }
    device::block_sum(sums, scratch[turn]);
    turn ^= 1;
    const RowMeans<A> mean(a, sums, row_has.rstd);

    T* grad_input = static_cast<T*>(a.grad_input) + row * a.n;
    for (int i = 0; i < groups; ++i) {
      own.load(input, i, h);
      own.load(grad, i, g);
      if (weight) load_weight<T>(own, weight, offset, i, w);
      if (grad_sum) own.load(grad_sum, i, added);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const A gw = weight ? device::product<A>(g[k], w[k]) : g[k];
        h[k] = (gw - mean.g - row_has.centred(h[k]) * row_has.rstd * mean.gh) * row_has.rstd;
        if (grad_sum) h[k] += added[k];
      }
      own.store(grad_input, i, h);
    }
  }
}

constexpr int kColumnWarps = 8;

// The sums over rows where no block holds a whole row: a warp takes 32 vectors of columns, the block's warps different
// rows of its chunk (blockIdx.x), added at the end in the order of the warps.
template <class T, bool Aligned>
__global__ void __launch_bounds__(32 * kColumnWarps) backward_columns_kernel(NormBackward a) {
  using A = accumulate_t<T>;
  constexpr int V = kVector<T>;
  __shared__ A parts[kColumnWarps][2][32 * V];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, sums = sums_of(a);
  const int64_t begin = blockIdx.x * a.rows / a.chunks + warp, end = (blockIdx.x + 1) * a.rows / a.chunks;
  A* partial = static_cast<A*>(a.partial) + blockIdx.x * sums * a.n;
  const int64_t tiles = (a.n + 32 * V - 1) / (32 * V);
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t column = (tile * 32 + lane) * V;
    A weight_sum[V] = {}, bias_sum[V] = {};
    for (int64_t row = begin; column < a.n && row < end; row += kColumnWarps) {
      const Statistics<T> row_has(a, row);
      A x[V], g[V];
      device::load<Aligned, V>(static_cast<const T*>(a.input) + row * a.input_stride + column, a.n - column, x);
      device::load<Aligned, V>(static_cast<const T*>(a.grad) + row * a.grad_stride + column, a.n - column, g);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        weight_sum[k] += g[k] * (row_has.centred(x[k]) * row_has.rstd);
        bias_sum[k] += g[k];
      }
    }
    __syncthreads();  // the tile before this one has been written out
#pragma unroll
    for (int k = 0; k < V; ++k) {
      parts[warp][0][k * 32 + lane] = weight_sum[k];
      parts[warp][1][k * 32 + lane] = bias_sum[k];
    }
    __syncthreads();
    for (int j = threadIdx.x; j < sums * 32 * V; j += blockDim.x) {
      const int which = j / (32 * V), at = j % (32 * V);
      const int64_t to = (tile * 32 + at % 32) * V + at / 32;
      if (to >= a.n) continue;
      A total = 0;
      for (int k = 0; k < kColumnWarps; ++k) total += parts[k][which][at];
      partial[which * a.n + to] = total;
    }
  }
}

// By the number of vectors in a row, nothing else.
Plan backward_plan(int64_t vectors) {
  for (int groups : {1, 2, 4})
    if (vectors <= 32 * groups) return {groups, true, 32 * kWarpRows};
  for (int groups : {2, 4})
    if (vectors <= 512 * groups) return {groups, false, static_cast<int>(ceil_div(vectors, groups * 32) * 32)};
  return {0, false, 512};
}

// A persistent grid: enough blocks to fill the card, each with as many rows as the others.
int64_t backward_blocks(const NormBackward& a, const Plan& plan) {
  const int64_t rows = ceil_div(a.rows, plan.warp ? kWarpRows : 1);
  const int64_t a_multiprocessor = plan.warp ? 8 : std::max(1, 1024 / plan.threads);
  return std::min(rows, a_multiprocessor * multiprocessors());
}

int64_t column_tiles(const NormBackward& a) { return ceil_div(a.n * size_of(a.dtype), 16 * 32); }

}  // namespace

void norm_backward_plan(NormBackward& a) {
  const Plan plan = backward_plan(ceil_div(a.n * size_of(a.dtype), 16));
  a.chunks = plan.groups != 0
                 ? backward_blocks(a, plan)
                 : std::clamp<int64_t>(8 * multiprocessors() / column_tiles(a), 1, ceil_div(a.rows, kColumnWarps));
}

int norm_backward(const NormBackward& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_parameter<T>(a.parameter, [&](auto p) -> int {
      using P = typename decltype(p)::type;
      using A = accumulate_t<T>;
      const Plan plan = backward_plan(vectors_of<T>(a.n));
      const bool aligned = a.n % kVector<T> == 0 && rows_aligned<T>(a.input, a.input_stride) &&
                           rows_aligned<T>(a.grad, a.grad_stride) && rows_aligned<T>(a.grad_sum, a.grad_sum_stride) &&
                           aligned16(a.weight) && aligned16(a.grad_input);
      const unsigned blocks = static_cast<unsigned>(backward_blocks(a, plan));
      return dispatch_bool(aligned, [&](auto al) -> int {
        return dispatch_bool(a.partial != nullptr, [&](auto su) -> int {
          constexpr bool Aligned = decltype(al)::value, Sums = decltype(su)::value;
          const size_t shared = Sums && plan.warp ? sums_of(a) * a.n * sizeof(A) : 0;
          if (plan.groups == 0) {
            if (a.grad_input) backward_long_kernel<T, P, Aligned><<<blocks, plan.threads, 0, stream>>>(a);
            if (Sums && cudaPeekAtLastError() == cudaSuccess) {
              const dim3 grid(static_cast<unsigned>(a.chunks),
                              static_cast<unsigned>(std::min<int64_t>(column_tiles(a), 65535)));
              backward_columns_kernel<T, Aligned><<<grid, 32 * kColumnWarps, 0, stream>>>(a);
            }
          } else if (plan.warp) {
            dispatch_groups<1, 2, 4>(plan.groups, [&](auto groups) {
              backward_kernel<T, P, decltype(groups)::value, true, Aligned, Sums>
                  <<<blocks, plan.threads, shared, stream>>>(a);
              return 0;
            });
          } else {
            dispatch_groups<2, 4>(plan.groups, [&](auto groups) {
              backward_kernel<T, P, decltype(groups)::value, false, Aligned, Sums>
                  <<<blocks, plan.threads, shared, stream>>>(a);
              return 0;
            });
          }
          return cudaGetLastError();
        });
      });
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
