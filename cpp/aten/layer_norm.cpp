// F.layer_norm: aten keeps a row's mean and rstd as two tensors, of the parameters' dtype where there are some, else of the
// input's; ours are three numbers a row, of which the second is what rounding took from the mean.
#include <cmath>
#include <limits>

#include "aten/norm.h"

namespace fastops::aten {
namespace {

DType statistics_dtype(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias) {
  return *dtype_of(weight ? *weight : bias ? *bias : input);
}

int digits_of(DType t) { return t == DType::bf16 ? 8 : t == DType::f16 ? 11 : t == DType::f32 ? 24 : 53; }

constexpr int64_t kMean = 0, kShift = 1, kRstd = 2;
const int64_t kNumbers = statistics_of(Norm::layer);

// Of rows on the CPU; A is the type that is computed in.
template <class A>
void split(const Tensor& statistics, const Tensor& mean, const Tensor& rstd) {
  const auto* from = static_cast<const A*>(statistics.const_data_ptr());
  auto *m = static_cast<A*>(mean.mutable_data_ptr()), *r = static_cast<A*>(rstd.mutable_data_ptr());
  for (int64_t row = 0, rows = mean.numel(); row < rows; ++row, from += kNumbers) {
    m[row] = from[kMean] + from[kShift];
    r[row] = from[kRstd];
  }
}

template <class A>
A mean_distance(const A* x, int64_t n, A mean) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i] - mean);
  return static_cast<A>(sum / static_cast<double>(n));
}

// What rounding took from a mean is lost. Where it may be more than 4 units in the last place of a deviation, in rows far from 0
// and of means in half precision, it is found again: gradients are then as exact as with our own statistics.
template <class A>
void join(const Tensor& mean, const Tensor& rstd, DType kept, const Tensor& input, int64_t dims,
          const Tensor& statistics) {
  const auto *m = static_cast<const A*>(mean.const_data_ptr()), *r = static_cast<const A*>(rstd.const_data_ptr());
  auto* to = static_cast<A*>(statistics.mutable_data_ptr());
  const double most = std::ldexp(1, digits_of(kept) - std::numeric_limits<A>::digits + 2);
  std::optional<Tensor> wide;
  std::optional<Rows> x;
  for (int64_t row = 0, rows = mean.numel(); row < rows; ++row, to += kNumbers) {
    to[kMean] = m[row];
    to[kShift] = 0;
    to[kRstd] = r[row];
    if (!(std::abs(static_cast<double>(m[row])) * static_cast<double>(r[row]) > most)) continue;
    if (!x) {
      wide = to_dtype(input, accumulate_type(*dtype_of(input)));
      x = as_rows(*wide, dims);
    }
    to[kShift] = mean_distance(static_cast<const A*>(x->data()) + row * x->stride, x->n, m[row]);
  }
}

}  // namespace

Triple native_layer_norm(const Tensor& input, const Sizes& normalized_shape, OptionalTensor weight, OptionalTensor bias,
                         double eps) {
  drop_undefined(weight);
  drop_undefined(bias);
  if (!supports(input, normalized_shape, weight, bias))
    return call<Triple>("fastops::native_layer_norm_before", input, normalized_shape, weight, bias, eps);
  const size_t dims = normalized_shape.size();
  NormOutputs r = norm_forward({.op = "layer_norm",
                                .norm = Norm::layer,
                                .input = input,
                                .residual = nullptr,
                                .weight = weight,
                                .bias = bias,
                                .dims = static_cast<int64_t>(dims),
                                .eps = eps,
                                .weight_offset = 0,
                                .statistics = true});
  const DType computed = accumulate_type(*dtype_of(input)), kept = statistics_dtype(input, weight, bias);
  const std::vector<int64_t> sizes = statistics_shape(input, dims);
  const Shape shape(sizes.data(), sizes.size());
  Tensor mean = allocate(shape, input, computed), rstd = allocate(shape, input, computed);
  (computed == DType::f64 ? split<double> : split<float>)(*r.statistics, mean, rstd);
  return {std::move(r.output), to_dtype(std::move(mean), kept), to_dtype(std::move(rstd), kept)};
}

Triple native_layer_norm_backward(const Tensor& grad, const Tensor& input, const Sizes& normalized_shape,
                                  const Tensor& mean, const Tensor& rstd, OptionalTensor weight, OptionalTensor bias,
                                  const Mask& output_mask) {
  drop_undefined(weight);
  drop_undefined(bias);
  if (!supports(input, normalized_shape, weight, bias) || !same_dtype(grad, input) || !dtype_of(mean) ||
      !dtype_of(rstd))
    return call<Triple>("fastops::native_layer_norm_backward_before", grad, input, normalized_shape, mean, rstd, weight,
                        bias, output_mask);
  const int64_t leading = input.dim() - static_cast<int64_t>(normalized_shape.size());
  const DType computed = accumulate_type(*dtype_of(input));
  std::vector<int64_t> shape(input.sizes().begin(), input.sizes().begin() + leading);
  shape.push_back(kNumbers);
  const Tensor statistics = allocate(Shape(shape.data(), shape.size()), input, computed);
  (computed == DType::f64 ? join<double> : join<float>)(as_contiguous(to_dtype(mean, computed)),
                                                        as_contiguous(to_dtype(rstd, computed)), *dtype_of(mean), input,
                                                        static_cast<int64_t>(normalized_shape.size()), statistics);
  const bool need_weight = output_mask[1] && weight, need_bias = output_mask[2] && bias;
  NormGradients r = norm_backward({.op = "layer_norm_backward",
                                   .forward_op = "layer_norm",
                                   .norm = Norm::layer,
                                   .grad = grad,
                                   .grad_sum = nullptr,
                                   .input_name = "input",
                                   .input = input,
                                   .statistics = statistics,
                                   .weight = weight,
                                   .bias = bias,
                                   .weight_offset = 0,
                                   .need_input = output_mask[0],
                                   .need_weight = need_weight,
                                   .need_bias = need_bias});
  return {or_undefined(output_mask[0], std::move(r.input)), or_undefined(need_weight, std::move(r.weight)),
          or_undefined(need_bias, *std::move(r.bias))};
}

}  // namespace fastops::aten
