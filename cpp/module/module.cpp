// fastops._C: what the binary is and what it chose here. Tensors never pass through this module, only through
// torch.ops.fastops, which the static initialisers of libfastops.so register when the module brings it along.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "aten/override.h"
#include "core/cuda.h"
#include "core/isa.h"
#include "module/kit.h"
#include "module/plan.h"

namespace nb = nanobind;

namespace fastops {
namespace {

nb::dict build_info() {
  nb::dict info;
  info["version"] = FASTOPS_VERSION;
  info["distribution"] = FASTOPS_DISTRIBUTION;
  info["git_commit"] = FASTOPS_GIT_COMMIT;
  info["compiler"] = FASTOPS_COMPILER;
  info["torch_version"] = FASTOPS_TORCH_VERSION;
  info["torch_floor"] = FASTOPS_TORCH_FLOOR;
  info["cuda_version"] = FASTOPS_CUDA_VERSION;
  info["cubins"] = std::vector<int> FASTOPS_CUBINS;
  info["ptx"] = std::vector<int> FASTOPS_PTX;
  info["arch_groups"] = cuda::arch_groups();
  std::vector<std::string> levels;
  for (const IsaLevel& level : isa_levels()) levels.push_back(level.name);
  info["isa_levels"] = levels;
  info["static_nanobind"] = static_cast<bool>(FASTOPS_STATIC_NANOBIND);
  return info;
}

nb::dict cpu() {
  nb::dict missing;
  for (const IsaLevel& level : isa_levels()) missing[level.name] = level.missing;
  nb::dict info;
  info["isa"] = isa_levels()[isa()].name;
  info["missing"] = missing;
  return info;
}

nb::dict row_of(const cuda::Device& device) {
  nb::dict row;
  row["capability"] = device.capability;
  row["arch"] = device.group < 0 ? nb::object(nb::none()) : nb::cast(cuda::arch_groups()[device.group]);
  row["reason"] = device.reason;
  return row;
}

nb::list cuda_devices() {
  nb::list list;
  std::string error;
  const int count = cuda::device_count(&error);
  for (int k = 0; k < count; ++k) {
    nb::dict row = row_of(cuda::device(k));
    row["index"] = k;
    list.append(row);
  }
  return list;
}

nb::dict cuda_fit(int capability, int driver) { return row_of(cuda::fit(capability, driver)); }

nb::dict overridden() {
  nb::dict functions;
  for (const aten::Overridden& of : aten::overridden()) {
    if (!functions.contains(of.function)) functions[of.function] = nb::dict();
    nb::cast<nb::dict>(functions[of.function])[of.op] = of.schema;
  }
  return functions;
}

std::string cuda_error() {
  std::string error;
  cuda::device_count(&error);
  return error;
}

}  // namespace
}  // namespace fastops

NB_MODULE(_C, m) {
  using namespace fastops;
  try {
    // A bad FASTOPS_CPU_ISA or FASTOPS_CUDA_CARD, or a CPU below the lowest level, stops the import, not the first call.
    isa();
    cuda::check_environment();
  } catch (const std::exception& error) {
    throw nb::import_error(error.what());
  }
  m.def("build_info", &build_info, "What the binary was built from, with and for.");
  m.def("cpu", &cpu, "The ISA level in use, and for each level the first CPU feature that is missing here.");
  m.def("set_isa", &set_isa, nb::arg("level"), "Use this ISA level from now on; for tests and bug reports.");
  m.def("cuda_devices", &cuda_devices, "For each visible GPU the arch group in use, or None, and the reason.");
  m.def("cuda_fit", &cuda_fit, nb::arg("capability"), nb::arg("driver"),
        "What a GPU of this capability (90) would run under a driver for this CUDA (13000); asks no driver.");
  m.def("cuda_error", &cuda_error, "Why no GPU is visible, in the CUDA runtime's words; empty if some are.");
  m.def("overridden", &overridden,
        "For each function of torch's its aten operators that enable() overrides, with their schemas.");
  m.def("override_keys", &aten::keys, "The dispatch keys where enable() overrides them.");
  m.def("enable", &aten::enable, nb::arg("function"), "Puts our kernels in the place of aten's once more.");
  m.def("disable", &aten::disable, nb::arg("function"), "Takes them away where that was the last time.");
  m.def("is_enabled", &aten::is_enabled, nb::arg("function"), "Whether they are there.");
  kit::bind(m);
  plan::bind(m);
}
