#pragma once
// lltm on CUDA: whether a step is one kernel, products included, or two products with a kernel for the cell.
#include <cstdint>

namespace fastops::plan::lltm {

struct Step {
  int64_t batch, inputs, weights;  // inputs: features and state; weights: numbers of the matrix
};

struct Rule {
  int64_t batch_up_to, inputs_up_to, weights_up_to;
  int rows;  // that the one kernel is for; 0: products
  const char* why;
};

// clang-format off
inline constexpr Rule kRules[] = {
    // batch,    inputs,    weights,   rows, why: measured on one H200, us, backward, float32
    {8,          1024,      1 << 17,   8,  "8 x 32 features, 128 of state 5.97, the kernel of sixteen 9.62"},
    {16,         1024,      1 << 17,   16, "16 x 32 features, 128 of state 9.62, by products 60.3"},
    {INT64_MAX,  INT64_MAX, INT64_MAX, 0,  "batch 32: 12.9, one kernel 16.0; state 256: 12.7, one kernel 18.2"},
};
// clang-format on
constexpr int64_t kMostRows = 16;

constexpr int plan(const Step& step) {
  int number = 0;
  for (const Rule& rule : kRules) {
    if (step.batch <= rule.batch_up_to && step.inputs <= rule.inputs_up_to && step.weights <= rule.weights_up_to)
      return number;
    ++number;
  }
  return number - 1;
}

}  // namespace fastops::plan::lltm
