// The kernel of kit.elementwise. source.py has put before it:
//   real, kInputs, kOutputs, kScalars              sizes, and the type that is computed in
//   KIT_VARIANT                                    which kernel to make
//   type_of<K>                                     operand K in memory, outputs first
//   Inputs, Outputs                                Indices<...> of those operands
//   compute(in, scalars, out)                      the expression
enum { kStrided = 1, kVectors = 2, kWide = 4, kVariant = KIT_VARIANT };  // a variant is the sum of what holds
constexpr int kThreads = 256, kOperands = kOutputs + kInputs, kMaxDims = 16;
constexpr int kGroup = (kVariant & (kStrided | kVectors)) == kStrided ? 1 : 16 / kWidest;  // elements a thread

struct Operands {
  void* at[kOperands];
};
struct Index {
  int64 sizes[kMaxDims], strides[kOperands][kMaxDims];
};
struct Scalars {
  double at[kScalars ? kScalars : 1];
};

// `repeat`: the one element there stands for all N.
template <int K, int N>
__device__ inline void fetch(const Operands& data, int64 at, bool repeat, real (&x)[kInputs][N]) {
  using T = typename type_of<K>::type;
  const T* p = static_cast<const T*>(data.at[K]) + at;
  if (repeat) {
    const real one = static_cast<real>(widen(*p));
#pragma unroll
    for (int j = 0; j < N; ++j) x[K - kOutputs][j] = one;
  } else {
    accumulate_t<T> wide[N];
    load<true, N>(p, N, wide);
#pragma unroll
    for (int j = 0; j < N; ++j) x[K - kOutputs][j] = static_cast<real>(wide[j]);
  }
}

template <int K, int N>
__device__ inline void put(const Operands& data, int64 at, const real (&y)[kOutputs][N]) {
  using T = typename type_of<K>::type;
  store<true, N>(static_cast<T*>(data.at[K]) + at, N, y[K]);
}

template <int N, int... In, int... Out>
__device__ inline void group(const Operands& data, const int64 (&at)[kOperands], const bool (&repeat)[kOperands],
                             const Scalars& scalars, Indices<In...>, Indices<Out...>) {
  real x[kInputs][N], y[kOutputs][N], s[kScalars ? kScalars : 1];
#pragma unroll
  for (int k = 0; k < kScalars; ++k) s[k] = static_cast<real>(scalars.at[k]);
  (fetch<In, N>(data, at[In], repeat[In], x), ...);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    real in[kInputs], out[kOutputs];
#pragma unroll
    for (int k = 0; k < kInputs; ++k) in[k] = x[k][j];
    compute(in, s, out);
#pragma unroll
    for (int k = 0; k < kOutputs; ++k) y[k][j] = out[k];
  }
  (put<Out, N>(data, at[Out], y), ...);
}

template <bool wide>
struct unsigned_index {
  using type = unsigned;
};
template <>
struct unsigned_index<true> {
  using type = unsigned long long;
};

#define KIT_KERNEL extern "C" __global__ void __launch_bounds__(kThreads) kit_kernel

#if KIT_VARIANT & 1  // kStrided
// Any strides, the fastest dimension first; those of dimension 0 count groups.
KIT_KERNEL(Operands data, const __grid_constant__ Index index, int ndim, int64 groups, Scalars scalars) {
  const int64 g = static_cast<int64>(blockIdx.x) * kThreads + threadIdx.x;
  if (g >= groups) return;
  int64 at[kOperands] = {};
  bool repeat[kOperands];
#pragma unroll
  for (int k = 0; k < kOperands; ++k) repeat[k] = kGroup > 1 && index.strides[k][0] == 0;
  using Place = typename unsigned_index<(kVariant & kWide) != 0>::type;
  Place rest = static_cast<Place>(g);
  for (int d = 0; d < ndim; ++d) {
    const Place size = static_cast<Place>(index.sizes[d]), next = rest / size;
    const int64 here = rest - next * size;
    rest = next;
#pragma unroll
    for (int k = 0; k < kOperands; ++k) at[k] += here * index.strides[k][d];
  }
  group<kGroup>(data, at, repeat, scalars, Inputs{}, Outputs{});
}
#else
// One run of `numel` elements each: a thread takes a group, and those behind the last group go one to a thread.
KIT_KERNEL(Operands data, int64 groups, int64 numel, Scalars scalars) {
  const int64 g = static_cast<int64>(blockIdx.x) * kThreads + threadIdx.x;
  const bool whole = g < groups;
  const int64 first = whole ? g * kGroup : groups * kGroup + (g - groups);
  if (first >= numel) return;
  int64 at[kOperands];
  const bool repeat[kOperands] = {};
#pragma unroll
  for (int k = 0; k < kOperands; ++k) at[k] = first;
  if (whole)
    group<kGroup>(data, at, repeat, scalars, Inputs{}, Outputs{});
  else
    group<1>(data, at, repeat, scalars, Inputs{}, Outputs{});
}
#endif
