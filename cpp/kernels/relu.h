#pragma once
// relu's backward needs one bit an element: whether it was kept, not 0 or below. Bit i % 8 of byte i / 8 is element i of one
// contiguous run, in the order of memory; what is left of the last byte is 0.
#include <cstdint>

#include "core/dtype.h"

namespace fastops {

struct ReluMask {
  DType dtype;
  int64_t numel;
  const void* input;
  void* output;
  uint8_t* mask;
};

struct ReluMaskBackward {
  DType dtype;
  int64_t numel;
  const void* grad;  // may be grad_input
  const uint8_t* mask;
  void* grad_input;
};

// CPU: bytes [begin, end) of the mask and the elements that they are of.
using ReluMaskCpu = void(const ReluMask&, int64_t begin, int64_t end);
using ReluMaskBackwardCpu = void(const ReluMaskBackward&, int64_t begin, int64_t end);
using ReluMaskCuda = int(const ReluMask&, void* stream);
using ReluMaskBackwardCuda = int(const ReluMaskBackward&, void* stream);

}  // namespace fastops
