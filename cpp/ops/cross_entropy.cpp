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
                              double label_smoothing, double scale, std::optional<double> softcap, double z_loss,
                              int64_t first_class, std::optional<int64_t> classes) {
  if (!kernels_take(input))
    return call<Tensor>("fastops::cross_entropy_backward_reference", grad, grad_lse, input, target, lse, total, weight,
                        reduction, ignore_index, label_smoothing, scale, softcap, z_loss, first_class, classes);
  return fastops::cross_entropy_backward("cross_entropy_backward", grad, grad_lse, input, target, lse, total, weight,
                                         reduction,
                                         {ignore_index, scale, softcap, label_smoothing, z_loss, first_class, classes});
}

std::tuple<> cross_entropy_backward_out(const Tensor& grad, const Tensor& input, const Tensor& target,
                                        const Tensor& lse, const Tensor& total, const OptionalTensor& weight,
                                        int64_t reduction, int64_t ignore_index, double label_smoothing, double scale,
                                        std::optional<double> softcap, double z_loss, int64_t first_class,
                                        int64_t classes, const Tensor& out) {
  if (!kernels_take(input))
    return call<std::tuple<>>("fastops::cross_entropy_backward_out_reference", grad, input, target, lse, total, weight,
                              reduction, ignore_index, label_smoothing, scale, softcap, z_loss, first_class, classes,
                              out);
  fastops::cross_entropy_backward("cross_entropy_backward_out", grad, std::nullopt, input, target, lse, total, weight,
                                  reduction,
                                  {ignore_index, scale, softcap, label_smoothing, z_loss, first_class, classes}, out);
  return {};
}

FASTOPS_OP("cross_entropy",
           "(Tensor input, Tensor target, Tensor? weight=None, int reduction=1, int ignore_index=-100, "
           "float label_smoothing=0.0, float scale=1.0, float? softcap=None, float z_loss=0.0, "
           "ScalarType? dtype=None) -> (Tensor, Tensor, Tensor)",
           cross_entropy);
FASTOPS_OP("cross_entropy_backward",
           "(Tensor grad, Tensor? grad_lse, Tensor input, Tensor target, Tensor lse, Tensor total, "
           "Tensor? weight=None, int reduction=1, int ignore_index=-100, float label_smoothing=0.0, float scale=1.0, "
           "float? softcap=None, float z_loss=0.0, int first_class=0, int? classes=None) -> Tensor",
           cross_entropy_backward);

FASTOPS_OP("cross_entropy_backward_out",
           "(Tensor grad, Tensor input, Tensor target, Tensor lse, Tensor total, Tensor? weight, int reduction, "
           "int ignore_index, float label_smoothing, float scale, float? softcap, float z_loss, int first_class, "
           "int classes, Tensor(a!) out) -> ()",
           cross_entropy_backward_out);

}  // namespace fastops::ops
