#pragma once
// The kit's part of fastops._C.
#include <nanobind/nanobind.h>

namespace fastops::kit {

void bind(nanobind::module_& m);

}  // namespace fastops::kit
