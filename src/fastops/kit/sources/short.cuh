// Division and exponential of float for results that are rounded to a half type: the full forms take longer than the
// memory does to bring the elements. Infinities, NaN, zeros and their signs, and denormals are as in the full forms.

// What a division needs to know of its divisor, which several may share.
struct kit_divisor {
  float scale, scaled, reciprocal;
};
KIT_FUNCTION kit_divisor kit_divide_by(float b) {
  const float size = fabsf(b);
  const float scale = size > 0x1p64f ? 0x1p-64f : size < 0x1p-64f ? 0x1p64f : 1.0f;  // the reciprocal is to be normal
  float reciprocal;
  b *= scale;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b));
  return {scale, b, reciprocal};
}

// a / b to 3 units in the last place.
KIT_FUNCTION float kit_ratio(float a, float b) {
  const kit_divisor by = kit_divide_by(b);
  return a * by.scale * by.reciprocal;
}

// a / b itself where that is a float, as x / x is, so that what has steps stays right behind it; else to 1 unit in the
// last place. If |a| < 2^-100, the rest underflows: to 3 units. The full division branches.
KIT_FUNCTION float kit_quotient(float a, float b) {
  const kit_divisor by = kit_divide_by(b);
  a *= by.scale;
  const float quotient = a * by.reciprocal, rest = fmaf(-quotient, by.scaled, a);
  // The rest of an infinity is NaN or infinite; one of 0 would turn -0 into 0.
  return rest != 0 && fabsf(rest) < KIT_INF ? fmaf(rest, by.reciprocal, quotient) : quotient;
}

// To 2^-17 of it, for x·log2(e) is at most 150 and is rounded: 1/256 of half a unit in the last place of bfloat16, 1/32
// of float16's, and less of a result in float16's range. 1 at 0.
KIT_FUNCTION float kit_exp(float x) { return exp2f(x * 1.4426950408889634f); }
