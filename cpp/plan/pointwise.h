#pragma once
// Which kernel of an elementwise op runs on CUDA.
#include <cstdint>

#include "plan/card.h"

namespace fastops::plan::pointwise {

// one_run: every operand is one contiguous run. rows: unit strides along the fastest dimension. strided: any others.
enum class Layout : uint8_t { one_run, rows, strided };
constexpr const char* kLayoutNames[] = {"one run", "rows", "strided"};

// A thread has, of each operand: vector: 16 aligned bytes, behind the last of which of one run an element. row_vector: 16 bytes of a
// row at any alignment. element: one element. The result of an element does not depend on it.
enum class Kernel : uint8_t { vector, row_vector, element };
constexpr const char* kKernelNames[] = {"vector", "row_vector", "element"};

// gated: a gated unit, whose halves of one tensor are rows. numbered: one whose rows have a number each, or a sum.
enum class Of : uint8_t { any, gated, numbered };
constexpr const char* kOfNames[] = {"any", "gated", "numbered"};

struct Rule {
  Layout layout;
  bool aligned;   // what it asks for: one run, or each row, is aligned vectors in every operand
  Of of;          // what it is for
  int64_t above;  // elements
  Kernel kernel;
  const char* why;
};

// clang-format off
inline constexpr Rule kRules[] = {
    // layout,         aligned, of,           above, kernel,             why: measured on one H200; of rows at any alignment on one H100
    {Layout::rows,     false,   Of::numbered, 0,     Kernel::row_vector, "the one kernel that knows rows"},
    {Layout::one_run,  true,    Of::any,      4096,  Kernel::vector,     "one vector a thread, 256 threads, no cache hints: 0.973 of a copy at 67M bf16, the best of what was tried within 1 %"},
    {Layout::one_run,  false,   Of::gated,    4096,  Kernel::row_vector, "unaligned: of one row"},
    {Layout::one_run,  false,   Of::any,      0,     Kernel::element,    "unaligned, or so few that each is to have a thread: how long one thread takes is what counts"},
    {Layout::rows,     false,   Of::gated,    4096,  Kernel::row_vector, "swiglu of 8192x28672 in halves 0.98 of a copy, of 8192x28674 0.69"},
    {Layout::rows,     true,    Of::any,      4096,  Kernel::vector,     "as of one run"},
    {Layout::rows,     false,   Of::any,      0,     Kernel::element,    "as of one run"},
    {Layout::strided,  false,   Of::any,      0,     Kernel::element,    "no two neighbours are surely of one vector"},
};
// clang-format on

constexpr int plan(Layout layout, bool aligned, Of of, int64_t elements) {
  int number = 0;
  for (const Rule& rule : kRules) {
    if (rule.layout == layout && aligned >= rule.aligned && (rule.of == Of::any || rule.of == of) &&
        elements > rule.above)
      return number;
    ++number;
  }
  return number - 1;  // no elements
}

}  // namespace fastops::plan::pointwise
