// What cross_entropy and log_prob need of some of the classes alone; problem/cross_entropy.h says what parts are
#include "host/likelihood.h"

namespace fastops::ops {

Tensor likelihood_partial(const Tensor& input, const Tensor& target, int64_t dim, int64_t first_class, int64_t classes,
                          const OptionalTensor& weight, int64_t ignore_index, double label_smoothing, double scale,
                          std::optional<double> softcap, bool entropy) {
  if (!kernels_take(input))
    return call<Tensor>("fastops::likelihood_partial_reference", input, target, dim, first_class, classes, weight,
                        ignore_index, label_smoothing, scale, softcap, entropy);
  return fastops::likelihood_partial("likelihood_partial", input, target, dim, weight,
                                     {ignore_index, scale, softcap, label_smoothing, 0, first_class, classes}, entropy);
}

Tensor likelihood_join(const Tensor& parts, double scale, std::optional<double> softcap, bool entropy) {
  if (!kernels_take(parts)) return call<Tensor>("fastops::likelihood_join_reference", parts, scale, softcap, entropy);
  return fastops::likelihood_join("likelihood_join", parts, {0, scale, softcap}, entropy);
}

ThreeTensors cross_entropy_merge(const Tensor& parts, const Tensor& target, int64_t classes,
                                 const OptionalTensor& weight, int64_t reduction, int64_t ignore_index,
                                 double label_smoothing, double scale, std::optional<double> softcap, double z_loss,
                                 std::optional<ScalarType> dtype) {
  if (!kernels_take(parts, dtype))
    return call<ThreeTensors>("fastops::cross_entropy_merge_reference", parts, target, classes, weight, reduction,
                              ignore_index, label_smoothing, scale, softcap, z_loss, dtype);
  return fastops::cross_entropy_merge("cross_entropy_merge", parts, target, weight, reduction,
                                      {ignore_index, scale, softcap, label_smoothing, z_loss, 0, classes}, dtype);
}

ThreeTensors log_prob_merge(const Tensor& parts, const Tensor& target, int64_t classes, int64_t ignore_index,
                            double scale, std::optional<double> softcap, bool entropy) {
  if (!kernels_take(parts))
    return call<ThreeTensors>("fastops::log_prob_merge_reference", parts, target, classes, ignore_index, scale, softcap,
                              entropy);
  return fastops::log_prob_merge("log_prob_merge", parts, target, {ignore_index, scale, softcap, 0, 0, 0, classes},
                                 entropy);
}

FASTOPS_OP("likelihood_partial",
           "(Tensor input, Tensor target, int dim, int first_class, int classes, Tensor? weight=None, "
           "int ignore_index=-100, float label_smoothing=0.0, float scale=1.0, float? softcap=None, "
           "bool entropy=False) -> Tensor",
           likelihood_partial);
FASTOPS_OP("likelihood_join", "(Tensor parts, float scale=1.0, float? softcap=None, bool entropy=False) -> Tensor",
           likelihood_join);
FASTOPS_OP("cross_entropy_merge",
           "(Tensor parts, Tensor target, int classes, Tensor? weight=None, int reduction=1, int ignore_index=-100, "
           "float label_smoothing=0.0, float scale=1.0, float? softcap=None, float z_loss=0.0, "
           "ScalarType? dtype=None) -> (Tensor, Tensor, Tensor)",
           cross_entropy_merge);
FASTOPS_OP("log_prob_merge",
           "(Tensor parts, Tensor target, int classes, int ignore_index=-100, float scale=1.0, float? softcap=None, "
           "bool entropy=False) -> (Tensor, Tensor, Tensor)",
           log_prob_merge);

}  // namespace fastops::ops
