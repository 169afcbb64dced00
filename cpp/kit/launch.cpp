#include "kit/launch.h"

#include <mutex>
#include <stdexcept>

#if FASTOPS_CUDA_ENABLED
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#endif

namespace fastops::kit {

#if FASTOPS_CUDA_ENABLED
namespace {

constexpr unsigned kOldestDriver = 12000;  // the first with context-free libraries

// The driver's functions, found through the static runtime: nothing links to libcuda.
struct Driver {
  PFN_cuInit_v2000 init;
  PFN_cuGetErrorString_v6000 error_string;
  PFN_cuCtxGetCurrent_v4000 current_context;
  PFN_cuCtxGetDevice_v2000 current_device;
  PFN_cuLibraryLoadData_v12000 load;
  PFN_cuLibraryGetKernel_v12000 get_kernel;
  PFN_cuKernelGetFunction_v12000 get_function;
  PFN_cuKernelSetAttribute_v12000 set_attribute;
  PFN_cuLaunchKernel_v4000 launch;

  Driver() {
    find("cuInit", init);
    find("cuGetErrorString", error_string);
    find("cuCtxGetCurrent", current_context);
    find("cuCtxGetDevice", current_device);
    find("cuLibraryLoadData", load);
    find("cuLibraryGetKernel", get_kernel);
    find("cuKernelGetFunction", get_function);
    find("cuKernelSetAttribute", set_attribute);
    find("cuLaunchKernel", launch);
    check("kit", "initialising the driver", init(0));
  }

  void check(const std::string& op, const std::string& what, CUresult result) const {
    if (result == CUDA_SUCCESS) return;
    const char* text = nullptr;
    error_string(result, &text);
    throw std::runtime_error("[" + op + "] " + what + ": " + (text ? text : "CUDA error " + std::to_string(result)));
  }

 private:
  template <class Function>
  static void find(const char* name, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, kOldestDriver, cudaEnableLegacyStream, &status);
#else
    cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableLegacyStream, &status);
#endif
    if (error != cudaSuccess) cudaGetLastError();  // not the next launch's error
    if (error != cudaSuccess || status != cudaDriverEntryPointSuccess || !found)
      throw std::runtime_error(std::string("[kit] the NVIDIA driver does not give ") + name +
                               ", which is in drivers for CUDA 12.0 and newer" +
                               (error ? std::string(": ") + cudaGetErrorString(error) : ""));
    function = reinterpret_cast<Function>(found);
  }
};

const Driver& driver() {
  static const Driver instance;
  return instance;
}

// While a graph is being captured, anywhere in the process, loading code is refused to a thread that is not relaxed.
class Relaxed {
 public:
  Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~Relaxed() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  Relaxed(const Relaxed&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// torch's default stream is the null one, whose context is the thread's: a thread of autograd may have none yet.
void ensure_context(const cuda::Launch& launch, int device) {
  CUcontext context = nullptr;
  if (driver().current_context(&context) == CUDA_SUCCESS && context) return;
  Relaxed relaxed;
  launch.check(cudaSetDevice(device));
  launch.check(cudaFree(nullptr));  // makes the device's primary context and this thread's current one
}

}  // namespace

Image::Image(const void* cubin) {
  Relaxed relaxed;
  CUlibrary library = nullptr;
  driver().check("kit", "loading a compiled image",
                 driver().load(&library, cubin, nullptr, nullptr, 0, nullptr, nullptr, 0));
  library_ = library;
}

Kernel::Kernel(const std::string& op, const Image& image, const std::string& symbol, int device)
    : op_(op), device_(device) {
  cuda::Launch launch(op_.c_str(), device_);
  ensure_context(launch, device_);
  Relaxed relaxed;
  CUkernel kernel = nullptr;
  driver().check(op_, "finding kernel " + symbol,
                 driver().get_kernel(&kernel, static_cast<CUlibrary>(image.get()), symbol.c_str()));
  CUfunction loaded = nullptr;  // asked for, because under lazy loading this is what loads the code
  driver().check(op_, "loading kernel " + symbol + " on device " + std::to_string(device_),
                 driver().get_function(&loaded, kernel));
  kernel_ = kernel;
}

void Kernel::launch(Dim3 grid, Dim3 block, unsigned shared_bytes, void** arguments) {
  cuda::Launch launch(op_.c_str(), device_);
  ensure_context(launch, device_);
  if (shared_bytes > shared_bytes_.load(std::memory_order_relaxed)) [[unlikely]]
    reserve(shared_bytes);
  const CUresult result =
      driver().launch(reinterpret_cast<CUfunction>(kernel_), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                      shared_bytes, static_cast<CUstream>(launch.stream()), arguments, nullptr);
  if (result == CUDA_SUCCESS) [[likely]]
    return;
  driver().check(op_, "launching on device " + std::to_string(device_), result);
}

void Kernel::reserve(unsigned shared_bytes) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (shared_bytes <= shared_bytes_.load(std::memory_order_relaxed)) return;
  Relaxed relaxed;
  CUdevice device = 0;
  driver().check(op_, "asking for the device", driver().current_device(&device));
  driver().check(op_, "reserving " + std::to_string(shared_bytes) + " bytes of shared memory a block",
                 driver().set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(shared_bytes),
                                        static_cast<CUkernel>(kernel_), device));
  shared_bytes_.store(shared_bytes, std::memory_order_relaxed);
}

#else  // a CPU-only build

namespace {
[[noreturn]] void no_cuda() {
  throw std::runtime_error(
      "[kit] this build has no CUDA kernels: python -m fastops.info says what has them for this machine");
}
}  // namespace

Image::Image(const void*) { no_cuda(); }
Kernel::Kernel(const std::string& op, const Image&, const std::string&, int device) : op_(op), device_(device) {
  no_cuda();
}
void Kernel::launch(Dim3, Dim3, unsigned, void**) { no_cuda(); }
void Kernel::reserve(unsigned) {}

#endif

}  // namespace fastops::kit
