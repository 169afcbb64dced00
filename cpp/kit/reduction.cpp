// Reductions that are defined at run time. What is compiled for them is in src/fastops/kit/sources.
//
// Each output is a row of n elements, split into chunks of one length. The order of a row's sum depends on n and on how
// the row lies in memory, on the CPU on n alone; not on the number of rows, of threads or of multiprocessors.
#include <cstdint>

#include "host/pointwise.h"
#include "kit/launch.h"
#include "kit/program.h"

namespace fastops::kit {
namespace {

constexpr int kMaxInputs = 8;
constexpr int kThreads = 256;
constexpr int64_t kChunk = 1 << 15;    // elements; a multiple of what a block of threads takes at once
constexpr int64_t kShort = 1 << 10;    // rows up to here are a warp's
constexpr int64_t kSideBySide = 4096;  // sums of neighbouring rows that a CPU task reads side by side
constexpr int64_t kMostColumns = 512;
constexpr int64_t kFewColumns = 32;  // elements of neighbouring rows: up to here they are read one row at a time

// A variant is the sum of what holds; on the CPU it is an argument, and one function does all.
enum Variant { columns = 1, partial = 2, combine = 4, brief = 8, vectors = 16 };

// The generated code has as many rows of strides as operands, and takes a prefix of these.
struct Index {
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxInputs + 1][kMaxDims];
};

struct Extent {
  int64_t rows, n;               // n: elements of a row
  int64_t count, chunk, chunks;  // what this pass reads of a row, in chunks
  int64_t row_dims, element_dims;
  int64_t columns = 0;  // neighbouring rows that a CPU task reads side by side
};

using Loop = void(void* const* data, const Index* rows, const Index* elements, const Extent*, const double* scalars,
                  int64_t variant, int64_t begin, int64_t end);

struct Work {
  void* data[kMaxInputs + 1];  // the output first
  Index rows, elements;        // strides of the output and the inputs; of the inputs
  Extent extent;
};

// The dimensions in `mask` are reduced.
std::vector<bool> reduced_dims(const Call& call, const std::vector<int64_t>& dims, size_t ndim) {
  std::vector<bool> mask(ndim, dims.empty());
  const auto count = static_cast<int64_t>(ndim);
  for (int64_t d : dims) {
    FASTOPS_CHECK(d >= -std::max<int64_t>(count, 1) && d < std::max<int64_t>(count, 1), call.name(), "dim must be in [",
                  -std::max<int64_t>(count, 1), ", ", std::max<int64_t>(count, 1) - 1, "], got ", d);
    if (count == 0) continue;
    const int64_t at = d < 0 ? d + count : d;
    FASTOPS_CHECK(!mask[at], call.name(), "dim names dimension ", at, " twice");
    mask[at] = true;
  }
  return mask;
}

// A kernel's work; false where more than kMaxDims dimensions remain.
bool describe(const Call& call, const Layout& shape, const std::vector<bool>& mask, const Tensor& output, bool keepdim,
              Work& work) {
  std::vector<int64_t> row_sizes, element_sizes;
  for (size_t d = 0; d < shape.ndim; ++d) (mask[d] ? element_sizes : row_sizes).push_back(shape.sizes[d]);
  const size_t count = call.inputs.size();
  std::vector<std::vector<int64_t>> row_strides(count + 1), element_strides(count);
  for (size_t d = 0, at = 0; d < shape.ndim; ++d) {
    if (!mask[d]) row_strides[0].push_back(output.stride(at));
    if (!mask[d] || keepdim) ++at;
    for (size_t k = 0; k < count; ++k)
      (mask[d] ? element_strides[k] : row_strides[k + 1]).push_back(stride_of(call.inputs[k], shape, d));
  }
  Operand rows[kMaxInputs + 1], elements[kMaxInputs];
  rows[0] = {nullptr, row_sizes, row_strides[0]};
  work.data[0] = output.mutable_data_ptr();
  for (size_t k = 0; k < count; ++k) {
    rows[k + 1] = {nullptr, row_sizes, row_strides[k + 1]};
    elements[k] = {nullptr, element_sizes, element_strides[k]};
    work.data[k + 1] = const_cast<void*>(call.inputs[k].const_data_ptr());
  }
  work.extent.row_dims = merge_dims(rows, static_cast<int>(count) + 1, work.rows.sizes, work.rows.strides);
  work.extent.element_dims = merge_dims(elements, static_cast<int>(count), work.elements.sizes, work.elements.strides);
  return work.extent.row_dims >= 0 && work.extent.element_dims >= 0;
}

// From partial results [rows, chunks] to the output.
Work combining(const Work& work, void* partials) {
  Work next = work;
  next.data[1] = partials;
  int64_t step = work.extent.chunks;
  for (int64_t d = 0; d < work.extent.row_dims; ++d) {
    next.rows.strides[1][d] = step;
    step *= work.rows.sizes[d];
  }
  next.elements.sizes[0] = next.extent.count = next.extent.chunk = work.extent.chunks;
  next.elements.strides[0][0] = 1;
  next.extent.chunks = next.extent.element_dims = 1;
  return next;
}

// Whether neighbouring rows lie closer than a row's neighbouring elements do.
bool in_columns(const Work& work) {
  const Extent& e = work.extent;
  if (e.element_dims == 0) return false;
  const int64_t along = work.elements.strides[0][0];
  return along != 1 && along != 0 && (e.row_dims == 0 || std::abs(work.rows.strides[1][0]) < std::abs(along));
}

// The same on the CPU. It changes no result.
bool in_cpu_columns(const Work& work) {
  const Extent& e = work.extent;
  return e.row_dims > 0 && work.rows.sizes[0] * e.count >= kFewColumns && in_columns(work);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void run_cpu(const Call& call, Work& work, uint64_t kernel, int64_t variant) {
  auto* loop = reinterpret_cast<Loop*>(kernel);
  Extent& e = work.extent;
  int64_t tasks = e.rows * e.chunks, rows_a_task = 1;
  if (variant & columns) {
    const int64_t size = work.rows.sizes[0];
    const int64_t sums = e.count > 64 ? 64 : 16;  // of a row
    e.columns = rows_a_task = std::min({size, kMostColumns, kSideBySide / std::min(e.count, sums)});
    tasks = e.rows / size * ceil_div(size, e.columns) * e.chunks;
  }
  run_on_threads(tasks, rows_a_task * std::min(e.count, e.chunk) * size_of(call.dtype),
                 [&](int64_t begin, int64_t end) {
                   loop(work.data, &work.rows, &work.elements, &e, call.scalars, variant, begin, end);
                 });
}

// Whether every group of neighbours in every row is one vector.
bool in_vectors(const Call& call, const Work& work) {
  const Extent& e = work.extent;
  if (e.element_dims != 1) return false;
  int64_t widest = 1;
  for (size_t k = 0; k < call.inputs.size(); ++k) widest = std::max(widest, size_of(call.dtype_of_input(k)));
  const int64_t group = 16 / widest;
  for (size_t k = 0; k < call.inputs.size(); ++k) {
    if (work.elements.strides[k][0] != 1 || reinterpret_cast<uintptr_t>(work.data[k + 1]) % 16) return false;
    for (int64_t d = 0; d < e.row_dims; ++d)
      if (work.rows.strides[k + 1][d] % group) return false;
  }
  return true;
}

void run_cuda(Call& call, Work& work, uint64_t kernel, int variant) {
  void* arguments[] = {work.data, &work.rows, &work.elements, &work.extent, call.scalars};
  const int64_t rows_a_block = variant & columns ? 32 : variant & brief ? kThreads / 32 : 1;
  const auto blocks = static_cast<unsigned>(ceil_div(work.extent.rows, rows_a_block) * work.extent.chunks);
  reinterpret_cast<Kernel*>(kernel)->launch({blocks}, {kThreads}, 0, arguments);
}

// Nothing where no kernel takes the inputs.
std::optional<Tensor> run(Call& call, const std::vector<int64_t>& dims, bool keepdim, bool wide) {
  if (!call.promote()) return std::nullopt;
  Layout shape;
  broadcast(call, shape);
  const std::vector<bool> mask = reduced_dims(call, dims, shape.ndim);
  std::vector<int64_t> sizes;
  Work work;
  Extent& e = work.extent;
  e.rows = e.n = 1;
  for (size_t d = 0; d < shape.ndim; ++d) {
    (mask[d] ? e.n : e.rows) *= shape.sizes[d];
    if (!mask[d] || keepdim) sizes.push_back(mask[d] ? 1 : shape.sizes[d]);
  }
  // An empty row is a matter of the identity, which the reference knows.
  if (e.n == 0) return std::nullopt;
  Tensor output = allocate(sizes, call.inputs[0], wide ? accumulate_type(call.dtype) : call.dtype);
  if (e.rows == 0) return output;
  if (!describe(call, shape, mask, output, keepdim, work)) return std::nullopt;
  e.count = e.n;
  e.chunk = kChunk;
  e.chunks = ceil_div(e.n, kChunk);

  int variant = (call.device < 0 ? in_cpu_columns(work) : in_columns(work)) ? columns : 0;
  if (call.device >= 0 && !variant) {
    if (e.n <= kShort) variant |= brief;
    if (in_vectors(call, work)) variant |= vectors;
  }
  // The kernels of a wide result are others: its dtype is the key's first.
  int64_t key = call.dtypes;
  if (wide) key = (key & ~int64_t{3}) | static_cast<int64_t>(accumulate_type(call.dtype));
  auto kernel = [&](int of_variant) { return call.program.kernel(key, call.device, call.device < 0 ? 0 : of_variant); };
  auto launch_one = [&](Work& of, uint64_t by, int of_variant) {
    call.device < 0 ? run_cpu(call, of, by, of_variant) : run_cuda(call, of, by, of_variant);
  };
  if (e.chunks == 1) {
    const uint64_t whole = kernel(variant);
    if (!whole) return std::nullopt;
    launch_one(work, whole, variant);
    return output;
  }
  const int last = combine | (call.device < 0 ? 0 : brief);
  const uint64_t first = kernel(variant | partial), second = kernel(last);
  if (!first || !second) return std::nullopt;
  const Tensor partials = allocate_bytes(e.rows * e.chunks * size_of(accumulate_type(call.dtype)), call.inputs[0]);
  Work next = combining(work, partials.mutable_data_ptr());
  void* result = work.data[0];
  work.data[0] = partials.mutable_data_ptr();
  launch_one(work, first, variant | partial);
  next.data[0] = result;
  launch_one(next, second, last);
  return output;
}

}  // namespace

void reduction(StableIValue* stack, uint64_t arguments, uint64_t) {
  Call call(stack, arguments);
  FASTOPS_CHECK(call.inputs.size() <= kMaxInputs, call.name(), "at most ", kMaxInputs,
                " tensors are reduced together, got ", call.inputs.size());
  StableIValue* more = stack + call.inputs.size() + call.program.scalars;
  const auto dims = from_stack<std::vector<int64_t>>(more[0]);
  const bool keepdim = from_stack<bool>(more[1]), wide = from_stack<bool>(more[2]);
  if (std::optional<Tensor> output = run(call, dims, keepdim, wide)) {
    stack[0] = to_stack(std::move(*output));
    return;
  }
  more[0] = to_stack(dims);
  call.run_reference(stack);
}

}  // namespace fastops::kit
