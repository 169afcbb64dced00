// The CPU loop of kit.elementwise, after cpu.h and what source.py writes; see pointwise.cuh.
enum : int64 { kBlock = 512, kOperands = kOutputs + kInputs };

struct Blocks {
  real in[kInputs][kBlock], out[kOutputs][kBlock];
};

template <class T>
constexpr bool is_real = fastops::kit::same<T, real>::value;

// n elements as `real`, and the last one again up to a whole vector. Where they lie so already, no copy is made.
template <int K>
static inline const real* fetch(const char* data, int64 stride, int64 at, int64 n, real* buffer) {
  using T = typename type_of<K>::type;
  const T* p = reinterpret_cast<const T*>(data) + at * stride;
  if (stride == 1) {
    if (is_real<T> && n % kVector == 0) return reinterpret_cast<const real*>(p);
    for (int64 i = 0; i < n; ++i) buffer[i] = static_cast<real>(p[i]);
  } else {
    for (int64 i = 0; i < n; ++i) buffer[i] = static_cast<real>(p[i * stride]);
  }
  for (int64 i = n; i % kVector; ++i) buffer[i] = buffer[n - 1];
  return buffer;
}

template <int K>
static inline real* place(char* data, int64 stride, int64 at, int64 n, real* buffer) {
  using T = typename type_of<K>::type;
  return is_real<T> && stride == 1 && n % kVector == 0 ? reinterpret_cast<real*>(data) + at : buffer;
}

template <int K>
static inline void put(char* data, int64 stride, int64 at, int64 n, const real* buffer) {
  using T = typename type_of<K>::type;
  T* p = reinterpret_cast<T*>(data) + at * stride;
  if (stride == 1) {
    if (is_real<T> && n % kVector == 0) return;
    for (int64 i = 0; i < n; ++i) p[i] = static_cast<T>(buffer[i]);
  } else {
    for (int64 i = 0; i < n; ++i) p[i * stride] = static_cast<T>(buffer[i]);
  }
}

template <int... In, int... Out>
static inline void run(char* const* data, const int64* strides, int64 n, const double* scalars, Indices<In...>,
                       Indices<Out...>) {
  Blocks blocks;
  real s[kScalars ? kScalars : 1];
  for (int k = 0; k < kScalars; ++k) s[k] = static_cast<real>(scalars[k]);
  for (int64 at = 0; at < n; at += kBlock) {
    const int64 m = n - at < kBlock ? n - at : kBlock;
    compute_all(fetch<In>(data[In], strides[In], at, m, blocks.in[In - kOutputs])...,
                place<Out>(data[Out], strides[Out], at, m, blocks.out[Out])...,
                (m + kVector - 1) / kVector * kVector, s);
    (put<Out>(data[Out], strides[Out], at, m, blocks.out[Out]), ...);
  }
}

// n elements of operands at one stride each, outputs first.
extern "C" __attribute__((visibility("default"))) void loop(char* const* data, const int64* strides, int64 n,
                                                            const double* scalars) {
  run(data, strides, n, scalars, Inputs{}, Outputs{});
}
