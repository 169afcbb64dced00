// cross_entropy: of logits and the indices of classes; problem/cross_entropy.h has the formulas
#include "host/likelihood.h"

namespace fastops::ops {

ThreeTensors cross_entropy(const Tensor& input, const Tensor& target, const OptionalTensor& weight, int64_t reduction,
                           int64_t ignore_index, double label_smoothing, double scale, std::optional<double> softcap,
                           double z_loss, std::optional<ScalarType> dtype) {
  if (!kernels_take(input, dtype))
    return call<ThreeTensors>("fastops::cross_entropy_reference", input, target, weight, reduction, ignore_index,
                              label_smoothing, scale, softcap, z_loss, dtype);
  return cross_entropy_forward("cross_entropy", input, target, weight, reduction,
                               {ignore_index, scale, softcap, label_smoothing, z_loss}, dtype);
}

Tensor cross_entropy_backward(const Tensor& grad, const OptionalTensor& grad_lse, const Tensor& input,
                              const Tensor& target, const Tensor& lse, const Tensor& total,
                              const OptionalTensor& weight, int64_t reduction, int64_t ignore_index,
                              double label_smoothing, double scale, std::optional<double> softcap, double z_loss) {
  if (!kernels_take(input))
    return call<Tensor>("fastops::cross_entropy_backward_reference", grad, grad_lse, input, target, lse, total, weight,
                        reduction, ignore_index, label_smoothing, scale, softcap, z_loss);
  return fastops::cross_entropy_backward("cross_entropy_backward", grad, grad_lse, input, target, lse, total, weight,
                                         reduction, {ignore_index, scale, softcap, label_smoothing, z_loss});
}

FASTOPS_OP("cross_entropy",
           "(Tensor input, Tensor target, Tensor? weight=None, int reduction=1, int ignore_index=-100, "
           "float label_smoothing=0.0, float scale=1.0, float? softcap=None, float z_loss=0.0, "
           "ScalarType? dtype=None) -> (Tensor, Tensor, Tensor)",
           cross_entropy);
FASTOPS_OP("cross_entropy_backward",
           "(Tensor grad, Tensor? grad_lse, Tensor input, Tensor target, Tensor lse, Tensor total, "
           "Tensor? weight=None, int reduction=1, int ignore_index=-100, float label_smoothing=0.0, float scale=1.0, "
           "float? softcap=None, float z_loss=0.0) -> Tensor",
           cross_entropy_backward);

}  // namespace fastops::ops
