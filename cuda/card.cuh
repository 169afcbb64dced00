#pragma once
// The facts of the current device. The driver is asked once. FASTOPS_CUDA_CARD gives another card's facts instead.
#include "dispatch.cuh"
#include "plan/card.h"

namespace fastops::FASTOPS_ARCH {

// Whether the current device runs code that was compiled for compute capability 9.0 or later.
bool compute90_runs_here();

Card card();

}  // namespace fastops::FASTOPS_ARCH
