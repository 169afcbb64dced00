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
FASTOPS_CPU_KERNEL(likelihood_merge, LikelihoodMergeCpu);
FASTOPS_CPU_KERNEL(row_total, RowTotalCpu);
FASTOPS_CUDA_KERNEL(likelihood, LikelihoodForwardCuda);
FASTOPS_CUDA_KERNEL(likelihood_backward, LikelihoodBackwardCuda);
FASTOPS_CUDA_KERNEL(likelihood_merge, LikelihoodMergeCuda);
FASTOPS_CUDA_KERNEL(row_total, RowTotalCuda);

namespace {

int64_t class_dim(const char* op, Likelihood of, const Tensor& input) {
  FASTOPS_CHECK(input.dim() > 0, op, "input must have a dimension of classes, got shape []");
  return of == Likelihood::log_prob ? input.dim() - 1 : input.dim() == 1 ? 0 : 1;
}

// int64 and dense, in the order of the rows, whose shape this is.
Tensor as_targets(const char* op, const Tensor& target, const std::vector<int64_t>& shape, const char* first_name,
                  const Tensor& first) {
  check_same_device(op, "target", target, first_name, first);
  FASTOPS_CHECK(same_shape(target.sizes(), shape), op, "target must have shape ", text_of(shape), ", got ",
                text_of(target.sizes()));
  const ScalarType dtype = target.scalar_type();
  FASTOPS_CHECK(dtype == ScalarType::Long || dtype == ScalarType::Byte, op,
                "target must have dtype torch.int64 or torch.uint8, got ", text_of(dtype));
  if (dtype == ScalarType::Long) return as_contiguous(target);
  return as_contiguous(call<Tensor>("aten::_to_copy", target, std::optional(ScalarType::Long), std::nullopt,
                                    std::nullopt, std::nullopt, false, std::nullopt));
}

std::vector<int64_t> without(const Tensor& tensor, int64_t dim) {
  std::vector<int64_t> shape;
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (d != dim) shape.push_back(tensor.size(d));
  return shape;
}

void check_classes(const char* op, const LikelihoodRows& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const int64_t y = a.target[r];
    FASTOPS_CHECK((y >= 0 && y < a.classes) || y == a.ignore_index, op, "target must be 0 to ", a.classes - 1,
                  " or ignore_index ", a.ignore_index, ", got ", y);
  }
}

bool is_cap(double softcap) { return softcap > 0 && std::isfinite(softcap); }

void check_options(const char* op, const LikelihoodOptions& options, DType dtype) {
  FASTOPS_CHECK(!options.softcap || is_cap(as_computed(*options.softcap, dtype)), op,
                "softcap must be finite and greater than 0, got ", *options.softcap);
  FASTOPS_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, op,
                "label_smoothing must be 0 to 1, got ", options.label_smoothing);
}

void run_total(const char* op, const Tensor& device_of, const RowTotal& a) {
  if (!device_of.is_cuda()) return row_total_cpu[isa()](a);
  cuda::Launch launch(op, device_of.get_device_index());
  launch.check(row_total_cuda[launch.group()](a, launch.stream()));
}

// Weights of classes in the type that is computed in, and their sum where it is needed.
struct ClassWeights {
  OptionalTensor weight, sum;

  // `input`: the logits, or the numbers of parts, of which any of our dtypes is another.
  ClassWeights(const char* op, const OptionalTensor& given, const Tensor& input, int64_t classes, bool summed,
               bool of_parts = false) {
    if (!given) return;
    check_same_device(op, "weight", *given, of_parts ? "parts" : "input", input);
    const std::array<int64_t, 1> shape{classes};
    FASTOPS_CHECK(same_shape(given->sizes(), shape), op, "weight must have shape ", text_of(shape), ", got ",
                  text_of(given->sizes()));
    const bool f32 = dtype_of(input) == DType::f32;
    FASTOPS_CHECK(of_parts || same_dtype(*given, input) || dtype_of(*given) == DType::f32, op,
                  "weight must have input's dtype ", text_of(input.scalar_type()), f32 ? "" : " or torch.float32",
                  ", got ", text_of(given->scalar_type()));
    const DType computed = accumulate_type(*dtype_of(input));
    weight = to_dtype(as_contiguous(*given), computed);
    if (!summed) return;
    // aten::sum's order would depend on the threads, on CUDA on the address.
    sum = allocate(Shape(), input, computed);
    run_total(op, input,
              {{const_cast<void*>(weight->const_data_ptr()), computed, 1},
               kNoNumbers,
               classes,
               sum->mutable_data_ptr(),
               computed,
               nullptr});
  }
};

// The part of a problem that both directions have, and the tensors that it points to.
struct Given {
  int64_t dim;
  DType dtype, computed;
  Tensor target;
  TensorRows logits;
  ClassWeights weights;
  LikelihoodRows problem;

  Given(const char* op, Likelihood of, const Tensor& input, int64_t class_dim, const Tensor& given_target,
        const OptionalTensor& weight, const LikelihoodOptions& options)
      : dim(class_dim),
        dtype(*dtype_of(input)),
        computed(accumulate_type(dtype)),
        target(as_targets(op, given_target, without(input, dim), "input", input)),
        logits(rows_along(input, dim, dtype)),
        weights(op, weight, input, options.classes.value_or(input.size(dim)), options.label_smoothing != 0) {
    check_options(op, options, dtype);
    const int64_t classes = options.classes.value_or(logits.n);
    FASTOPS_CHECK(options.first_class >= 0 && options.first_class <= classes - logits.n, op, "input's ", logits.n,
                  " classes must be some of ", classes, ", got first_class ", options.first_class);
    FASTOPS_CHECK(logits.n > 0 || target.numel() == 0, op, "input must have a class at least, got shape ",
                  text_of(input.sizes()));
    problem = {of,
               dtype,
               target.numel(),
               logits.n,
               options.first_class,
               classes,
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

// The CUDA kernels need a scale that keeps the order of numbers.
bool scales_to_zero(const Tensor& input, const LikelihoodForward& a) {
  return as_computed(a.scale, a.dtype) == 0 && input.is_cuda();
}

void run_forward(const char* op, const Tensor& input, int64_t dim, LikelihoodForward& a) {
  OptionalTensor zeros;  // or NaN of an infinity
  if (scales_to_zero(input, a) && input.numel() > 0) {
    zeros = as_contiguous(call<Tensor>("fastops::axpby", input, input, 0.0, 0.0));
    a.logits = rows_along(*zeros, dim, a.dtype).view;
    a.scale = 1;
  }
  run_rows(op, input, a, likelihood_cpu, likelihood_segments_cpu, likelihood_cuda);
}

// On CUDA they may lie apart; where they are no multiple of 16 bytes apart, one would be read while its neighbour is written.
int64_t stride_of_rows(const char* op, const Tensor& out, const Tensor& input, int64_t dim) {
  check_alike(op, "out", out, "input", input);
  const TensorRows rows = rows_along(out, dim, *dtype_of(out));
  const int64_t stride = rows.count > 1 ? rows.view.inner_stride : rows.n;
  const bool apart = out.is_cuda() && stride * size_of(*dtype_of(out)) % 16 == 0 && starts_at(out.const_data_ptr(), 16);
  FASTOPS_CHECK(
      !rows.copy && rows.view.inner >= rows.count && (stride == rows.n || apart), op,
      "out must have dense rows, or on CUDA rows that begin at multiples of 16 bytes; dense rows of a multiple of 16 "
      "bytes must begin at one too; got strides ",
      text_of(out.strides()), ", the first at ", reinterpret_cast<uintptr_t>(out.const_data_ptr()) % 16,
      " bytes behind a multiple of 16");
  return stride;
}

// To a new tensor, or to `out`, which may be the input.
Tensor run_backward(const char* op, const Tensor& input, int64_t dim, const OptionalTensor& out,
                    LikelihoodBackward& a) {
  std::optional<RowResult> result;
  if (out) {
    a.grad_input = out->mutable_data_ptr();
    a.grad_input_stride = stride_of_rows(op, *out, input, dim);
  } else {
    result.emplace(input, dim, a.dtype);
    a.grad_input = result->data();
    a.grad_input_stride = a.n;
  }
  run_rows(op, input, a, likelihood_backward_cpu, likelihood_backward_segments_cpu, likelihood_backward_cuda);
  return out ? *out : std::move(*result).view();
}

enum class Reduction : int64_t { none, mean, sum };

Reduction as_reduction(const char* op, int64_t reduction) {
  FASTOPS_CHECK(reduction >= 0 && reduction <= 2, op, "reduction must be 0 (none), 1 (mean) or 2 (sum), got ",
                reduction);
  return static_cast<Reduction>(reduction);
}

// What cross_entropy returns, and where the forward writes it: losses that are added up go to a scratch first.
class LossResults {
 public:
  LossResults(Shape rows, const Tensor& device_of, Reduction how, DType computed, DType result, LikelihoodForward& a)
      : how_(how),
        result_(result),
        loss_(allocate(how == Reduction::none ? rows : Shape(), device_of, result)),
        lse_(allocate(rows, device_of, computed)),
        total_(how == Reduction::mean ? allocate(Shape(), device_of, computed) : nothing(device_of, computed)) {
    a.result = written_numbers(loss_);
    a.lse = written_numbers(lse_);
    if (how != Reduction::none) a.result = {losses_.allocate(device_of, computed, a.rows), computed, 1};
    if (how == Reduction::mean) a.row_weight = {weights_.allocate(device_of, computed, a.rows), computed, 1};
  }
  ThreeTensors finish(const char* op, const Tensor& device_of, const LikelihoodForward& a) && {
    if (how_ != Reduction::none)
      run_total(op, device_of,
                {a.result, a.row_weight, a.rows, loss_.mutable_data_ptr(), result_,
                 how_ == Reduction::mean ? total_.mutable_data_ptr() : nullptr});
    return {std::move(loss_), std::move(lse_), std::move(total_)};
  }

 private:
  Reduction how_;
  DType result_;
  Tensor loss_, lse_, total_;
  Scratch losses_, weights_;
};

ThreeTensors log_prob_results(Shape rows, const Tensor& device_of, DType computed, bool entropy, LikelihoodForward& a) {
  Tensor log_prob = allocate(rows, device_of, computed), lse = allocate(rows, device_of, computed);
  Tensor of_entropy = entropy ? allocate(rows, device_of, computed) : nothing(device_of, computed);
  a.result = written_numbers(log_prob);
  a.lse = written_numbers(lse);
  if (entropy) a.entropy = written_numbers(of_entropy);
  a.needs_entropy = entropy;
  return {std::move(log_prob), std::move(of_entropy), std::move(lse)};
}

// Parts in place of logits.
struct GivenParts {
  std::vector<int64_t> shape;  // of the rows
  OptionalTensor target;
  ClassWeights weights;
  Tensor parts;
  LikelihoodMerge problem;

  GivenParts(const char* op, Likelihood of, const Tensor& given, const OptionalTensor& given_target,
             const OptionalTensor& weight, const LikelihoodOptions& options)
      : shape(rows_of(op, given)),
        weights(op, weight, given, options.classes.value_or(0), options.label_smoothing != 0, true),
        parts(as_contiguous(given)) {
    if (given_target) target = as_targets(op, *given_target, shape, "parts", given);
    const DType dtype = *dtype_of(given);
    check_options(op, options, dtype);
    problem = {};
    static_cast<LikelihoodRows&>(problem) = {of,
                                             dtype,
                                             parts.numel() / (parts.size(0) * kPartNumbers),
                                             0,
                                             0,
                                             options.classes.value_or(0),
                                             {},
                                             static_cast<const int64_t*>(data_or_null(target)),
                                             options.ignore_index,
                                             options.scale,
                                             options.softcap.value_or(0),
                                             options.label_smoothing,
                                             options.z_loss,
                                             data_or_null(weights.weight),
                                             data_or_null(weights.sum)};
    problem.found = parts.const_data_ptr();
    problem.count = parts.size(0);
  }
  // [count, *, kPartNumbers] without its first and its last dimension.
  static std::vector<int64_t> rows_of(const char* op, const Tensor& parts) {
    const int64_t last = parts.dim() - 1;
    FASTOPS_CHECK(last > 0 && parts.size(0) > 0 && parts.size(last) == kPartNumbers, op,
                  "parts must have shape [count, *, ", kPartNumbers, "], got ", text_of(parts.sizes()));
    const DType dtype = *dtype_of(parts);
    FASTOPS_CHECK(dtype == accumulate_type(dtype), op, "parts must have dtype torch.float32 or torch.float64, got ",
                  text_of(parts.scalar_type()));
    return {parts.sizes().begin() + 1, parts.sizes().end() - 1};
  }
};

void run_merge(const char* op, const Tensor& parts, LikelihoodMerge& a) {
  if (scales_to_zero(parts, a)) a.scale = 1;  // the parts are of zeros
  if (a.rows == 0) return;
  if (parts.is_cuda()) {
    cuda::Launch launch(op, parts.get_device_index());
    launch.check(likelihood_merge_cuda[launch.group()](a, launch.stream()));
  } else {
    if (a.target) check_classes(op, a);
    run_on_threads(a.rows, a.count * kPartNumbers * size_of(a.dtype),
                   [&, kernel = likelihood_merge_cpu[isa()]](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
}

}  // namespace

ThreeTensors cross_entropy_forward(const char* op, const Tensor& input, const Tensor& target,
                                   const OptionalTensor& weight, int64_t reduction, const LikelihoodOptions& options,
                                   std::optional<ScalarType> dtype) {
  const Reduction how = as_reduction(op, reduction);
  const Given rows(op, Likelihood::cross_entropy, input, class_dim(op, Likelihood::cross_entropy, input), target,
                   weight, options);
  LikelihoodForward a{rows.problem};
  LossResults results(rows.shape(), input, how, rows.computed, dtype ? *dtype_of(*dtype) : rows.dtype, a);
  if (input.is_cpu()) check_classes(op, a);
  run_forward(op, input, rows.dim, a);
  return std::move(results).finish(op, input, a);
}

ThreeTensors cross_entropy_merge(const char* op, const Tensor& parts, const Tensor& target,
                                 const OptionalTensor& weight, int64_t reduction, const LikelihoodOptions& options,
                                 std::optional<ScalarType> dtype) {
  const Reduction how = as_reduction(op, reduction);
  const GivenParts rows(op, Likelihood::cross_entropy, parts, target, weight, options);
  LikelihoodMerge a = rows.problem;
  LossResults results(rows.shape, parts, how, a.dtype, dtype ? *dtype_of(*dtype) : a.dtype, a);
  run_merge(op, parts, a);
  return std::move(results).finish(op, parts, a);
}

Tensor cross_entropy_backward(const char* op, const Tensor& grad, const OptionalTensor& grad_lse, const Tensor& input,
                              const Tensor& target, const Tensor& lse, const Tensor& total,
                              const OptionalTensor& weight, int64_t reduction, const LikelihoodOptions& options,
                              const OptionalTensor& out) {
  const Reduction how = as_reduction(op, reduction);
  const Given rows(op, Likelihood::cross_entropy, input, class_dim(op, Likelihood::cross_entropy, input), target,
                   weight, options);
  const bool one = how != Reduction::none;
  const GivenNumbers g(op, "grad", grad, one ? Shape() : rows.shape(), "input", input);
  const GivenNumbers of_lse(op, "lse", lse, rows.shape(), "input", input);
  GivenNumbers divisor, g_lse;
  if (how == Reduction::mean) divisor = GivenNumbers(op, "total", total, Shape(), "input", input);
  if (grad_lse) g_lse = GivenNumbers(op, "grad_lse", *grad_lse, rows.shape(), "input", input);
  LikelihoodBackward a{rows.problem, of_lse.get(), g.get(),    divisor.get(),
                       g_lse.get(),  kNoNumbers,   kNoNumbers, nullptr};
  return run_backward(op, input, rows.dim, out, a);
}

ThreeTensors log_prob_forward(const char* op, const Tensor& input, const Tensor& target,
                              const LikelihoodOptions& options, bool entropy) {
  const Given rows(op, Likelihood::log_prob, input, class_dim(op, Likelihood::log_prob, input), target, std::nullopt,
                   options);
  LikelihoodForward a{rows.problem};
  ThreeTensors results = log_prob_results(rows.shape(), input, rows.computed, entropy, a);
  if (input.is_cpu()) check_classes(op, a);
  run_forward(op, input, rows.dim, a);
  return results;
}

ThreeTensors log_prob_merge(const char* op, const Tensor& parts, const Tensor& target, const LikelihoodOptions& options,
                            bool entropy) {
  const GivenParts rows(op, Likelihood::log_prob, parts, target, std::nullopt, options);
  LikelihoodMerge a = rows.problem;
  ThreeTensors results = log_prob_results(rows.shape, parts, a.dtype, entropy, a);
  run_merge(op, parts, a);
  return results;
}

Tensor likelihood_join(const char* op, const Tensor& parts, const LikelihoodOptions& options, bool entropy) {
  const GivenParts rows(op, Likelihood::log_prob, parts, std::nullopt, std::nullopt, options);
  Tensor part = allocate(Shape(parts.sizes().data() + 1, parts.dim() - 1), parts, rows.problem.dtype);
  LikelihoodMerge a = rows.problem;
  a.parts = part.mutable_data_ptr();
  a.needs_entropy = entropy;
  run_merge(op, parts, a);
  return part;
}

Tensor likelihood_partial(const char* op, const Tensor& input, const Tensor& target, int64_t dim,
                          const OptionalTensor& weight, const LikelihoodOptions& options, bool entropy) {
  FASTOPS_CHECK(!entropy || options.label_smoothing == 0, op, "label_smoothing must be 0 beside an entropy, got ",
                options.label_smoothing);
  const Likelihood of = entropy ? Likelihood::log_prob : Likelihood::cross_entropy;
  const Given rows(op, of, input, wrap_dim(op, dim, "input", input), target, weight, options);
  std::vector<int64_t> shape(rows.shape().begin(), rows.shape().end());
  shape.push_back(kPartNumbers);
  Tensor parts = allocate(shape, input, rows.computed);
  LikelihoodForward a{rows.problem};
  a.parts = parts.mutable_data_ptr();
  a.needs_entropy = entropy;
  run_forward(op, input, rows.dim, a);
  return parts;
}

Tensor log_prob_backward(const char* op, const Tensor& grad, const OptionalTensor& grad_entropy, const Tensor& input,
                         const Tensor& target, const Tensor& lse, const Tensor& entropy,
                         const LikelihoodOptions& options, const OptionalTensor& out) {
  const Given rows(op, Likelihood::log_prob, input, class_dim(op, Likelihood::log_prob, input), target, std::nullopt,
                   options);
  const GivenNumbers g(op, "grad", grad, rows.shape(), "input", input);
  const GivenNumbers of_lse(op, "lse", lse, rows.shape(), "input", input);
  GivenNumbers of_entropy, g_entropy;
  if (grad_entropy) {
    of_entropy = GivenNumbers(op, "entropy", entropy, rows.shape(), "input", input);
    g_entropy = GivenNumbers(op, "grad_entropy", *grad_entropy, rows.shape(), "input", input);
  }
  LikelihoodBackward a{rows.problem, of_lse.get(),     g.get(),         kNoNumbers,
                       kNoNumbers,   of_entropy.get(), g_entropy.get(), nullptr};
  return run_backward(op, input, rows.dim, out, a);
}

}  // namespace fastops
