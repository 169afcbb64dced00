#pragma once
// CPU kernels by ISA level: which levels the binary has, which this CPU can run, and the one in use.
#include <string>
#include <vector>

#include "core/export.h"
#include "fastops_build.h"

namespace fastops {

struct IsaLevel {
  const char* name;
  bool supported;       // by this CPU
  const char* missing;  // the first feature it lacks, or ""
};

// All levels in the binary, best last.
FASTOPS_EXPORT std::vector<IsaLevel> isa_levels();

// Index of the level in use: the best that this CPU can run, or what FASTOPS_CPU_ISA or set_isa() named.
FASTOPS_EXPORT int isa();

// Throws std::invalid_argument for a level that the binary lacks or this CPU cannot run.
FASTOPS_EXPORT void set_isa(const std::string& name);

}  // namespace fastops

// Declares one kernel per level and the table of them, called as square_cpu[isa()](...). A level whose
// kernel has another parameter list is a link error.
#define FASTOPS_ISA_DECLARE(isa, kernel) \
  namespace isa {                        \
  extern kernel##_cpu_type kernel;       \
  }
#define FASTOPS_ISA_ENTRY(isa, kernel) &isa::kernel,
#define FASTOPS_CPU_KERNEL(kernel, ...)             \
  using kernel##_cpu_type = __VA_ARGS__;            \
  FASTOPS_FOR_EACH_ISA(FASTOPS_ISA_DECLARE, kernel) \
  constexpr kernel##_cpu_type* kernel##_cpu[] = {FASTOPS_FOR_EACH_ISA(FASTOPS_ISA_ENTRY, kernel)}
