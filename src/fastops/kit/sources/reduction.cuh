// The kernel of kit.reduction, after rows.h and what source.py writes; see cpp/kit/reduction.cpp.
//
// A block takes a chunk of one row, of 8 short rows (kBrief), or of 32 neighbouring rows where they lie closer than a
// row's elements do (kByColumns). A row's thread y takes groups y, y + kAlong, ... of its elements, in that order, and
// the threads' sums are then joined in halves.
enum { kVariant = KIT_VARIANT };
constexpr int kAcross = kVariant & kByColumns ? 32 : kVariant & kBrief ? 8 : 1, kAlong = kThreads / kAcross;
constexpr int kGroup = kVariant & (kByColumns | kCombine) ? 1 : 16 / kWidestInput;

struct Operands {
  void* at[kInputs + 1];
};
struct Scalars {
  double at[kScalars ? kScalars : 1];
};

// Where an element lies that several dimensions lead to. Apart, for its divisions are long.
template <int Input>
__device__ __noinline__ int64 place(const Elements& elements, int dims, int64 rest) {
  int64 at = 0;
#pragma unroll 1
  for (int d = 0; d + 1 < dims; ++d) {
    const int64 next = rest / elements.sizes[d];
    at += (rest - next * elements.sizes[d]) * elements.strides[Input][d];
    rest = next;
  }
  return dims ? at + rest * elements.strides[Input][dims - 1] : 0;
}

// A group of a row's elements from `first` on, of which m exist.
template <class T, int Input>
__device__ inline void fetch(const Operands& data, int64 base, const Elements& elements, int dims, int64 first, int m,
                             real (&x)[kGroup]) {
  const T* p = static_cast<const T*>(data.at[Input + 1]) + base;
  accumulate_t<T> wide[kGroup];
  if ((kVariant & kVectors) && m == kGroup) {
    load<true, kGroup>(p + first, m, wide);
  } else {
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      const int64 i = j < m ? first + j : first;
      const int64 at = dims == 1 ? i * elements.strides[Input][0] : place<Input>(elements, dims, i);
      wide[j] = accumulate_t<T>(widen(p[at]));
    }
  }
#pragma unroll
  for (int j = 0; j < kGroup; ++j) x[j] = static_cast<real>(wide[j]);
}

struct Sum {
  real value;
  bool any;

  __device__ void add(real x) {
    if (any)
      take(value, x);
    else
      value = x;
    any = true;
  }
};

template <int... In>
__device__ inline Sum of_thread(const Operands& data, const Rows& rows, const Elements& elements, const Extent& e,
                                int64 row, int64 chunk, int y, const real* scalars, Indices<In...>) {
  int64 base[kInputs] = {}, rest = row;
#pragma unroll 1
  for (int d = 0; d < e.row_dims; ++d) {
    const int64 next = rest / rows.sizes[d], here = rest - next * rows.sizes[d];
    rest = next;
#pragma unroll
    for (int k = 0; k < kInputs; ++k) base[k] += here * rows.strides[k + 1][d];
  }
  const int dims = static_cast<int>(e.element_dims);
  const int64 begin = chunk * e.chunk, end = begin + e.chunk < e.count ? begin + e.chunk : e.count;
  Sum sum{0, false};
#pragma unroll(kVariant&(kVectors | kByColumns) ? 4 : 1)
  for (int64 first = begin + y * kGroup; first < end; first += kAlong * kGroup) {
    const int m = end - first < kGroup ? static_cast<int>(end - first) : kGroup;
    real x[kInputs][kGroup];
    if (kVariant & kCombine)
      fetch<real, 0>(data, base[0], elements, dims, first, m, x[0]);
    else
      (fetch<typename type_of<In>::type, In - 1>(data, base[In - 1], elements, dims, first, m, x[In - 1]), ...);
#pragma unroll
    for (int j = 0; j < kGroup; ++j) {
      if (j >= m) break;
      real in[kInputs], value = x[0][j];
#pragma unroll
      for (int k = 0; k < kInputs; ++k) in[k] = x[k][j];
      if (!(kVariant & kCombine)) compute_map(in, scalars, &value);
      sum.add(value);
    }
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    kit_kernel(Operands data, const __grid_constant__ Rows rows, const __grid_constant__ Elements elements,
               const __grid_constant__ Extent extent, Scalars given) {
  __shared__ Sum sums[kThreads];
  const int t = threadIdx.x;
  const int x = kVariant & kByColumns ? t % kAcross : t / kAlong, y = kVariant & kByColumns ? t / kAcross : t % kAlong;
  const int64 chunk = blockIdx.x % extent.chunks, row = blockIdx.x / extent.chunks * kAcross + x;
  real scalars[kScalars ? kScalars : 1];
#pragma unroll
  for (int k = 0; k < kScalars; ++k) scalars[k] = static_cast<real>(given.at[k]);

  Sum sum{0, false};
  if (row < extent.rows) sum = of_thread(data, rows, elements, extent, row, chunk, y, scalars, Inputs{});
  Sum* mine = sums + x * kAlong + y;
  *mine = sum;
  __syncthreads();
  for (int half = kAlong / 2; half; half /= 2) {
    if (y < half && mine[half].any) mine->add(mine[half].value);
    __syncthreads();
  }
  if (y || row >= extent.rows) return;

  if (kVariant & kPartial) {
    static_cast<real*>(data.at[0])[row * extent.chunks + chunk] = mine->value;
    return;
  }
  int64 at = 0, rest = row;
#pragma unroll 1
  for (int d = 0; d < extent.row_dims; ++d) {
    const int64 next = rest / rows.sizes[d];
    at += (rest - next * rows.sizes[d]) * rows.strides[0][d];
    rest = next;
  }
  using T = typename type_of<0>::type;
  const real in[] = {mine->value, static_cast<real>(extent.n)};
  real out;
  compute_post(in, scalars, &out);
  static_cast<T*>(data.at[0])[at] = narrow<T>(out);
}
