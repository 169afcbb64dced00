// F.layer_norm: aten keeps a row's mean and rstd as two tensors, on CUDA in the type that is computed in, on the CPU of the
// parameters' dtype where there are some, else of the input's.
#include <cmath>
#include <limits>

#include "aten/norm.h"

namespace fastops::aten {
namespace {

DType dtype_of_parameters(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias) {
  return *dtype_of(weight ? *weight : bias ? *bias : input);
}

int digits_of(DType t) { return t == DType::bf16 ? 8 : t == DType::f16 ? 11 : t == DType::f32 ? 24 : 53; }

// Whether there is a number for each row, as aten's backward has it without asking.
bool is_of_rows(const Tensor& statistics, const Tensor& input, int64_t dims) {
  const int64_t leading = input.dim() - dims;
  int64_t rows = 1;
  for (int64_t d = 0; d < leading; ++d) rows *= input.sizes()[d];
  return dtype_of(statistics) && same_device(statistics, input) && statistics.numel() == rows;
}

template <class A>
A mean_distance(const A* x, int64_t n, A mean) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i] - mean);
  return static_cast<A>(sum / static_cast<double>(n));
}

// What rounding took from a mean is lost. Where it may be more than 4 units in the last place of a deviation, in rows far from 0
// and of means in half precision, the CPU finds it again: gradients are then as exact as with our own statistics.
template <class A>
void find_shift(AtenStatistics& s, DType kept, const Tensor& input) {
  const auto *mean = static_cast<const A*>(s.mean.const_data_ptr()),
             *rstd = static_cast<const A*>(s.rstd.const_data_ptr());
  const double most = std::ldexp(1, digits_of(kept) - std::numeric_limits<A>::digits + 2);
  std::optional<Tensor> wide;
  Rows x;
  A* shift = nullptr;
  for (int64_t row = 0, rows = s.mean.numel(); row < rows; ++row) {
    if (!(std::abs(static_cast<double>(mean[row])) * static_cast<double>(rstd[row]) > most)) continue;
    if (!wide) {
      wide = to_dtype(input, accumulate_type(*dtype_of(input)));
      x = as_rows(*wide, s.dims);
      s.shift = allocate(s.mean.sizes(), input, accumulate_type(*dtype_of(input)));
      fill_zero(*s.shift);
      shift = static_cast<A*>(s.shift->mutable_data_ptr());
    }
    shift[row] = mean_distance(static_cast<const A*>(x.data()) + row * x.stride, x.n, mean[row]);
  }
}

}  // namespace

Triple native_layer_norm(const Tensor& input, const Sizes& normalized_shape, OptionalTensor weight, OptionalTensor bias,
                         double eps) {
  drop_undefined(weight);
  drop_undefined(bias);
  if (!supports(input, normalized_shape, weight, bias))
    return call<Triple>("fastops::native_layer_norm_before", input, normalized_shape, weight, bias, eps);
  const auto dims = static_cast<int64_t>(normalized_shape.size());
  const DType computed = accumulate_type(*dtype_of(input));
  const std::vector<int64_t> sizes = statistics_shape(input, normalized_shape.size());
  const Shape shape(sizes.data(), sizes.size());
  AtenStatistics s{dims, allocate(shape, input, computed), allocate(shape, input, computed), {}};
  NormOutputs r = norm_forward({.op = "layer_norm",
                                .norm = Norm::layer,
                                .input = input,
                                .residual = nullptr,
                                .weight = weight,
                                .bias = bias,
                                .dims = dims,
                                .eps = eps,
                                .weight_offset = 0,
                                .statistics = false,
                                .aten_statistics = &s});
  const DType kept = input.is_cuda() ? computed : dtype_of_parameters(input, weight, bias);
  return {std::move(r.output), to_dtype(std::move(s.mean), kept), to_dtype(std::move(s.rstd), kept)};
}

Triple native_layer_norm_backward(const Tensor& grad, const Tensor& input, const Sizes& normalized_shape,
                                  const Tensor& mean, const Tensor& rstd, OptionalTensor weight, OptionalTensor bias,
                                  const Mask& output_mask) {
  drop_undefined(weight);
  drop_undefined(bias);
  const auto dims = static_cast<int64_t>(normalized_shape.size());
  if (!supports(input, normalized_shape, weight, bias) || !same_dtype(grad, input) ||
      !(is_of_rows(mean, input, dims) && is_of_rows(rstd, input, dims)))
    return call<Triple>("fastops::native_layer_norm_backward_before", grad, input, normalized_shape, mean, rstd, weight,
                        bias, output_mask);
  const DType computed = accumulate_type(*dtype_of(input));
  AtenStatistics s{dims, as_contiguous(to_dtype(mean, computed)), as_contiguous(to_dtype(rstd, computed)), {}};
  if (input.is_cpu()) (computed == DType::f64 ? find_shift<double> : find_shift<float>)(s, *dtype_of(mean), input);
  const bool need_weight = output_mask[1] && weight, need_bias = output_mask[2] && bias;
  NormGradients r = norm_backward({.op = "layer_norm_backward",
                                   .forward_op = "layer_norm",
                                   .norm = Norm::layer,
                                   .grad = grad,
                                   .grad_sum = nullptr,
                                   .input_name = "input",
                                   .input = input,
                                   .statistics = nullptr,
                                   .weight = weight,
                                   .bias = bias,
                                   .weight_offset = 0,
                                   .need_input = output_mask[0],
                                   .need_weight = need_weight,
                                   .need_bias = need_bias,
                                   .aten_statistics = &s});
  return {or_undefined(output_mask[0], std::move(r.input)), or_undefined(need_weight, std::move(r.weight)),
          or_undefined(need_bias, *std::move(r.bias))};
}

}  // namespace fastops::aten
