#include "host/likelihood.h"

#include <cmath>

#include "host/row.h"
#include "host/row_numbers.h"

namespace fastops {

template <>
inline constexpr bool kWritesRows<LikelihoodForward> = false;
template <>
inline constexpr bool kSumsRows<LikelihoodBackward> = false;

FASTOPS_CPU_KERNEL(likelihood, RowsCpu<LikelihoodForward>);
FASTOPS_CPU_KERNEL(likelihood_segments, RowSegmentsCpu<LikelihoodForward>);
FASTOPS_CPU_KERNEL(likelihood_backward, RowsCpu<LikelihoodBackward>);
FASTOPS_CPU_KERNEL(likelihood_backward_segments, RowSegmentsCpu<LikelihoodBackward>);
FASTOPS_CPU_KERNEL(row_total, RowTotalCpu);
FASTOPS_CUDA_KERNEL(likelihood, LikelihoodForwardCuda);
FASTOPS_CUDA_KERNEL(likelihood_backward, LikelihoodBackwardCuda);
FASTOPS_CUDA_KERNEL(row_total, RowTotalCuda);

namespace {

int64_t class_dim(const char* op, Likelihood of, const Tensor& input) {
  FASTOPS_CHECK(input.dim() > 0, op, "input must have a dimension of classes, got shape []");
  return of == Likelihood::log_prob ? input.dim() - 1 : input.dim() == 1 ? 0 : 1;
}

// int64 and dense, in the order of rows_along().
Tensor as_targets(const char* op, const Tensor& target, const Tensor& input, int64_t dim) {
  check_same_device(op, "target", target, "input", input);
  std::vector<int64_t> shape;
  for (int64_t d = 0; d < input.dim(); ++d)
    if (d != dim) shape.push_back(input.size(d));
  FASTOPS_CHECK(same_shape(target.sizes(), shape), op, "target must have shape ", text_of(shape), ", got ",
                text_of(target.sizes()));
  const ScalarType dtype = target.scalar_type();
  FASTOPS_CHECK(dtype == ScalarType::Long || dtype == ScalarType::Byte, op,
                "target must have dtype torch.int64 or torch.uint8, got ", text_of(dtype));
  if (dtype == ScalarType::Long) return as_contiguous(target);
  return as_contiguous(call<Tensor>("aten::_to_copy", target, std::optional(ScalarType::Long), std::nullopt,
                                    std::nullopt, std::nullopt, false, std::nullopt));
}

void check_classes(const char* op, const LikelihoodRows& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t y = a.target[r];
    FASTOPS_CHECK((y >= 0 && y < a.n) || y == a.ignore_index, op, "target must be 0 to ", a.n - 1, " or ignore_index ",
                  a.ignore_index, ", got ", y);
  }
}

// Weights of classes in the type that is computed in, and their sum where it is needed.
struct ClassWeights {
  OptionalTensor weight, sum;

  ClassWeights(const char* op, const OptionalTensor& given, const Tensor& input, int64_t classes, bool summed) {
    if (!given) return;
    check_same_device(op, "weight", *given, "input", input);
    const std::array<int64_t, 1> shape{classes};
    FASTOPS_CHECK(same_shape(given->sizes(), shape), op, "weight must have shape ", text_of(shape), ", got ",
                  text_of(given->sizes()));
    const bool f32 = dtype_of(input) == DType::f32;
    FASTOPS_CHECK(same_dtype(*given, input) || dtype_of(*given) == DType::f32, op, "weight must have input's dtype ",
                  text_of(input.scalar_type()), f32 ? "" : " or torch.float32", ", got ",
                  text_of(given->scalar_type()));
    const DType computed = accumulate_type(*dtype_of(input));
    weight = to_dtype(as_contiguous(*given), computed);
    if (!summed) return;
    if (!input.is_cpu()) {
      sum = call<Tensor>("aten::sum", *weight, std::optional<ScalarType>());
      return;
    }
    // aten::sum's order would depend on the threads.
    sum = allocate(Shape(), input, computed);
    const RowTotal all{{const_cast<void*>(weight->const_data_ptr()), computed, 1},
                       kNoNumbers,
                       classes,
                       sum->mutable_data_ptr(),
                       computed,
                       nullptr};
    row_total_cpu[isa()](all);
  }
};

bool is_cap(double softcap) { return softcap > 0 && std::isfinite(softcap); }

// The part of a problem that both directions have, and the tensors that it points to.
struct Given {
  int64_t dim;
  DType dtype, computed;
  Tensor target;
  TensorRows logits;
  ClassWeights weights;
  LikelihoodRows problem;

  Given(const char* op, Likelihood of, const Tensor& input, const Tensor& given_target, const OptionalTensor& weight,
        const LikelihoodOptions& options)
      : dim(class_dim(op, of, input)),
        dtype(*dtype_of(input)),
        computed(accumulate_type(dtype)),
        target(as_targets(op, given_target, input, dim)),
        logits(rows_along(input, dim)),
        weights(op, weight, input, input.size(dim), options.label_smoothing != 0) {
    FASTOPS_CHECK(!options.softcap || is_cap(as_computed(*options.softcap, dtype)), op,
                  "softcap must be finite and greater than 0, got ", *options.softcap);
    FASTOPS_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, op,
                  "label_smoothing must be 0 to 1, got ", options.label_smoothing);
    FASTOPS_CHECK(logits.n > 0 || target.numel() == 0, op, "input must have a class at least, got shape ",
                  text_of(input.sizes()));
    problem = {of,
               dtype,
               target.numel(),
               logits.n,
               logits.view,
               static_cast<const int64_t*>(target.const_data_ptr()),
               options.ignore_index,
               options.scale,
               options.softcap.value_or(0),
               options.label_smoothing,
               options.z_loss,
               data_or_null(weights.weight),
               data_or_null(weights.sum)};
  }
  Shape shape() const { return target.sizes(); }
};

void run_forward(const char* op, const Tensor& input, LikelihoodForward& a) {
  if (input.is_cpu()) check_classes(op, a);
  // The CUDA kernels need a scale that keeps the order of numbers; what this leaves is 0, or NaN of an infinity.
  OptionalTensor zeros;
  if (as_computed(a.scale, a.dtype) == 0 && input.is_cuda() && input.numel() > 0) {
    zeros = as_contiguous(call<Tensor>("fastops::axpby", input, input, 0.0, 0.0));
    a.logits = rows_along(*zeros, class_dim(op, a.of, input)).view;
    a.scale = 1;
  }
  run_rows(op, input, a, likelihood_cpu, likelihood_segments_cpu, likelihood_cuda);
}

void run_total(const char* op, const Tensor& device_of, const RowTotal& a) {
  if (!device_of.is_cuda()) return row_total_cpu[isa()](a);
  cuda::Launch launch(op, device_of.get_device_index());
  launch.check(row_total_cuda[launch.group()](a, launch.stream()));
}

Tensor run_backward(const char* op, const Tensor& input, int64_t dim, LikelihoodBackward& a) {
  RowResult grad_input(input, dim, a.dtype);
  a.grad_input = grad_input.data();
  run_rows(op, input, a, likelihood_backward_cpu, likelihood_backward_segments_cpu, likelihood_backward_cuda);
  return std::move(grad_input).view();
}

enum class Reduction : int64_t { none, mean, sum };

Reduction as_reduction(const char* op, int64_t reduction) {
  FASTOPS_CHECK(reduction >= 0 && reduction <= 2, op, "reduction must be 0 (none), 1 (mean) or 2 (sum), got ",
                reduction);
  return static_cast<Reduction>(reduction);
}

}  // namespace

ThreeTensors cross_entropy_forward(const char* op, const Tensor& input, const Tensor& target,
                                   const OptionalTensor& weight, int64_t reduction, const LikelihoodOptions& options,
                                   std::optional<ScalarType> dtype) {
  const Reduction how = as_reduction(op, reduction);
  const Given rows(op, Likelihood::cross_entropy, input, target, weight, options);
  const DType computed = rows.computed, result = dtype ? *dtype_of(*dtype) : rows.dtype;
  const bool one = how != Reduction::none, mean = how == Reduction::mean;
  Tensor loss = allocate(one ? Shape() : rows.shape(), input, result), lse = allocate(rows.shape(), input, computed);
  Tensor total = mean ? allocate(Shape(), input, computed) : nothing(input, computed);
  LikelihoodForward a{rows.problem, written_numbers(loss), written_numbers(lse), kNoNumbers, kNoNumbers};
  Scratch losses, weights;
  if (one) a.result = {losses.allocate(input, computed, a.rows), computed, 1};
  if (mean) a.row_weight = {weights.allocate(input, computed, a.rows), computed, 1};
  run_forward(op, input, a);
  if (one)
    run_total(
        op, input,
        {a.result, a.row_weight, a.rows, loss.mutable_data_ptr(), result, mean ? total.mutable_data_ptr() : nullptr});
  return {std::move(loss), std::move(lse), std::move(total)};
}

Tensor cross_entropy_backward(const char* op, const Tensor& grad, const OptionalTensor& grad_lse, const Tensor& input,
                              const Tensor& target, const Tensor& lse, const Tensor& total,
                              const OptionalTensor& weight, int64_t reduction, const LikelihoodOptions& options) {
  const Reduction how = as_reduction(op, reduction);
  const Given rows(op, Likelihood::cross_entropy, input, target, weight, options);
  const bool one = how != Reduction::none;
  const GivenNumbers g(op, "grad", grad, one ? Shape() : rows.shape(), "input", input);
  const GivenNumbers of_lse(op, "lse", lse, rows.shape(), "input", input);
  GivenNumbers divisor, g_lse;
  if (how == Reduction::mean) divisor = GivenNumbers(op, "total", total, Shape(), "input", input);
  if (grad_lse) g_lse = GivenNumbers(op, "grad_lse", *grad_lse, rows.shape(), "input", input);
  LikelihoodBackward a{rows.problem, of_lse.get(), g.get(),    divisor.get(),
                       g_lse.get(),  kNoNumbers,   kNoNumbers, nullptr};
  return run_backward(op, input, rows.dim, a);
}

ThreeTensors log_prob_forward(const char* op, const Tensor& input, const Tensor& target,
                              const LikelihoodOptions& options, bool entropy) {
  const Given rows(op, Likelihood::log_prob, input, target, std::nullopt, options);
  const DType computed = rows.computed;
  Tensor log_prob = allocate(rows.shape(), input, computed), lse = allocate(rows.shape(), input, computed);
  Tensor of_entropy = entropy ? allocate(rows.shape(), input, computed) : nothing(input, computed);
  LikelihoodForward a{rows.problem, written_numbers(log_prob), written_numbers(lse), kNoNumbers,
                      entropy ? written_numbers(of_entropy) : kNoNumbers};
  run_forward(op, input, a);
  return {std::move(log_prob), std::move(of_entropy), std::move(lse)};
}

Tensor log_prob_backward(const char* op, const Tensor& grad, const OptionalTensor& grad_entropy, const Tensor& input,
                         const Tensor& target, const Tensor& lse, const Tensor& entropy,
                         const LikelihoodOptions& options) {
  const Given rows(op, Likelihood::log_prob, input, target, std::nullopt, options);
  const GivenNumbers g(op, "grad", grad, rows.shape(), "input", input);
  const GivenNumbers of_lse(op, "lse", lse, rows.shape(), "input", input);
  GivenNumbers of_entropy, g_entropy;
  if (grad_entropy) {
    of_entropy = GivenNumbers(op, "entropy", entropy, rows.shape(), "input", input);
    g_entropy = GivenNumbers(op, "grad_entropy", *grad_entropy, rows.shape(), "input", input);
  }
  LikelihoodBackward a{rows.problem, of_lse.get(),     g.get(),         kNoNumbers,
                       kNoNumbers,   of_entropy.get(), g_entropy.get(), nullptr};
  return run_backward(op, input, rows.dim, a);
}

}  // namespace fastops
