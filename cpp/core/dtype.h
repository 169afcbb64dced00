#pragma once
// The element types that the kernels take. Plain, so that kernel files need no Torch header.
#include <cstdint>

namespace fastops {

enum class DType : int { f16, bf16, f32, f64 };

constexpr int64_t size_of(DType t) { return t == DType::f64 ? 8 : t == DType::f32 ? 4 : 2; }

// The type that a kernel computes in: f32 for the half types.
constexpr DType accumulate_type(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace fastops
