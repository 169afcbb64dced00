#pragma once
// Kernels that were compiled at run time: an image is loaded through the driver and launched on torch's current stream.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/cuda.h"
#include "core/export.h"

namespace fastops::kit {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// A loaded image (a CUBIN). It belongs to no context; each device that it is used on gets its own copy of the code.
class FASTOPS_EXPORT Image {
 public:
  explicit Image(const void* cubin);
  void* get() const { return library_; }

 private:
  void* library_ = nullptr;  // CUlibrary. Never unloaded: a captured graph may still hold its kernels.
};

// A kernel of an image, ready on one device: a launch loads nothing, so that a graph may capture even the first one.
class FASTOPS_EXPORT Kernel {
 public:
  // `op` names it in messages, `symbol` in the image.
  Kernel(const std::string& op, const Image& image, const std::string& symbol, int device);
  // arguments[k] points to the k-th argument's value. Blocks or threads of zero are an error of the driver's.
  void launch(Dim3 grid, Dim3 block, unsigned shared_bytes, void** arguments);

 private:
  void reserve(unsigned shared_bytes);

  std::string op_;
  int device_;
  void* kernel_ = nullptr;                 // CUkernel
  std::atomic<unsigned> shared_bytes_{0};  // dynamic shared memory that a launch may ask for
};

}  // namespace fastops::kit
