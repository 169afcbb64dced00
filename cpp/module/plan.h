#pragma once
// The tables' part of fastops._C.
#include <nanobind/nanobind.h>

namespace fastops::plan {

void bind(nanobind::module_& m);

}  // namespace fastops::plan
