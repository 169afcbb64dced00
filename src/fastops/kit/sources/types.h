// What the CPU code of the kit is written with; no header is included. The half types are widened, and rounded to
// nearest even, without branches, so that loops over them vectorise.
typedef long long int64;

// What is computed at once, in elements: the widest vector, of floats. A loop over a multiple of it has no remainder,
// in which the compiler would call other functions, of other last bits, than for whole vectors.
enum : int64 { kVector = 16 };

template <class To, class From>
static inline To bits_of(From from) {
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

struct f16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};

template <class T>
struct accumulate {
  using type = float;
};
template <>
struct accumulate<double> {
  using type = double;
};

static inline float widen(float x) { return x; }
static inline double widen(double x) { return x; }
static inline float widen(bf16 x) { return bits_of<float>(static_cast<unsigned>(x.bits) << 16); }
static inline float widen(f16 x) {
  const unsigned magnitude = (x.bits & 0x7fffu) << 13, sign = (x.bits & 0x8000u) << 16;
  const unsigned finite = bits_of<unsigned>(bits_of<float>(magnitude) * 0x1p112f);  // the exponents' biases differ
  return bits_of<float>((magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite) | sign);
}

template <class T>
static inline T narrow(typename accumulate<T>::type x) {
  return x;
}
template <>
inline bf16 narrow<bf16>(float x) {
  const unsigned u = bits_of<unsigned>(x);
  return {static_cast<unsigned short>(x != x ? 0x7fffu : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
template <>
inline f16 narrow<f16>(float x) {
  const unsigned u = bits_of<unsigned>(x), magnitude = u & 0x7fffffffu;
  const unsigned normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // The numbers above 0.5 are as far apart as the subnormals.
  const unsigned subnormal = bits_of<unsigned>(bits_of<float>(magnitude) + 0.5f) - 0x3f000000u;
  const unsigned finite = magnitude < 0x38800000u ? subnormal : normal;
  const unsigned all = magnitude > 0x7f800000u ? 0x7e00u : magnitude >= 0x477ff000u ? 0x7c00u : finite;
  return {static_cast<unsigned short>(all | (u >> 16 & 0x8000u))};
}
