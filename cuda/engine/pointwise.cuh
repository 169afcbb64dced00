#pragma once
// The kernels and the launcher of every elementwise CUDA op. plan/pointwise.h says which one runs.
//
// A functor f takes one value an input, then the row's scale if it has kRowScale, and returns a value, or many<> of them: float for
// f16, bf16 and f32, double for f64. With kRowSum the last of those that it returns is added up over the row.
#include <type_traits>

#include "dependent.cuh"
#include "device/math.cuh"
#include "device/vector.cuh"
#include "engine/unaligned.cuh"
#include "plan/pointwise.h"
#include "problem/pointwise.h"

namespace fastops::FASTOPS_ARCH {

using device::accumulate_t;

// What f returns for several outputs.
template <class A, int N>
struct many {
  A values[N];
};

template <class A>
__device__ inline A output(A value, int) {
  return value;
}
template <class A, int N>
__device__ inline A output(many<A, N> value, int k) {
  return value.values[k];
}

template <class F, class = void>
struct has_row_scale : std::false_type {};
template <class F>
struct has_row_scale<F, std::enable_if_t<F::kRowScale>> : std::true_type {};
template <class F, class = void>
struct has_row_sum : std::false_type {};
template <class F>
struct has_row_sum<F, std::enable_if_t<F::kRowSum>> : std::true_type {};

template <class F, class A, class... In>
__device__ inline auto apply_scaled(const F& f, A scale, In... in) {
  if constexpr (has_row_scale<F>::value)
    return f(in..., scale);
  else
    return f(in...);
}

template <int Inputs, class F, class A, int V>
__device__ inline auto apply(const F& f, const A (&in)[Inputs][V], int j, A scale) {
  if constexpr (Inputs == 1) return apply_scaled(f, scale, in[0][j]);
  if constexpr (Inputs == 2) return apply_scaled(f, scale, in[0][j], in[1][j]);
  if constexpr (Inputs == 3) return apply_scaled(f, scale, in[0][j], in[1][j], in[2][j]);
}

// Of V elements; returns the sum of what f returns to be added up.
template <int Outputs, int Inputs, int V, class F, class A>
__device__ inline A compute(const F& f, const A (&in)[Inputs][V], A (&out)[Outputs][V], A scale) {
  A terms[V] = {};
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const auto value = apply<Inputs>(f, in, j, scale);
#pragma unroll
    for (int k = 0; k < Outputs; ++k) out[k][j] = output(value, k);
    if constexpr (has_row_sum<F>::value) terms[j] = output(value, Outputs);
  }
  return has_row_sum<F>::value ? device::tree_sum(terms) : A(0);
}

template <class T, int V, int Outputs, int Inputs, class F>
__device__ inline void pointwise_group(T* const (&data)[Outputs + Inputs], const F& f) {
  using A = accumulate_t<T>;
  A in[Inputs][V], out[Outputs][V];
#pragma unroll
  for (int k = 0; k < Inputs; ++k) device::load<true, V>(data[Outputs + k], V, in[k]);
  compute(f, in, out, A(1));
#pragma unroll
  for (int k = 0; k < Outputs; ++k) device::store<true, V>(data[k], V, out[k]);
}

template <class T, int Operands>
struct Pointers {
  T* at[Operands];
};

constexpr int kThreads = 256;

// One contiguous run each, all elements at once: a thread takes a group of V, and those behind the last group go one to
// a thread. One vector a thread, a grid of exactly as many and no cache hints are the fastest of what was measured.
template <class T, int V, int Outputs, int Inputs, class F>
__global__ void __launch_bounds__(kThreads)
    pointwise_contiguous(Pointers<T, Outputs + Inputs> operands, int64_t groups, int64_t numel, F f) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool whole = g < groups;
  const int64_t at = whole ? g * V : groups * V + (g - groups);
  if (at >= numel) return;
  T* data[Outputs + Inputs];
#pragma unroll
  for (int k = 0; k < Outputs + Inputs; ++k) data[k] = operands.at[k] + at;
  if (V > 1 && whole)
    pointwise_group<T, V, Outputs, Inputs>(data, f);
  else
    pointwise_group<T, 1, Outputs, Inputs>(data, f);
}

// The strides of as many operands as a kernel has.
template <class T, int Operands>
struct Strided {
  int ndim;
  bool narrow;  // 32 bits count the elements
  int64_t sizes[kMaxDims];
  int64_t strides[Operands][kMaxDims];
  T* data[Operands];

  // Moves `at` by the dimensions from `first` on to the element that `index` counts along them.
  template <class Index>
  __device__ void move(T* (&at)[Operands], int first, Index index) const {
    for (int d = first; d < ndim; ++d) {
      const Index size = static_cast<Index>(sizes[d]), next = d + 1 < ndim ? index / size : 0;
      const int64_t along = index - next * size;
      index = next;
#pragma unroll
      for (int k = 0; k < Operands; ++k) at[k] += along * strides[k][d];
    }
  }
  __device__ void move_to(T* (&at)[Operands], int first, int64_t index) const {
    narrow ? move<unsigned>(at, first, static_cast<unsigned>(index)) : move<uint64_t>(at, first, index);
  }
};

// Any strides, V elements a thread; sizes and strides of dimension 0 count groups of V.
template <class T, int V, int Outputs, int Inputs, class F>
__global__ void __launch_bounds__(kThreads)
    pointwise_strided(const __grid_constant__ Strided<T, Outputs + Inputs> p, int64_t groups, F f) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (g >= groups) return;
  T* data[Outputs + Inputs];
#pragma unroll
  for (int k = 0; k < Outputs + Inputs; ++k) data[k] = p.data[k];
  p.move_to(data, 0, g);
  pointwise_group<T, V, Outputs, Inputs>(data, f);
}

// Elements of a vector. f64 has one, for its arithmetic takes much code, and has no need of more.
template <class T>
constexpr int kPointwiseVector = sizeof(T) == 8 ? 1 : device::kVector<T>;

// Rows of n elements at unit stride, n < 2^31. A row is divided into chunks of `lanes` vectors, a power of two up to a warp.
struct RowChunks {
  int64_t rows;
  int n, chunks, lanes;
  bool aligned;  // every row is whole aligned vectors in every operand
  const void* scale;
  void* sums;
};

// The lane's vector of a row of each operand. One that is not `live` is neither read nor written.
template <int Outputs, int Inputs, int V, class T, class F>
__device__ inline accumulate_t<T> pointwise_row_vector(T* const (&row)[Outputs + Inputs], int n, bool aligned,
                                                       const RowLane& own, bool live, accumulate_t<T> scale,
                                                       const F& f) {
  using A = accumulate_t<T>;
  A in[Inputs][V], out[Outputs][V];
  const int count = live ? n : 0;
#pragma unroll
  for (int k = 0; k < Inputs; ++k) {
    const T* from = row[Outputs + k];
    const Vector<T, V> v = aligned ? load_vector<true, V>(from, count, own) : load_vector<false, V>(from, count, own);
    device::widen(v, in[k]);
  }
  const A sum = compute(f, in, out, scale);
  const bool writes = live && own.vector * V < n;
#pragma unroll
  for (int k = 0; k < Outputs; ++k) {
    const Vector<T, V> v = device::narrow_all<T>(out[k]);
    if (aligned)
      store_vector<true>(row[k], n, own, writes, v);
    else
      store_vector<false>(row[k], n, own, writes, v);
  }
  return sum;
}

// Blocks of a multiprocessor, at least: what is on its way hides how long it takes.
template <class T, int Operands>
constexpr int kRowBlocksEach = sizeof(T) == 8 ? 2
                               : Operands > 4 ? 4
                                              : 5;

// Chunks one behind the other, of as many rows as a block has room for. Of rows that are added up a block has one, its teams every
// so many chunks: which thread has an element, and with it the order of the sum, depends on n alone.
template <class T, int V, int Outputs, int Inputs, class F>
__global__ void __launch_bounds__(kThreads, kRowBlocksEach<T, Outputs + Inputs>)
    pointwise_rows(const __grid_constant__ Strided<T, Outputs + Inputs> p, const __grid_constant__ RowChunks c, F f) {
  using A = accumulate_t<T>;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int lane = threadIdx.x % c.lanes, team = threadIdx.x / c.lanes, teams = blockDim.x / c.lanes;
  const bool whole_rows = has_row_sum<F>::value && c.sums;
  const int64_t task = whole_rows ? blockIdx.x : static_cast<int64_t>(blockIdx.x) * teams + team;
  const int64_t counted = whole_rows ? task : c.chunks == 1 ? task : device::quotient(task, c.chunks);
  const bool live = counted < c.rows;
  const int64_t r = live ? counted : c.rows - 1;  // whose lanes are there for the others' shuffles
  T* row[Outputs + Inputs];
#pragma unroll
  for (int k = 0; k < Outputs + Inputs; ++k) row[k] = p.data[k];
  p.move_to(row, 1, r);
  A scale = 1;
  if constexpr (has_row_scale<F>::value)
    if (c.scale) scale = static_cast<const A*>(c.scale)[r];
  A sum = 0;
  const auto chunk = [&](int number) {
    const RowLane own{number * c.lanes + lane, lane, c.lanes};
    sum += pointwise_row_vector<Outputs, Inputs, V>(row, c.n, c.aligned, own, live, scale, f);
  };
  if (!whole_rows) return chunk(static_cast<int>(task - counted * c.chunks));
  if constexpr (has_row_sum<F>::value) {
    for (int number = team; number < c.chunks; number += teams) chunk(number);
    for (int step = c.lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    __shared__ A parts[kThreads / 32];
    if (lane == 0) parts[team] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int k = 1; k < teams; ++k) sum += parts[k];
    static_cast<A*>(c.sums)[r] = sum;
  }
}

// vectors: by aligned vectors, else an element a thread.
template <class T, int Outputs, int Inputs, class F>
int launch_contiguous(const Pointwise& p, const F& f, cudaStream_t stream, bool vectors) {
  constexpr int V = kPointwiseVector<T>;
  Pointers<T, Outputs + Inputs> operands;
  for (int k = 0; k < Outputs + Inputs; ++k) operands.at[k] = static_cast<T*>(p.data[k]);
  const int64_t groups = vectors ? p.numel / V : 0;
  const unsigned blocks = static_cast<unsigned>(ceil_div(groups + (p.numel - groups * V), kThreads));
  return launch_kernel(&pointwise_contiguous<T, V, Outputs, Inputs, F>, launch_config(blocks, kThreads, stream),
                       operands, groups, p.numel, f);
}

template <class T, int Operands>
Strided<T, Operands> strided(const Pointwise& p) {
  Strided<T, Operands> s;
  s.ndim = p.ndim;
  s.narrow = p.numel < INT32_MAX;
  std::copy_n(p.sizes, p.ndim, s.sizes);
  for (int k = 0; k < Operands; ++k) {
    std::copy_n(p.strides[k], p.ndim, s.strides[k]);
    s.data[k] = static_cast<T*>(p.data[k]);
  }
  return s;
}

template <class T, int V, int Outputs, int Inputs, class F>
int launch_strided(const Pointwise& p, const F& f, cudaStream_t stream) {
  auto s = strided<T, Outputs + Inputs>(p);
  const int64_t groups = p.numel / V;
  if (V > 1) {
    s.sizes[0] /= V;
    for (int k = 0; k < Outputs + Inputs; ++k) s.strides[k][0] *= V;
  }
  return launch_kernel(&pointwise_strided<T, V, Outputs, Inputs, F>,
                       launch_config(static_cast<unsigned>(ceil_div(groups, kThreads)), kThreads, stream), s, groups,
                       f);
}

// Whether every row is whole aligned vectors in every operand.
template <class T, int Operands>
bool rows_are_vectors(const Pointwise& p) {
  constexpr int V = kPointwiseVector<T>;
  if (p.sizes[0] % V != 0) return false;
  for (int k = 0; k < Operands; ++k) {
    if (!aligned16(p.data[k])) return false;
    for (int d = 1; d < p.ndim; ++d)
      if (p.strides[k][d] % V != 0) return false;
  }
  return true;
}

template <class T, int Outputs, int Inputs, class F>
int launch_rows_of(const Pointwise& p, const F& f, cudaStream_t stream) {
  constexpr int V = kPointwiseVector<T>;
  const int n = static_cast<int>(p.sizes[0]), vectors = static_cast<int>(ceil_div(n, V));
  int lanes = 32;
  while (!p.row_sums && lanes / 2 >= vectors) lanes /= 2;
  const RowChunks c{p.numel / n,
                    n,
                    static_cast<int>(ceil_div(vectors, lanes)),
                    lanes,
                    rows_are_vectors<T, Outputs + Inputs>(p),
                    p.row_scale,
                    p.row_sums};
  const int threads = p.row_sums ? std::min(kThreads, c.chunks * lanes) : kThreads;
  const int64_t blocks = p.row_sums ? c.rows : ceil_div(c.rows * c.chunks, kThreads / lanes);
  return launch_kernel(&pointwise_rows<T, V, Outputs, Inputs, F>,
                       launch_config(static_cast<unsigned>(blocks), threads, stream), strided<T, Outputs + Inputs>(p),
                       c, f);
}

template <class T, int Operands>
plan::pointwise::Kernel pointwise_kernel_of(const Pointwise& p, bool gated) {
  using namespace plan::pointwise;
  bool aligned = true, unit = p.ndim > 0 && p.sizes[0] <= kMostOfRow;
  for (int k = 0; k < Operands; ++k) {
    aligned &= aligned16(p.data[k]);
    unit &= p.ndim == 0 || p.strides[k][0] == 1;
  }
  const bool one_run = p.is_contiguous() && (aligned || p.numel <= kMostOfRow);
  const Layout layout = one_run ? Layout::one_run : unit ? Layout::rows : Layout::strided;
  if (layout == Layout::rows) aligned = rows_are_vectors<T, Operands>(p);
  const Of of = p.row_scale || p.row_sums ? Of::numbered : gated ? Of::gated : Of::any;
  return kRules[plan::pointwise::plan(layout, aligned, of, p.numel)].kernel;
}

template <class T, int Inputs, int Outputs = 1, class F>
int pointwise_of(const Pointwise& p, void* stream_handle, const F& f) {
  using plan::pointwise::Kernel;
  constexpr int V = kPointwiseVector<T>;
  constexpr bool kGated = has_row_scale<F>::value;
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const Kernel kernel = pointwise_kernel_of<T, Outputs + Inputs>(p, kGated);
  if constexpr (kGated)
    if (kernel == Kernel::row_vector) return launch_rows_of<T, Outputs, Inputs>(p, f, stream);
  if (p.is_contiguous()) return launch_contiguous<T, Outputs, Inputs>(p, f, stream, kernel == Kernel::vector);
  if constexpr (!kGated && V > 1)
    if (kernel == Kernel::vector) return launch_strided<T, V, Outputs, Inputs>(p, f, stream);
  return launch_strided<T, 1, Outputs, Inputs>(p, f, stream);
}

// The same f for every type.
template <int Inputs, int Outputs = 1, class F>
int pointwise(DType dtype, const Pointwise& p, void* stream, const F& f) {
  return dispatch(
      dtype, [&](auto t) -> int { return pointwise_of<typename decltype(t)::type, Inputs, Outputs>(p, stream, f); });
}

}  // namespace fastops::FASTOPS_ARCH
