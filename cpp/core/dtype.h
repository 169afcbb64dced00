#pragma once
// The element types that the kernels take. Plain, so that kernel files need no Torch header.
#include <cstdint>

namespace fastops {

enum class DType : int { f16, bf16, f32, f64 };

constexpr int64_t size_of(DType t) { return t == DType::f64 ? 8 : t == DType::f32 ? 4 : 2; }

// The type that a kernel computes in: f32 for the half types.
constexpr DType accumulate_type(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

// The type that both fit in; that of f16 and bf16 is f32.
constexpr DType promote(DType a, DType b) {
  if (a == b) return a;
  const DType greater = a > b ? a : b;
  return greater == DType::bf16 ? DType::f32 : greater;
}

}  // namespace fastops
