#pragma once
// linear on CUDA: whether the library's product adds the bias, and which kernel of ours comes behind it.
#include <cstdint>

#include "core/dtype.h"
#include "plan/card.h"

namespace fastops::plan::linear {

// ---- the bias --------------------------------------------------------------------------------------------------------

// The product of [rows, features] and [outputs, features], with a bias of its dtype. cuBLAS has other kernels with a bias and
// without one. Which are faster was measured on one H200 with the cuBLAS of CUDA 13.0, and stands for every card and version.
struct Product {
  DType dtype;
  int64_t rows, features, outputs;
};

struct BiasRule {
  bool half;                                                                // f16 and bf16, else f32
  int64_t first_row, last_row, features_up_to, outputs_from, numbers_from;  // numbers: of the product
  bool whole_vectors;                                                       // features and outputs are multiples of 8
  bool library;                                                             // it adds the bias
  const char* why;
};

constexpr int64_t kAny = INT64_MAX;

// clang-format off
inline constexpr BiasRule kBias[] = {
    // half, rows,      features, outputs, numbers, vectors, library, why
    {true,   0, kAny,   kAny,     0,       0,       true,    false, "ours was faster in each of 184 sizes, by 7 % on average"},
    {true,   0, kAny,   kAny,     0,       0,       false,   true,  "the product without a bias is slower in one size of eight: f16 20000x768x17 35.8 us, 24.4 with it"},
    {false,  2, 16,     1024,     1,       0,       false,   true,  "without a bias up to 20 times as slow: 16x160x384 31.6 us, 3.0 with it"},
    {false,  5, 11,     4096,     128,     0,       false,   true,  "as up to 1024 features"},
    {false,  512, kAny, 511,      64,      0,       false,   true,  "mostly level; 20000x64x64 13.6 us by ours, 12.9 with it"},
    {false,  512, kAny, kAny,     64,      1 << 21, false,   true,  "mostly level, without a bias up to a fifth slower"},
    {false,  0, kAny,   kAny,     0,       0,       false,   false, "the product without a bias is up to 3 times as fast: 33x1024x1024 12.7 us, 24.1 with it"},
};
// clang-format on

constexpr int bias_rule(const Product& p) {
  const bool whole = p.features % 8 == 0 && p.outputs % 8 == 0;
  int number = 0;
  for (const BiasRule& rule : kBias) {
    if (rule.half == (size_of(p.dtype) == 2) && rule.first_row <= p.rows && p.rows <= rule.last_row &&
        p.features <= rule.features_up_to && p.outputs >= rule.outputs_from &&
        p.rows * p.outputs >= rule.numbers_from && whole >= rule.whole_vectors)
      return number;
    ++number;
  }
  return number - 1;
}
// In f64 the product is the library's for long enough to hide a pass of ours.
constexpr bool library_adds_bias(const Product& p) { return p.dtype != DType::f64 && kBias[bias_rule(p)].library; }

// ---- the epilogue ----------------------------------------------------------------------------------------------------

enum class Kernel : uint8_t {
  pointwise,  // without a bias every number is by itself
  vector,     // a thread has a vector of 16 bytes
  across,     // a vector that may cross rows
  word,       // 4 bytes
  element,
};
constexpr const char* kKernelNames[] = {"pointwise", "vector", "across", "word", "element"};
enum class Bias : uint8_t { none, given, either };

// The output, rows of n elements.
struct Pass {
  int64_t rows, n;
  DType dtype;
  bool bias, aligned, bias_aligned;  // to 16 bytes: the rows' tensors, and the bias

  constexpr int64_t vectors() const { return rows * n / (16 / size_of(dtype)); }
};

struct Rule {
  Kernel kernel;
  Bias bias;
  bool aligned;
  int64_t multiple;  // of so many bytes a row is, beside an aligned bias; 0: of any
  int vectors_each;  // that each thread of the card has, at least
  const char* why;
};

constexpr int kThreads = 256;  // of a block, of which each multiprocessor is to have one

// clang-format off
inline constexpr Rule kForward[] = {
    // kernel,            bias,         aligned, multiple, vectors, why: measured on one H200, us, as taken and as not
    {Kernel::pointwise,   Bias::none,   false,   0,        0, "16384x256x1024 38.96, by rows and columns 40.5"},
    {Kernel::vector,      Bias::given,  true,    16,       1, "32768x256 23.3, without rows and columns in the grid 24.6"},
    {Kernel::across,      Bias::given,  true,    4,        2, "65537x128x769 283, by words 308; where there are fewer, words are as fast"},
    {Kernel::word,        Bias::given,  true,    4,        0, "vectors would leave multiprocessors idle: 16x160x384 4.17, by vectors 4.69"},
    {Kernel::across,      Bias::given,  true,    0,        1, "4096x256x769 35.0, by elements 44.8"},
    {Kernel::element,     Bias::given,  false,   0,        0, "what is left"},
};
inline constexpr Rule kBackward[] = {
    {Kernel::vector,      Bias::either, true,    16,       1, "as forward"},
    {Kernel::word,        Bias::either, true,    4,        0, "vectors would leave multiprocessors idle: 64x1024 12.2, by vectors 12.5"},
    {Kernel::element,     Bias::either, false,   0,        0, "what is left"},
};
// clang-format on

// The number of the first rule that the pass fulfils.
template <int N>
constexpr int plan(const Rule (&rules)[N], const Pass& pass, const Card& card) {
  const int64_t bytes = pass.n * size_of(pass.dtype);
  auto fulfils = [&](const Rule& rule) {
    const bool crosses = rule.kernel == Kernel::across;
    return (rule.bias == Bias::either || (rule.bias == Bias::given) == pass.bias) && (pass.aligned || !rule.aligned) &&
           (rule.multiple == 0 || (pass.bias_aligned && bytes % rule.multiple == 0)) &&
           pass.vectors() >= int64_t{rule.vectors_each} * kThreads * card.multiprocessors &&
           (!crosses || (bytes >= 16 && pass.n < INT32_MAX && pass.dtype != DType::f64));
  };
  for (int number = 0; number < N; ++number)
    if (fulfils(rules[number])) return number;
  return N - 1;
}

}  // namespace fastops::plan::linear
