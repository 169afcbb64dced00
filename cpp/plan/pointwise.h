#pragma once
// Which kernel of an elementwise op runs on CUDA.
#include <cstdint>

#include "plan/card.h"

namespace fastops::plan::pointwise {

enum class Layout : uint8_t { contiguous, strided };

// vectors: a thread has 16 bytes of each operand, and those behind the last 16 one element; else one element. The result of an
// element does not depend on it.
struct Rule {
  Layout layout;
  bool aligned;   // what it asks for: groups of 16 bytes are one aligned vector in every operand
  int64_t above;  // elements
  bool vectors;
  const char* why;
};

// clang-format off
inline constexpr Rule kRules[] = {
    // layout,            aligned, above, vectors, why: measured on one H200
    {Layout::contiguous,  true,    4096,  true,    "one vector a thread, 256 threads, no cache hints: 0.973 of a copy at 67M bf16, the best of what was tried within 1 %"},
    {Layout::contiguous,  false,   0,     false,   "unaligned, or so few that each is to have a thread: how long one thread takes is what counts"},
    {Layout::strided,     true,    4096,  true,    "as of one run"},
    {Layout::strided,     false,   0,     false,   "as of one run"},
};
// clang-format on

constexpr int plan(Layout layout, bool aligned, int64_t elements) {
  int number = 0;
  for (const Rule& rule : kRules) {
    if (rule.layout == layout && aligned >= rule.aligned && elements > rule.above) return number;
    ++number;
  }
  return number - 1;  // no elements
}

}  // namespace fastops::plan::pointwise
