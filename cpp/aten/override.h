#pragma once
// Puts our kernels in the place of aten's, and takes them away again.
#include <string>
#include <vector>

#include "core/export.h"

namespace fastops::aten {

struct Overridden {
  const char *function, *op, *schema;  // "layer_norm", "native_layer_norm", and its signature
};

// Every aten operator that can be overridden.
FASTOPS_EXPORT std::vector<Overridden> overridden();

// The dispatch keys where they are: "CPU", and "CUDA" if this build has its kernels.
FASTOPS_EXPORT std::vector<std::string> keys();

// As often as enabled, a function must be disabled before aten's kernels are back. Both throw std::invalid_argument for a name
// that is not in the table; disabling what is not enabled does nothing. The dispatcher has no lock for who calls a kernel
// that is replaced: the first enable and the last disable want no other thread in these operators.
FASTOPS_EXPORT void enable(const std::string& function);
FASTOPS_EXPORT void disable(const std::string& function);
FASTOPS_EXPORT bool is_enabled(const std::string& function);

}  // namespace fastops::aten
