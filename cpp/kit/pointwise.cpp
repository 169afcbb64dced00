// Elementwise ops that are defined at run time. What is compiled for them is in src/fastops/kit/sources.
#include <cstdint>
#include <limits>

#include "host/pointwise.h"
#include "host/strides.h"
#include "kit/launch.h"
#include "kit/program.h"

namespace fastops::kit {
namespace {

// n elements, strides in elements, outputs first.
using Loop = void(char* const* data, const int64_t* strides, int64_t n, const double* scalars);

// A CUDA kernel's variant is the sum of what holds.
enum Variant { strided = 1, vectors = 2, wide = 4 };
constexpr int kThreads = 256;

// The generated kernels have as many rows of strides as operands, and take a prefix of this.
struct Index {
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxOperands][kMaxDims];
};

struct Operands {
  int count = 0;
  void* data[kMaxOperands];    // outputs first
  int64_t item[kMaxOperands];  // bytes of an element
  int64_t numel;
  bool contiguous;  // every operand is one run of numel elements; then ndim and index are not set
  int ndim;
  Index index;
};

// Elements [begin, end) of the merged index space.
void run_elements(Loop* loop, const Operands& p, const double* scalars, int64_t begin, int64_t end) {
  char* data[kMaxOperands];
  int64_t inner[kMaxOperands];
  if (p.contiguous) {
    for (int k = 0; k < p.count; ++k) {
      data[k] = static_cast<char*>(p.data[k]) + begin * p.item[k];
      inner[k] = 1;
    }
    return loop(data, inner, end - begin, scalars);
  }
  int64_t index[kMaxDims] = {}, rest = begin;
  for (int d = 0; d < p.ndim; ++d) {
    index[d] = rest % p.index.sizes[d];
    rest /= p.index.sizes[d];
  }
  const int64_t size = p.ndim ? p.index.sizes[0] : 1;
  for (int k = 0; k < p.count; ++k) inner[k] = p.ndim ? p.index.strides[k][0] : 0;
  while (begin < end) {
    for (int k = 0; k < p.count; ++k) {
      int64_t offset = 0;
      for (int d = 0; d < p.ndim; ++d) offset += index[d] * p.index.strides[k][d];
      data[k] = static_cast<char*>(p.data[k]) + offset * p.item[k];
    }
    const int64_t n = std::min(size - index[0], end - begin);
    loop(data, inner, n, scalars);
    begin += n;
    index[0] += n;
    for (int d = 0; d + 1 < p.ndim && index[d] == p.index.sizes[d]; ++d) {
      index[d] = 0;
      ++index[d + 1];
    }
  }
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Whether groups of neighbours along dimension 0 are one vector, or one and the same element, of every operand.
bool in_vectors(const Operands& p, int64_t group) {
  if (p.ndim == 0 || p.index.sizes[0] % group != 0) return false;
  for (int k = 0; k < p.count; ++k) {
    const int64_t* strides = p.index.strides[k];
    if (strides[0] == 0) continue;
    if (strides[0] != 1 || !aligned16(p.data[k])) return false;
    for (int d = 1; d < p.ndim; ++d)
      if (strides[d] % group != 0) return false;
  }
  return true;
}

// False where there is no kernel.
bool run_cuda(Call& call, Operands& p) {
  const int64_t group = 16 / *std::max_element(p.item, p.item + p.count);
  int variant = 0;
  int64_t groups = 0, threads = p.numel;
  if (p.contiguous) {
    // A group of elements a thread, and those behind the last group one a thread.
    if (std::all_of(p.data, p.data + p.count, aligned16)) groups = p.numel / group;
    threads -= groups * (group - 1);
  } else {
    variant |= strided;
    if (in_vectors(p, group)) {
      variant |= vectors;
      threads /= group;
      p.index.sizes[0] /= group;
      for (int k = 0; k < p.count; ++k) p.index.strides[k][0] *= group;
    }
    if (threads >= std::numeric_limits<int32_t>::max()) variant |= wide;
  }
  const uint64_t kernel = call.program.kernel(call.dtypes, call.device, variant);
  if (!kernel) return false;
  void* of_contiguous[] = {p.data, &groups, &p.numel, call.scalars};
  void* of_strided[] = {p.data, &p.index, &p.ndim, &threads, call.scalars};
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  reinterpret_cast<Kernel*>(kernel)->launch({blocks}, {kThreads}, 0, p.contiguous ? of_contiguous : of_strided);
  return true;
}

// Nothing where no kernel takes the inputs.
std::vector<Tensor> run(Call& call) {
  std::vector<Tensor> outputs;
  if (!call.promote()) return outputs;
  Loop* loop = nullptr;
  if (call.device < 0) {
    loop = reinterpret_cast<Loop*>(call.program.kernel(call.dtypes, call.device, 0));
    if (!loop) return outputs;
  }

  const Tensor& first = call.inputs[0];
  Operands p;
  p.contiguous = first.is_contiguous();
  for (size_t k = 1; p.contiguous && k < call.inputs.size(); ++k)
    p.contiguous = same_shape(first.sizes(), call.inputs[k].sizes()) && call.inputs[k].is_contiguous();
  Layout layout;
  Shape sizes = first.sizes(), strides = first.strides();
  if (!p.contiguous) {
    broadcast(call, layout);
    View views[kMaxOperands];
    for (size_t k = 0; k < call.inputs.size(); ++k) views[k] = {call.inputs[k].sizes(), call.inputs[k].strides()};
    elementwise_strides(views, call.inputs.size(), layout.shape(), layout.strides);
    sizes = layout.shape();
    strides = layout.steps();
  }

  Operand operands[kMaxOperands];
  outputs.reserve(call.program.outputs);
  for (int k = 0; k < call.program.outputs; ++k) {
    outputs.push_back(p.contiguous ? allocate(sizes, first, call.dtype) : allocate(sizes, strides, first, call.dtype));
    operands[p.count] = {outputs[k].mutable_data_ptr(), sizes, strides};
    p.item[p.count++] = size_of(call.dtype);
  }
  for (size_t k = 0; k < call.inputs.size(); ++k) {
    const Tensor& t = call.inputs[k];
    operands[p.count] = {const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides()};
    p.item[p.count++] = size_of(call.dtype_of_input(k));
  }
  for (int k = 0; k < p.count; ++k) p.data[k] = operands[k].data;
  p.numel = 1;
  for (int64_t size : sizes) p.numel *= size;
  if (p.numel == 0) return outputs;
  if (!p.contiguous && (p.ndim = merge_dims(operands, p.count, p.index.sizes, p.index.strides)) < 0) return {};

  if (call.device >= 0) return run_cuda(call, p) ? std::move(outputs) : std::vector<Tensor>();
  run_on_threads(p.numel, p.item[0],
                 [&](int64_t begin, int64_t end) { run_elements(loop, p, call.scalars, begin, end); });
  return outputs;
}

}  // namespace

void pointwise(StableIValue* stack, uint64_t arguments, uint64_t) {
  Call call(stack, arguments);
  std::vector<Tensor> outputs = run(call);
  if (outputs.empty()) return call.run_reference(stack);
  for (Tensor& t : outputs) *stack++ = to_stack(std::move(t));
}

}  // namespace fastops::kit
