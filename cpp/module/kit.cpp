#include "module/kit.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <vector>

#include "kit/launch.h"
#include "kit/program.h"

namespace nb = nanobind;

namespace fastops::kit {
namespace {

using Extent = std::array<unsigned, 3>;

// A kernel and where each of its arguments lies in the bytes that Python packs. Both live as long as the process.
struct PackedKernel {
  Kernel kernel;
  std::vector<size_t> offsets;
};

uintptr_t load(nb::bytes cubin) { return reinterpret_cast<uintptr_t>(new Image(cubin.data())); }

uintptr_t kernel(uintptr_t image, const std::string& symbol, int device, const std::string& op,
                 std::vector<size_t> offsets) {
  return reinterpret_cast<uintptr_t>(new PackedKernel{
      .kernel = Kernel(op, *reinterpret_cast<const Image*>(image), symbol, device), .offsets = std::move(offsets)});
}

void launch(uintptr_t handle, Extent grid, Extent block, unsigned shared_bytes, nb::bytes arguments) {
  auto& packed = *reinterpret_cast<PackedKernel*>(handle);
  char* values = const_cast<char*>(arguments.c_str());
  std::vector<void*> pointers;
  pointers.reserve(packed.offsets.size());
  for (size_t offset : packed.offsets) pointers.push_back(values + offset);
  nb::gil_scoped_release released;
  packed.kernel.launch({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes, pointers.data());
}

}  // namespace

void bind(nb::module_& m) {
  m.attr("kit_max_operands") = kMaxOperands;
  m.attr("kit_max_scalars") = kMaxScalars;
  m.def("kit_load", &load, nb::arg("cubin"), "Loads an image for every device of its architecture.");
  m.def("kit_kernel", &kernel, nb::arg("image"), nb::arg("symbol"), nb::arg("device"), nb::arg("op"),
        nb::arg("offsets"), "A kernel of an image, ready on this device; `offsets` of its arguments in their bytes.");
  m.def("kit_launch", &launch, nb::arg("kernel"), nb::arg("grid"), nb::arg("block"), nb::arg("shared_bytes"),
        nb::arg("arguments"), "Launches on torch's current stream of the kernel's device.");
  m.def("kit_define", &define, nb::arg("name"), nb::arg("reference"), nb::arg("tensors"), nb::arg("scalars"),
        nb::arg("outputs"),
        "Make a program of the kit and return its number, the default of its schemas' last argument.");
  m.def("kit_implement", &implement, nb::arg("op"), nb::arg("reduces"),
        "Implement an op for the CPU and CUDA keys by the program that its schema names.");
  m.def("kit_add_kernel", &add_kernel, nb::arg("program"), nb::arg("dtypes"), nb::arg("device"), nb::arg("variant"),
        nb::arg("handle"), "What fastops_kit::compile was asked for: the address of a function; 0: there is none.");
  m.def("kit_add_cuda_kernel", &add_cuda_kernel, nb::arg("program"), nb::arg("dtypes"), nb::arg("device"),
        nb::arg("variant"), nb::arg("image"), nb::arg("symbol"), "The same for a GPU: a kernel of a loaded image.");
}

}  // namespace fastops::kit
