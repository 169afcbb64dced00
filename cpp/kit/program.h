#pragma once
// Ops that are defined at run time. Each is a program: a name, its arguments, and kernels that Python compiles for a
// combination of dtypes, a device and a variant at the first call that needs them.
#include <atomic>
#include <string>
#include <vector>

#include "core/export.h"
#include "core/torch_edge.h"

namespace fastops::kit {

// Inputs and outputs. The second derivative by eight tensors has 26; with more, a kernel's arguments would pass 4 KiB.
constexpr int kMaxOperands = 26;
constexpr int kMaxScalars = 8;
constexpr int kMaxRank = 64;  // more dimensions go to the reference

struct Compiled {
  int64_t dtypes;
  int device;       // -1: the CPU
  int variant;      // how the elements lie, or what part of the work it does: each kind of op has its own
  uint64_t handle;  // the address of a function, or of a Kernel on a GPU; 0: there is none
  const Compiled* next;
};

struct Program {
  int64_t id;
  std::string name, reference;
  std::vector<std::string> tensors;
  int scalars, outputs;
  std::atomic<const Compiled*> kernels{nullptr};  // read without a lock; none is ever taken off

  // Compiled at the first call for it. 0 where there is none.
  uint64_t kernel(int64_t dtypes, int device, int variant) const;
};

// The arguments of a call, taken off the dispatcher's stack.
struct Call {
  Call(StableIValue* stack, uint64_t arguments);

  const char* name() const { return program.name.c_str(); }
  // Whether our kernels may take these inputs; sets dtype and dtypes.
  bool promote();
  DType dtype_of_input(size_t k) const { return static_cast<DType>(dtypes >> (2 * k + 2) & 3); }
  // What no kernel takes: the arguments go back to where they were, and the reference leaves its results there.
  void run_reference(StableIValue* stack);

  const Program& program;
  std::vector<Tensor> inputs;
  double scalars[kMaxScalars];
  int device;      // -1: the CPU
  DType dtype;     // of the results: the inputs', promoted
  int64_t dtypes;  // the key of the kernels: 2 bits for dtype, then 2 for each input's
};

// A dense or broadcast shape under construction.
struct Layout {
  size_t ndim = 0;
  int64_t sizes[kMaxRank], strides[kMaxRank];

  Shape shape() const { return Shape(sizes, ndim); }
  Shape steps() const { return Shape(strides, ndim); }
};

// The shape that the inputs broadcast to, without its strides.
void broadcast(const Call& call, Layout& layout);
// The stride of `tensor` along dimension d of a shape that it broadcasts to.
int64_t stride_of(const Tensor& tensor, const Layout& layout, size_t d);

// Its schema is (Tensor..., float..., <what the kind takes>, *, int program=<what this returns>); that of `reference`,
// an op which takes what no kernel does, is the same.
FASTOPS_EXPORT int64_t define(std::string name, std::string reference, std::vector<std::string> tensors, int scalars,
                              int outputs);
// For the CPU and CUDA keys of `op`, "space::name".
FASTOPS_EXPORT void implement(const std::string& op, bool reduces);
FASTOPS_EXPORT void add_kernel(int64_t program, int64_t dtypes, int device, int variant, uint64_t handle);
FASTOPS_EXPORT void add_cuda_kernel(int64_t program, int64_t dtypes, int device, int variant, uintptr_t image,
                                    const std::string& symbol);

// Boxed.
void pointwise(StableIValue* stack, uint64_t arguments, uint64_t results);
void reduction(StableIValue* stack, uint64_t arguments, uint64_t results);

}  // namespace fastops::kit
