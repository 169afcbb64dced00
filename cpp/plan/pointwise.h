#pragma once
// Which kernel of an elementwise op runs on CUDA.
#include <cstdint>

#include "plan/card.h"

namespace fastops::plan::pointwise {

// one_run: every operand is one contiguous run. rows: unit strides along the fastest dimension. strided: any others.
enum class Layout : uint8_t { one_run, rows, strided };
constexpr const char* kLayoutNames[] = {"one run", "rows", "strided"};

// A thread has, of each operand: vector: 16 aligned bytes, behind the last of which an element. row_vector: 16 bytes of a row at any
// alignment. element: one element. The result of an element does not depend on it.
enum class Kernel : uint8_t { vector, row_vector, element };
constexpr const char* kKernelNames[] = {"vector", "row_vector", "element"};

struct Rule {
  Layout layout;
  bool aligned;   // what it asks for: a run of aligned vectors in every operand
  bool numbers;   // what it is for: rows that have a number each, or a sum
  int64_t above;  // elements
  Kernel kernel;
  const char* why;
};

// clang-format off
inline constexpr Rule kRules[] = {
    // layout,         aligned, numbers, above, kernel,             why: measured on one H200
    {Layout::rows,     false,   true,    0,     Kernel::row_vector, "the one kernel that knows rows"},
    {Layout::one_run,  true,    false,   4096,  Kernel::vector,     "one vector a thread, 256 threads, no cache hints: 0.973 of a copy at 67M bf16, the best of what was tried within 1 %"},
    {Layout::one_run,  false,   false,   4096,  Kernel::row_vector, "unaligned: of one row"},
    {Layout::one_run,  false,   false,   0,     Kernel::element,    "so few that each is to have a thread: how long one thread takes is what counts"},
    {Layout::rows,     false,   false,   4096,  Kernel::row_vector, "as of one run"},
    {Layout::rows,     false,   false,   0,     Kernel::element,    "as of one run"},
    {Layout::strided,  false,   false,   0,     Kernel::element,    "no two neighbours are surely of one vector"},
};
// clang-format on

constexpr int plan(Layout layout, bool aligned, bool numbers, int64_t elements) {
  int number = 0;
  for (const Rule& rule : kRules) {
    if (rule.layout == layout && aligned >= rule.aligned && numbers == rule.numbers && elements > rule.above)
      return number;
    ++number;
  }
  return number - 1;  // no elements
}

}  // namespace fastops::plan::pointwise
