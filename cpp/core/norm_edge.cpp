#include "core/norm_edge.h"

#include <limits>

#include "host/mixed_norm.h"
#include "plan/norm_backward.h"

namespace fastops {

FASTOPS_CPU_KERNEL(norm_forward, NormForwardCpu);
FASTOPS_CPU_KERNEL(norm_forward_segments, NormForwardSegmentsCpu);
FASTOPS_CPU_KERNEL(norm_backward, NormBackwardCpu);
FASTOPS_CPU_KERNEL(norm_backward_segments, NormBackwardSegmentsCpu);
FASTOPS_CUDA_KERNEL(norm_forward, NormForwardCuda);
// What runs on the current device; it says how many chunks of rows there are, and how they are gathered.
FASTOPS_CUDA_KERNEL(norm_backward_plan, plan::norm_backward::Plan(const NormBackward&));
FASTOPS_CUDA_KERNEL(norm_backward, int(const NormBackward&, const plan::norm_backward::Plan&, void* stream));

static Shape leading_of(const Tensor& input, int64_t dims) { return Shape(input.sizes().data(), input.dim() - dims); }
static Shape trailing_of(const Tensor& input, int64_t dims) {
  return Shape(input.sizes().data() + input.dim() - dims, dims);
}

// The dimensions that are not normalised over, and one of a layer norm's numbers.
static std::vector<int64_t> statistics_shape(Norm norm, const Tensor& input, int64_t dims) {
  const Shape leading = leading_of(input, dims);
  std::vector<int64_t> shape(leading.begin(), leading.end());
  if (norm == Norm::layer) shape.push_back(NormStatistics::numbers_of(norm));
  return shape;
}

NormStatistics AtenStatistics::pointers() const {
  auto data = [](const Tensor& t) { return const_cast<void*>(t.const_data_ptr()); };
  return {data(mean), shift ? data(*shift) : nullptr, data(rstd), 1};
}

static void check_dtype(const char* op, const char* name, const Tensor& t) {
  FASTOPS_CHECK(dtype_of(t), op, name, " must be floating point, got ", text_of(t.scalar_type()));
}

// Dtypes need not be input's: host/mixed_norm.h.
static void check_rows(const char* op, const char* name, const Tensor& t, const char* input_name, const Tensor& input) {
  check_same_device(op, name, t, input_name, input);
  check_dtype(op, name, t);
  FASTOPS_CHECK(same_shape(t.sizes(), input.sizes()), op, name, " must have ", input_name, "'s shape ",
                text_of(input.sizes()), ", got ", text_of(t.sizes()));
}

static void check_parameters(const char* op, Shape shape, const OptionalTensor& weight, const OptionalTensor& bias,
                             const char* input_name, const Tensor& input) {
  auto check = [&](const char* name, const Tensor& t) {
    check_same_device(op, name, t, input_name, input);
    check_dtype(op, name, t);
    FASTOPS_CHECK(same_shape(t.sizes(), shape), op, name, " must have shape ", text_of(shape), ", got ",
                  text_of(t.sizes()));
  };
  if (weight) check("weight", *weight);
  if (bias) check("bias", *bias);
}

static bool share_segments(int64_t count, int64_t rows, int64_t n, DType dtype) {
  return plan::cpu::shares_segments(count, rows, n, dtype, torch::stable::get_num_threads());
}

// The passes over the segments of `count` tasks of `rows_each` whole rows.
template <class Kernel, class Arguments>
static void run_segments(Kernel* kernel, const Arguments& a, const Tensor& input, int64_t count, int64_t rows_each,
                         bool sums) {
  const DType stat = accumulate_type(a.dtype);
  const int64_t segments = plan::cpu::segments(a.n, stat);
  Scratch scratch;
  auto* found = static_cast<double*>(scratch.allocate(input, DType::f64, a.rows * segments * kRowFound));
  for (Pass pass : {Pass::sums, Pass::write})
    if (pass == Pass::write || sums)
      run_on_threads(count * segments, rows_each * plan::cpu::kSegmentBytes / size_of(stat) * size_of(a.dtype),
                     [&](int64_t begin, int64_t end) { kernel(a, pass, found, begin, end); });
}

// The CUDA kernels of a layer norm have no offset: they are given the sum, in the type that they compute in, as theirs of an
// rms norm add it up.
template <class Call>
static void add_offset(Call& c) {
  if (c.norm != Norm::layer || !c.weight || c.weight_offset == 0) return;
  const Tensor weight = to_dtype(*std::move(c.weight), accumulate_type(*dtype_of(c.input)));
  const Tensor ones =
      call<Tensor>("aten::ones_like", weight, std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
  c.weight = call<Tensor>("fastops::axpby", weight, ones, 1.0, c.weight_offset);
  c.weight_offset = 0;
}

double rms_eps(std::optional<double> eps, const Tensor& normalized) {
  if (eps) return *eps;
  return dtype_of(normalized) == DType::f64 ? std::numeric_limits<double>::epsilon()
                                            : std::numeric_limits<float>::epsilon();
}

NormOutputs norm_forward(NormForwardCall c) {
  const Tensor& input = c.input;
  FASTOPS_CHECK(c.dims >= 1 && c.dims <= input.dim(), c.op, "dims must be 1 to input's ", input.dim(), ", got ",
                c.dims);
  check_parameters(c.op, trailing_of(input, c.dims), c.weight, c.bias, "input", input);
  if (c.residual) check_rows(c.op, "residual", *c.residual, "input", input);
  if (!one_dtype(c)) return mixed_norm_forward(std::move(c));

  const DType dtype = *dtype_of(input), stat = accumulate_type(dtype);
  NormOutputs out{allocate(input.sizes(), input, dtype), {}, {}};
  if (c.residual) out.sum = allocate(input.sizes(), input, dtype);
  if (c.statistics) out.statistics = allocate(statistics_shape(c.norm, input, c.dims), input, stat);
  if (input.numel() == 0) {
    if (out.statistics) fill_zero(*out.statistics);
    return out;
  }

  const auto rows_of = input.is_cuda() ? as_aligned_rows : as_rows;
  Rows x = rows_of(input, c.dims), residual;
  if (c.residual) residual = rows_of(*c.residual, c.dims);
  if (input.is_cuda()) add_offset(c);
  NormForward a;
  a.norm = c.norm;
  a.dtype = dtype;
  a.parameter = parameter_dtype(input, c.weight, c.bias);
  if (input.is_cuda())
    for (OptionalTensor* t : {&c.weight, &c.bias})
      if (*t) *t = as_aligned(*std::move(*t));
  a.rows = x.count;
  a.n = x.n;
  a.input = x.data();
  a.input_stride = x.stride;
  a.residual = residual.data();
  a.residual_stride = residual.stride;
  a.weight = data_or_null(c.weight);
  a.bias = data_or_null(c.bias);
  a.weight_offset = c.weight_offset;
  a.eps = c.eps;
  a.output = out.output.mutable_data_ptr();
  a.sum = writable_or_null(out.sum);
  a.statistics = c.aten_statistics ? c.aten_statistics->pointers()
                                   : NormStatistics::of_rows(c.norm, stat, writable_or_null(out.statistics));
  if (input.is_cuda()) {
    cuda::Launch launch(c.op, input.get_device_index());
    launch.check(norm_forward_cuda[launch.group()](a, launch.stream()));
  } else if (share_segments(a.rows, a.rows, a.n, dtype)) {
    run_segments(norm_forward_segments_cpu[isa()], a, input, a.rows, 1, true);
  } else {
    NormForwardCpu* kernel = norm_forward_cpu[isa()];
    run_on_threads(a.rows, a.n * size_of(dtype), [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
  return out;
}

static void check_statistics(const NormBackwardCall& c, Shape shape, DType dtype) {
  const char* name = c.norm == Norm::layer ? "statistics" : "rstd";
  const Tensor& t = *c.statistics;
  check_same_device(c.op, name, t, c.input_name, c.input);
  FASTOPS_CHECK(same_shape(t.sizes(), shape) && dtype_of(t) == dtype && t.is_contiguous(), c.op, name, " must be ",
                c.forward_op, "'s own, contiguous, ", text_of(shape), " ", text_of(scalar_type(dtype)), ", got ",
                text_of(t.sizes()), " ", text_of(t.scalar_type()));
}

NormGradients norm_backward(NormBackwardCall c) {
  const Tensor& input = c.input;
  // The statistics have the dimensions that were not normalised over, a layer norm's one more.
  const int64_t extra = c.norm == Norm::layer;
  const int64_t dims = c.aten_statistics ? c.aten_statistics->dims : input.dim() - c.statistics->dim() + extra;
  FASTOPS_CHECK(dims >= 1 && dims <= input.dim(), c.op, "the statistics must have ", extra, " to ",
                input.dim() - 1 + extra, " dimensions for ", c.input_name, "'s ", input.dim(), ", got ",
                input.dim() - dims + extra);
  const Shape shape = trailing_of(input, dims);
  check_parameters(c.op, shape, c.weight, c.bias, c.input_name, input);
  check_rows(c.op, "grad", c.grad, c.input_name, input);
  if (c.grad_sum) check_rows(c.op, "grad_sum", *c.grad_sum, c.input_name, input);
  if (!one_dtype(c)) return mixed_norm_backward(std::move(c));
  const DType dtype = *dtype_of(input), stat = accumulate_type(dtype);
  if (c.statistics) check_statistics(c, statistics_shape(c.norm, input, dims), stat);

  auto allocate_parameter = [&](bool needed, const OptionalTensor& like) {
    const DType own = like ? *dtype_of(*like) : dtype;
    return needed ? allocate(shape, input, own) : nothing(input, own);
  };
  NormGradients out{c.need_input ? allocate(input.sizes(), input, dtype) : nothing(input, dtype),
                    allocate_parameter(c.need_weight, c.weight),
                    {}};
  if (c.norm == Norm::layer) out.bias = allocate_parameter(c.need_bias, c.bias);
  if (input.numel() == 0) {
    if (c.need_weight) fill_zero(out.weight);
    if (c.need_bias) fill_zero(*out.bias);
    return out;
  }

  const auto rows_of = input.is_cuda() ? as_aligned_rows : as_rows;
  Rows x = rows_of(input, dims), g = rows_of(c.grad, dims), g_sum;
  if (c.grad_sum) g_sum = rows_of(*c.grad_sum, dims);
  if (input.is_cuda()) add_offset(c);
  if (c.weight) c.weight = input.is_cuda() ? as_aligned(*std::move(c.weight)) : as_contiguous(*std::move(c.weight));
  NormBackward a;
  a.norm = c.norm;
  a.dtype = dtype;
  a.parameter = c.weight ? *dtype_of(*c.weight) : dtype;
  a.rows = x.count;
  a.n = x.n;
  a.grad = g.data();
  a.grad_stride = g.stride;
  a.grad_sum = g_sum.data();
  a.grad_sum_stride = g_sum.stride;
  a.input = x.data();
  a.input_stride = x.stride;
  a.statistics = c.aten_statistics
                     ? c.aten_statistics->pointers()
                     : NormStatistics::of_rows(c.norm, stat, const_cast<void*>(c.statistics->const_data_ptr()));
  a.weight = data_or_null(c.weight);
  a.weight_offset = c.weight_offset;
  a.grad_input = c.need_input ? out.input.mutable_data_ptr() : nullptr;
  a.gather = Gather::partial;
  a.partial = nullptr;
  a.chunks = plan::cpu::chunks(a.rows, a.n * size_of(dtype));
  auto give = [&](int which, const Tensor* result) {
    a.parameter_grads[which] = result ? result->mutable_data_ptr() : nullptr;
    a.parameter_grad_dtypes[which] = result ? *dtype_of(*result) : dtype;
  };
  give(0, c.need_weight ? &out.weight : nullptr);
  give(1, c.need_bias ? &*out.bias : nullptr);

  Scratch scratch;
  auto make_partial = [&] {
    if (a.wants_parameters() && a.gather == Gather::partial)
      a.partial = scratch.allocate(input, stat, a.chunks * a.sums() * a.n);
  };
  std::optional<cuda::Launch> launch;
  if (input.is_cuda()) {
    launch.emplace(c.op, input.get_device_index());
    const plan::norm_backward::Plan plan = norm_backward_plan_cuda[launch->group()](a);
    a.gather = plan.columns.gather;
    a.chunks = plan.columns.chunks;
    make_partial();
    launch->check(norm_backward_cuda[launch->group()](a, plan, launch->stream()));
  } else {
    make_partial();
    const int64_t rows_each = (a.rows + a.chunks - 1) / a.chunks;
    NormBackwardCpu* kernel = norm_backward_cpu[isa()];
    if (share_segments(a.chunks, a.rows, a.n, dtype))
      run_segments(norm_backward_segments_cpu[isa()], a, input, a.chunks, rows_each, a.grad_input != nullptr);
    else
      run_on_threads(a.chunks, rows_each * a.n * size_of(dtype),
                     [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
  if (!a.partial) return out;

  ColumnSum columns[2];
  int count = 0;
  for (int which = 0; which < 2; ++which) {
    if (!a.parameter_grads[which]) continue;
    const char* from = static_cast<const char*>(a.partial) + which * a.n * size_of(stat);
    columns[count++] = {stat, a.parameter_grad_dtypes[which], from, a.chunks, a.sums() * a.n,
                        a.n,  a.parameter_grads[which]};
  }
  sum_columns(launch, columns, count);
  return out;
}

}  // namespace fastops
