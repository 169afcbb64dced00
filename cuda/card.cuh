#pragma once
// What the driver says of the current device, asked once, or FASTOPS_CUDA_CARD of its plans.
#include "dispatch.cuh"
#include "plan/card.h"

namespace fastops::FASTOPS_ARCH {

// Whether the current device runs code that was compiled for compute capability 9.0 or later.
bool compute90_runs_here();

Card card();

}  // namespace fastops::FASTOPS_ARCH
