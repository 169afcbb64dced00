// The half types of all that the kit compiles, on the CPU and by NVRTC; no header is included. They convert from and to
// float by themselves and have no arithmetic of their own: x * y is a float. On the CPU the conversions, which round to
// nearest even, have no branches, so that loops over them vectorise.
namespace fastops {
namespace kit {

template <class A, class B>
struct same {
  static constexpr bool value = false;
};
template <class A>
struct same<A, A> {
  static constexpr bool value = true;
};

#ifdef __CUDACC__
#define FASTOPS_KIT __device__ inline
FASTOPS_KIT unsigned bits_of(float value) { return __float_as_uint(value); }
FASTOPS_KIT float float_of(unsigned bits) { return __uint_as_float(bits); }

FASTOPS_KIT float widen_half(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

FASTOPS_KIT unsigned short narrow_half(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#else
#define FASTOPS_KIT inline
FASTOPS_KIT unsigned bits_of(float value) {
  unsigned bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}
FASTOPS_KIT float float_of(unsigned bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

FASTOPS_KIT float widen_half(unsigned short bits) {
  const unsigned magnitude = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
  // The exponents' biases differ by 112; a multiplication makes denormal halves right too.
  const unsigned finite = bits_of(float_of(magnitude) * 0x1p112f);
  return float_of((magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite) | sign);
}

FASTOPS_KIT unsigned short narrow_half(float value) {
  const unsigned all = bits_of(value), magnitude = all & 0x7fffffffu;
  const unsigned normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // Below 2^-14 the half is denormal: adding 0.5 lets the FPU round at its last bit.
  const unsigned denormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const unsigned finite = magnitude < 0x38800000u ? denormal : normal;
  const unsigned any = magnitude > 0x7f800000u ? 0x7e00u : magnitude >= 0x477ff000u ? 0x7c00u : finite;
  return static_cast<unsigned short>(any | (all >> 16 & 0x8000u));
}
#endif

FASTOPS_KIT float widen_bfloat16(unsigned short bits) { return float_of(static_cast<unsigned>(bits) << 16); }

FASTOPS_KIT unsigned short narrow_bfloat16(float value) {
  const unsigned all = bits_of(value);
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

}  // namespace fastops
#undef FASTOPS_KIT
