#pragma once
// Host side of a launch: from run-time dtypes to template arguments, and questions to the current device.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/dtype.h"
#include "device/types.cuh"

namespace fastops {

template <class T>
struct tag {
  using type = T;
};

template <class F>
int dispatch(DType dtype, F f) {
  switch (dtype) {
    case DType::f16: return f(tag<device::f16>{});
    case DType::bf16: return f(tag<device::bf16>{});
    case DType::f32: return f(tag<float>{});
    default: return f(tag<double>{});
  }
}

// The type of affine parameters: the input's own, or f32 beside a half-precision input.
template <class T, class F>
int dispatch_parameter(DType parameter, F f) {
  if constexpr (sizeof(T) == 2) {
    if (parameter == DType::f32) return f(tag<float>{});
  }
  return f(tag<T>{});
}

template <class F>
int dispatch_bool(bool value, F f) {
  return value ? f(std::true_type{}) : f(std::false_type{});
}

// Calls f(std::integral_constant<int, number>) for a number below kCount, and returns its status.
template <class F, int... kNumbers>
int dispatch_number(int number, const F& f, std::integer_sequence<int, kNumbers...>) {
  int status = cudaErrorInvalidValue;
  auto call = [&](auto constant) {
    if (number == decltype(constant)::value) status = f(constant);
  };
  (call(std::integral_constant<int, kNumbers>{}), ...);
  return status;
}
template <int kCount, class F>
int dispatch_number(int number, const F& f) {
  return dispatch_number(number, f, std::make_integer_sequence<int, kCount>{});
}

// What the current device answered to a question that takes the driver long.
class PerDevice {
 public:
  static constexpr int kUnknown = -1;  // an answer to ask for again

  template <class F>
  int get(F ask) {
    int device = 0;
    cudaGetDevice(&device);
    if (device >= kDevices) return ask(device);
    int known = answers_[device].load(std::memory_order_relaxed);
    if (known == 0) {
      known = ask(device) + 1;  // kUnknown stays unknown
      answers_[device].store(known, std::memory_order_relaxed);
    }
    return known - 1;
  }

  static constexpr int kDevices = 64;  // of which it keeps the answer

 private:
  std::atomic<int> answers_[kDevices] = {};
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// So few elements that each is to have a thread: how long one thread takes is what counts then.
inline bool few(int64_t elements) { return elements <= 4096; }

inline bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace fastops
