#include "kernels/norm_rows.h"
namespace fastops::FASTOPS_ISA { void norm_backward(const NormBackward&, int64_t, int64_t) {} }
