// What a kernel's source may use without including anything, on the CPU and under NVRTC: the element types as torch has
// them. The half types convert from and to float by themselves and have no arithmetic of their own: x * y is a float.
// `c ? x : 0` is ambiguous, and an error; write c ? x : T(0), or compute in opmath_t<T>.
#ifdef __CUDACC__
#define FASTOPS_KIT __device__ inline
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
#else
#include <stdint.h>
#include <string.h>
#define FASTOPS_KIT inline
#endif

namespace fastops {
namespace kit {

template <class To, class From>
FASTOPS_KIT To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

FASTOPS_KIT float widen_half(unsigned short bits) {
#ifdef __CUDACC__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  // The exponent is rebased by a multiplication, which makes denormal halves right; from 2^16 on it is inf or NaN.
  const float value = bits_as<float>((bits & 0x7fffu) << 13) * bits_as<float>(0x77800000u);
  const unsigned magnitude = bits_as<unsigned>(value) | (value >= 65536.0f ? 0x7f800000u : 0);
  return bits_as<float>(magnitude | (bits & 0x8000u) << 16);
#endif
}

FASTOPS_KIT unsigned short narrow_half(float value) {
#ifdef __CUDACC__
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const unsigned all = bits_as<unsigned>(value), magnitude = all & 0x7fffffffu;
  const unsigned short sign = (all >> 16) & 0x8000u;
  if (magnitude >= 0x47800000u) return sign | (magnitude > 0x7f800000u ? 0x7e00 : 0x7c00);
  // Below 2^-14 the half is denormal: adding 0.5 lets the FPU round at its last bit. Else to the nearest, ties to even.
  if (magnitude < 0x38800000u) return sign | (bits_as<unsigned>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u);
  return sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
#endif
}

FASTOPS_KIT float widen_bfloat16(unsigned short bits) { return bits_as<float>(static_cast<unsigned>(bits) << 16); }

FASTOPS_KIT unsigned short narrow_bfloat16(float value) {
  const unsigned all = bits_as<unsigned>(value);
  return value != value ? 0x7fc0 : static_cast<unsigned short>((all + 0x7fffu + (all >> 16 & 1u)) >> 16);
}

}  // namespace kit

struct float16 {
  unsigned short bits;
  float16() = default;
  FASTOPS_KIT float16(float value) : bits(kit::narrow_half(value)) {}
  FASTOPS_KIT operator float() const { return kit::widen_half(bits); }
};

struct bfloat16 {
  unsigned short bits;
  bfloat16() = default;
  FASTOPS_KIT bfloat16(float value) : bits(kit::narrow_bfloat16(value)) {}
  FASTOPS_KIT operator float() const { return kit::widen_bfloat16(bits); }
};

namespace kit {

template <class T>
struct opmath {
  using type = T;
};
template <>
struct opmath<float16> {
  using type = float;
};
template <>
struct opmath<bfloat16> {
  using type = float;
};

// For the checks that follow the source: is the type of a kernel's K-th parameter one of these?
template <class A, class B>
struct same {
  static constexpr bool value = false;
};
template <class A>
struct same<A, A> {
  static constexpr bool value = true;
};
template <int K, class Function>
struct parameter {
  using type = void;
};
template <int K, class Result, class First, class... Rest>
struct parameter<K, Result (*)(First, Rest...)> : parameter<K - 1, Result (*)(Rest...)> {};
template <class Result, class First, class... Rest>
struct parameter<0, Result (*)(First, Rest...)> {
  using type = First;
};
template <class Function>
struct parameters;
template <class Result, class... All>
struct parameters<Result (*)(All...)> {
  static constexpr int count = sizeof...(All);
};
template <class Parameter, class... Allowed>
constexpr bool one_of = (same<typename Parameter::type, Allowed>::value || ...);

}  // namespace kit
}  // namespace fastops

// What to compute in: float for the half types.
template <class T>
using opmath_t = typename fastops::kit::opmath<T>::type;
#undef FASTOPS_KIT
