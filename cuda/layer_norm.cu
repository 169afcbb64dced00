// y = (x - mean)·rstd·weight + bias over rows of n,   rstd = 1 / sqrt(var + eps)
//
// Which thread holds which element depends on n and the dtype alone, so a row's bits depend neither on its neighbours nor
// on alignment. A row that fits the registers of a block stays there between the passes over it; a longer one is read again.
// The second pass also sums x - mean, which corrects the rounding of the f32 mean: mean_true = mean + shift.
#include "kernels/layer_norm.h"

#include "device/math.cuh"
#include "device/reduce.cuh"
#include "device/vector.cuh"
#include "dispatch.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

using device::accumulate_t;
using device::kVector;

constexpr int kWarpRows = 4;  // rows, each a warp's, in a block of the short-row kernels

// How the threads of a row divide it: `team` threads hold Groups vectors each, vector g of thread t at g·team + t.
// Index is int where a row fits registers, which keeps the arithmetic on indices short.
template <class T, class Index, bool Aligned>
struct Row {
  static constexpr int V = kVector<T>;
  Index n;
  int team, thread;

  __device__ Index start(int g) const { return (static_cast<Index>(g) * team + thread) * V; }

  template <class S>
  __device__ void load(const S* p, int g, accumulate_t<S> (&x)[V]) const {
    const Index i = start(g);
    if (Aligned && i >= n) {
#pragma unroll
      for (int k = 0; k < V; ++k) x[k] = 0;
    } else {
      device::load<Aligned, V>(p + i, n - i, x);
    }
  }
  template <class S>
  __device__ void store(S* p, int g, const accumulate_t<S> (&x)[V]) const {
    const Index i = start(g);
    if (!Aligned || i < n) device::store<Aligned, V>(p + i, n - i, x);
  }
  __device__ bool holds(int g, int k) const { return start(g) + k < n; }
};

// Sum over the team of a row: a warp, or the block.
template <bool Warp, class A, int N>
__device__ inline void team_sum(A (&x)[N], A* scratch) {
  if constexpr (Warp)
    device::warp_sum(x);
  else
    device::block_sum(x, scratch);
}

template <class A>
__device__ inline A inverse_sqrt(A variance, double eps) {
  // max() would turn a NaN variance into 0.
  return A(1) / sqrt((variance < 0 ? A(0) : variance) + A(eps));
}

template <class T, class P, int Groups, bool Warp, bool Aligned>
__global__ void __launch_bounds__(Warp ? 32 * kWarpRows : 1024) forward_kernel(LayerNormForward a) {
  using A = accumulate_t<T>;
  constexpr int V = kVector<T>;
  __shared__ A scratch[2][Warp ? 1 : 64];
  const Row<T, int, Aligned> own{static_cast<int>(a.n), Warp ? 32 : static_cast<int>(blockDim.x),
                                 static_cast<int>(Warp ? threadIdx.x % 32 : threadIdx.x)};
  const int rows_a_block = Warp ? kWarpRows : 1;
  const P *weight = static_cast<const P*>(a.weight), *bias = static_cast<const P*>(a.bias);

  for (int64_t row = static_cast<int64_t>(blockIdx.x) * rows_a_block + (Warp ? threadIdx.x / 32 : 0); row < a.rows;
       row += static_cast<int64_t>(gridDim.x) * rows_a_block) {
    const T* input = static_cast<const T*>(a.input) + row * a.input_stride;
    A x[Groups][V], total[1] = {0};
#pragma unroll
    for (int g = 0; g < Groups; ++g) own.load(input, g, x[g]);
#pragma unroll
    for (int g = 0; g < Groups; ++g)
#pragma unroll
      for (int k = 0; k < V; ++k) total[0] += x[g][k];
    team_sum<Warp>(total, scratch[0]);
    const A mean = total[0] / A(a.n);

    A centred[2] = {0, 0};
#pragma unroll
    for (int g = 0; g < Groups; ++g)
#pragma unroll
      for (int k = 0; k < V; ++k) {
        x[g][k] = own.holds(g, k) ? x[g][k] - mean : A(0);
        centred[0] += x[g][k];
        centred[1] += x[g][k] * x[g][k];
      }
    team_sum<Warp>(centred, scratch[1]);
    const A shift = centred[0] / A(a.n);
    const A rstd = inverse_sqrt(centred[1] / A(a.n) - shift * shift, a.eps);
    if (own.thread == 0) {
      static_cast<A*>(a.mean)[row] = mean + shift;
      static_cast<A*>(a.rstd)[row] = rstd;
    }

    T* output = static_cast<T*>(a.output) + row * a.n;
#pragma unroll
    for (int g = 0; g < Groups; ++g) {
      accumulate_t<P> w[V], b[V];
      if (weight) own.load(weight, g, w);
      if (bias) own.load(bias, g, b);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        x[g][k] = (x[g][k] - shift) * rstd;
        if (weight) x[g][k] *= w[k];
        if (bias) x[g][k] += b[k];
      }
      own.store(output, g, x[g]);
    }
  }
}

// Rows too long for registers: a block a row, three passes.
template <class T, class P, bool Aligned>
__global__ void __launch_bounds__(1024) forward_long_kernel(LayerNormForward a) {
  using A = accumulate_t<T>;
  constexpr int V = kVector<T>;
  __shared__ A scratch[2][64];
  const Row<T, int64_t, Aligned> own{a.n, static_cast<int>(blockDim.x), static_cast<int>(threadIdx.x)};
  const int groups =
      static_cast<int>((a.n + static_cast<int64_t>(V) * blockDim.x - 1) / (static_cast<int64_t>(V) * blockDim.x));
  const P *weight = static_cast<const P*>(a.weight), *bias = static_cast<const P*>(a.bias);

  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* input = static_cast<const T*>(a.input) + row * a.input_stride;
    A x[V], total[1] = {0};
    for (int g = 0; g < groups; ++g) {
      own.load(input, g, x);
#pragma unroll
      for (int k = 0; k < V; ++k) total[0] += x[k];
    }
    device::block_sum(total, scratch[0]);
    const A mean = total[0] / A(a.n);

    A centred[2] = {0, 0};
    for (int g = 0; g < groups; ++g) {
      own.load(input, g, x);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const A h = own.holds(g, k) ? x[k] - mean : A(0);
        centred[0] += h;
        centred[1] += h * h;
      }
    }
    device::block_sum(centred, scratch[1]);
    const A shift = centred[0] / A(a.n);
    const A rstd = inverse_sqrt(centred[1] / A(a.n) - shift * shift, a.eps);
    if (own.thread == 0) {
      static_cast<A*>(a.mean)[row] = mean + shift;
      static_cast<A*>(a.rstd)[row] = rstd;
    }

    T* output = static_cast<T*>(a.output) + row * a.n;
    for (int g = 0; g < groups; ++g) {
      accumulate_t<P> w[V], b[V];
      own.load(input, g, x);
      if (weight) own.load(weight, g, w);
      if (bias) own.load(bias, g, b);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        x[k] = (x[k] - mean - shift) * rstd;
        if (weight) x[k] *= w[k];
        if (bias) x[k] += b[k];
      }
      own.store(output, g, x);
    }
  }
}

// The row's three sums, x - mean, g and g·(x - mean) with g = grad·weight, turned into what grad_input needs.
template <class A>
struct RowSums {
  A shift, mean_g, mean_gh;
  __device__ RowSums(const A (&sums)[3], int64_t n, A rstd)
      : shift(sums[0] / A(n)), mean_g(sums[1] / A(n)), mean_gh((sums[2] - shift * sums[1]) / A(n) * rstd) {}
};

// Behind the partial sums lies room for one value a row.
template <class A>
__device__ A* row_shifts(const LayerNormBackward& a) {
  return static_cast<A*>(a.partial) + a.chunks * 2 * a.n;
}

// With h = (x - mean)·rstd and g = grad·weight: grad_input = rstd·(g - mean(g) - h·mean(g·h)). g is a rounded product in
// both places, since a difference of a fused and a rounded one is not 0 where it must be, as in rows of one. Each block walks over its rows and keeps the
// sums of grad·h and grad for its columns in registers; they end as one row of `partial`.
template <class T, class P, int Groups, bool Warp, bool Aligned, bool Sums>
__global__ void __launch_bounds__(Warp ? 32 * kWarpRows : 512) backward_kernel(LayerNormBackward a) {
  using A = accumulate_t<T>;
  constexpr int V = kVector<T>;
  __shared__ A scratch[2][Warp ? 1 : 96];
  const Row<T, int, Aligned> own{static_cast<int>(a.n), Warp ? 32 : static_cast<int>(blockDim.x),
                                 static_cast<int>(Warp ? threadIdx.x % 32 : threadIdx.x)};
  const int rows_a_block = Warp ? kWarpRows : 1, own_row = Warp ? threadIdx.x / 32 : 0;
  const P* weight = static_cast<const P*>(a.weight);
  A weight_sum[Sums ? Groups : 1][V] = {}, bias_sum[Sums ? Groups : 1][V] = {};

  int turn = 0;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * rows_a_block + own_row; row < a.rows;
       row += static_cast<int64_t>(gridDim.x) * rows_a_block) {
    const T* input = static_cast<const T*>(a.input) + row * a.input_stride;
    const T* grad = static_cast<const T*>(a.grad) + row * a.grad_stride;
    const A mean = static_cast<const A*>(a.mean)[row], rstd = static_cast<const A*>(a.rstd)[row];
    A h[Groups][V], g[Groups][V], sums[3] = {0, 0, 0};
#pragma unroll
    for (int i = 0; i < Groups; ++i) {
      own.load(input, i, h[i]);
      own.load(grad, i, g[i]);
    }
#pragma unroll
    for (int i = 0; i < Groups; ++i) {
      accumulate_t<P> w[V];
      if (weight) own.load(weight, i, w);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        h[i][k] = own.holds(i, k) ? h[i][k] - mean : A(0);
        const A gw = weight ? device::product<A>(g[i][k], w[k]) : g[i][k];
        sums[0] += h[i][k];
        sums[1] += gw;
        sums[2] += gw * h[i][k];
      }
    }
    team_sum<Warp>(sums, scratch[turn]);
    turn ^= 1;
    const RowSums<A> s(sums, a.n, rstd);

    T* grad_input = a.grad_input ? static_cast<T*>(a.grad_input) + row * a.n : nullptr;
#pragma unroll
    for (int i = 0; i < Groups; ++i) {
      accumulate_t<P> w[V];
      if (weight) own.load(weight, i, w);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        h[i][k] = (h[i][k] - s.shift) * rstd;
        if constexpr (Sums) {
          weight_sum[i][k] += g[i][k] * h[i][k];
          bias_sum[i][k] += g[i][k];
        }
        const A gw = weight ? device::product<A>(g[i][k], w[k]) : g[i][k];
        h[i][k] = (gw - s.mean_g - h[i][k] * s.mean_gh) * rstd;
      }
      if (grad_input) own.store(grad_input, i, h[i]);
    }
  }

  if constexpr (Sums) {
    A* partial = static_cast<A*>(a.partial) + blockIdx.x * 2 * a.n;
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
              total[a.n + j] = (warp ? total[a.n + j] : A(0)) + bias_sum[i][k];
            }
        }
        __syncthreads();
      }
      for (int64_t j = threadIdx.x; j < 2 * a.n; j += blockDim.x) partial[j] = total[j];
    } else {
#pragma unroll
      for (int i = 0; i < Groups; ++i)
#pragma unroll
        for (int k = 0; k < V; ++k) {
          if (!own.holds(i, k)) continue;
          partial[own.start(i) + k] = weight_sum[i][k];
          partial[a.n + own.start(i) + k] = bias_sum[i][k];
        }
    }
  }
}

// Rows too long for registers: two passes over a row for grad_input, and the rounding error of its mean for the next kernel.
template <class T, class P, bool Aligned>
__global__ void __launch_bounds__(512) backward_long_kernel(LayerNormBackward a) {
  using A = accumulate_t<T>;
  constexpr int V = kVector<T>;
  __shared__ A scratch[2][96];
  const Row<T, int64_t, Aligned> own{a.n, static_cast<int>(blockDim.x), static_cast<int>(threadIdx.x)};
  const int groups =
      static_cast<int>((a.n + static_cast<int64_t>(V) * blockDim.x - 1) / (static_cast<int64_t>(V) * blockDim.x));
  const P* weight = static_cast<const P*>(a.weight);

  int turn = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T* input = static_cast<const T*>(a.input) + row * a.input_stride;
    const T* grad = static_cast<const T*>(a.grad) + row * a.grad_stride;
    const A mean = static_cast<const A*>(a.mean)[row], rstd = static_cast<const A*>(a.rstd)[row];
    A h[V], g[V], sums[3] = {0, 0, 0};
    accumulate_t<P> w[V];
    for (int i = 0; i < groups; ++i) {
      own.load(input, i, h);
      own.load(grad, i, g);
      if (weight) own.load(weight, i, w);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const A centred = own.holds(i, k) ? h[k] - mean : A(0), gw = weight ? device::product<A>(g[k], w[k]) : g[k];
        sums[0] += centred;
        sums[1] += gw;
        sums[2] += gw * centred;
      }
    }
    device::block_sum(sums, scratch[turn]);
    turn ^= 1;
    const RowSums<A> s(sums, a.n, rstd);
    if (a.partial && threadIdx.x == 0) row_shifts<A>(a)[row] = s.shift;
    if (!a.grad_input) continue;

    T* grad_input = static_cast<T*>(a.grad_input) + row * a.n;
    for (int i = 0; i < groups; ++i) {
      own.load(input, i, h);
      own.load(grad, i, g);
      if (weight) own.load(weight, i, w);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        h[k] = (h[k] - mean - s.shift) * rstd;
        const A gw = weight ? device::product<A>(g[k], w[k]) : g[k];
        h[k] = (gw - s.mean_g - h[k] * s.mean_gh) * rstd;
      }
      own.store(grad_input, i, h);
    }
  }
}

constexpr int kColumnWarps = 8;

// The sums over rows where no block holds a whole row: a warp takes 32 vectors of columns, the block's warps different
// rows of its chunk (blockIdx.x), added at the end in the order of the warps.
template <class T, bool Aligned>
__global__ void __launch_bounds__(32 * kColumnWarps) backward_columns_kernel(LayerNormBackward a) {
  using A = accumulate_t<T>;
  constexpr int V = kVector<T>;
  __shared__ A parts[kColumnWarps][2][32 * V];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t begin = blockIdx.x * a.rows / a.chunks + warp, end = (blockIdx.x + 1) * a.rows / a.chunks;
  A* partial = static_cast<A*>(a.partial) + blockIdx.x * 2 * a.n;
  const int64_t tiles = (a.n + 32 * V - 1) / (32 * V);
  for (int64_t tile = blockIdx.y; tile < tiles; tile += gridDim.y) {
    const int64_t column = (tile * 32 + lane) * V;
    A weight_sum[V] = {}, bias_sum[V] = {};
    for (int64_t row = begin; column < a.n && row < end; row += kColumnWarps) {
      const A mean = static_cast<const A*>(a.mean)[row], rstd = static_cast<const A*>(a.rstd)[row];
      const A shift = row_shifts<A>(a)[row];
      A x[V], g[V];
      device::load<Aligned, V>(static_cast<const T*>(a.input) + row * a.input_stride + column, a.n - column, x);
      device::load<Aligned, V>(static_cast<const T*>(a.grad) + row * a.grad_stride + column, a.n - column, g);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        weight_sum[k] += g[k] * ((x[k] - mean - shift) * rstd);
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
    for (int j = threadIdx.x; j < 2 * 32 * V; j += blockDim.x) {
      const int which = j / (32 * V), at = j % (32 * V);
      const int64_t to = (tile * 32 + at % 32) * V + at / 32;
      if (to >= a.n) continue;
      A total = 0;
      for (int k = 0; k < kColumnWarps; ++k) total += parts[k][which][at];
      partial[which * a.n + to] = total;
    }
  }
}

// ---- host --------------------------------------------------------------------------------------------------------------

struct Plan {
  int groups;  // vectors a thread; 0: the row does not fit registers
  bool warp;
  int threads;
};

// By the number of vectors in a row, nothing else.
Plan forward_plan(int64_t vectors) {
  for (int groups : {1, 2, 4})
    if (vectors <= 32 * groups) return {groups, true, 32 * kWarpRows};
  if (vectors <= 2 * 1024) return {2, false, static_cast<int>(ceil_div(vectors, 2 * 32) * 32)};
  return {0, false, 1024};
}

Plan backward_plan(int64_t vectors) {
  for (int groups : {1, 2, 4})
    if (vectors <= 32 * groups) return {groups, true, 32 * kWarpRows};
  for (int groups : {2, 4})
    if (vectors <= 512 * groups) return {groups, false, static_cast<int>(ceil_div(vectors, groups * 32) * 32)};
  return {0, false, 512};
}

template <class T>
int64_t vectors_of(int64_t n) {
  return ceil_div(n, kVector<T>);
}

template <class T>
bool rows_aligned(const void* p, int64_t stride) {
  return aligned16(p) && stride * sizeof(T) % 16 == 0;
}

// A persistent grid: enough blocks to fill the card, each with as many rows as the others.
int64_t backward_blocks(const LayerNormBackward& a, const Plan& plan) {
  const int64_t rows = ceil_div(a.rows, plan.warp ? kWarpRows : 1);
  const int64_t a_multiprocessor = plan.warp ? 8 : std::max(1, 1024 / plan.threads);
  return std::min(rows, a_multiprocessor * multiprocessors());
}

int64_t column_tiles(const LayerNormBackward& a) { return ceil_div(a.n * size_of(a.dtype), 16 * 32); }

template <int... Values, class F>
int dispatch_groups(int groups, F f) {
  int result = 0;
  ((groups == Values ? (result = f(std::integral_constant<int, Values>{}), 0) : 0), ...);
  return result;
}

}  // namespace

int layer_norm(const LayerNormForward& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_parameter<T>(a.parameter, [&](auto p) -> int {
      using P = typename decltype(p)::type;
      const Plan plan = forward_plan(vectors_of<T>(a.n));
      const bool aligned = a.n % kVector<T> == 0 && rows_aligned<T>(a.input, a.input_stride) && aligned16(a.output) &&
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

void layer_norm_backward_plan(LayerNormBackward& a) {
  const Plan plan = backward_plan(ceil_div(a.n * size_of(a.dtype), 16));
  const bool fits = plan.groups != 0;
  a.chunks = fits ? backward_blocks(a, plan)
                  : std::clamp<int64_t>(8 * multiprocessors() / column_tiles(a), 1, ceil_div(a.rows, kColumnWarps));
  a.scratch = fits ? 0 : a.rows;
}

int layer_norm_backward(const LayerNormBackward& a, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_parameter<T>(a.parameter, [&](auto p) -> int {
      using P = typename decltype(p)::type;
      using A = accumulate_t<T>;
      const Plan plan = backward_plan(vectors_of<T>(a.n));
      const bool aligned = a.n % kVector<T> == 0 && rows_aligned<T>(a.input, a.input_stride) &&
                           rows_aligned<T>(a.grad, a.grad_stride) && aligned16(a.weight) && aligned16(a.grad_input);
      const unsigned blocks = static_cast<unsigned>(backward_blocks(a, plan));
      return dispatch_bool(aligned, [&](auto al) -> int {
        return dispatch_bool(a.partial != nullptr, [&](auto su) -> int {
          constexpr bool Aligned = decltype(al)::value, Sums = decltype(su)::value;
          const size_t shared = Sums && plan.warp ? 2 * a.n * sizeof(A) : 0;
          if (plan.groups == 0) {
            backward_long_kernel<T, P, Aligned><<<blocks, plan.threads, 0, stream>>>(a);
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
