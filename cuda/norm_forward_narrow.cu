// The forward of the norms over rows of halves in vectors of 8 bytes: as those of 16 bytes, in a file of its own for the time that
// compiling takes.
#include "norm_forward_rows.cuh"

namespace fastops::FASTOPS_ARCH {

int norm_forward_narrow(const NormForward& a, const Plan& plan, cudaStream_t stream) {
  return launch_registers<plan::Access::vec8>(a, plan, stream);
}

}  // namespace fastops::FASTOPS_ARCH
