// log_prob: the logarithm of a class's probability by logits, and the entropy of all
#include "host/likelihood.h"

namespace fastops::ops {

ThreeTensors log_prob(const Tensor& input, const Tensor& target, int64_t ignore_index, double scale,
                      std::optional<double> softcap, bool entropy) {
  if (!kernels_take(input))
    return call<ThreeTensors>("fastops::log_prob_reference", input, target, ignore_index, scale, softcap, entropy);
  return log_prob_forward("log_prob", input, target, {ignore_index, scale, softcap}, entropy);
}

Tensor log_prob_backward(const Tensor& grad, const OptionalTensor& grad_entropy, const Tensor& input,
                         const Tensor& target, const Tensor& lse, const Tensor& entropy, int64_t ignore_index,
                         double scale, std::optional<double> softcap, int64_t first_class,
                         std::optional<int64_t> classes) {
  if (!kernels_take(input))
    return call<Tensor>("fastops::log_prob_backward_reference", grad, grad_entropy, input, target, lse, entropy,
                        ignore_index, scale, softcap, first_class, classes);
  return fastops::log_prob_backward("log_prob_backward", grad, grad_entropy, input, target, lse, entropy,
                                    {ignore_index, scale, softcap, 0, 0, first_class, classes});
}

std::tuple<> log_prob_backward_out(const Tensor& grad, const OptionalTensor& grad_entropy, const Tensor& input,
                                   const Tensor& target, const Tensor& lse, const Tensor& entropy, int64_t ignore_index,
                                   double scale, std::optional<double> softcap, int64_t first_class, int64_t classes,
                                   const Tensor& out) {
  if (!kernels_take(input))
    return call<std::tuple<>>("fastops::log_prob_backward_out_reference", grad, grad_entropy, input, target, lse,
                              entropy, ignore_index, scale, softcap, first_class, classes, out);
  fastops::log_prob_backward("log_prob_backward_out", grad, grad_entropy, input, target, lse, entropy,
                             {ignore_index, scale, softcap, 0, 0, first_class, classes}, out);
  return {};
}

FASTOPS_OP("log_prob",
           "(Tensor input, Tensor target, int ignore_index=-100, float scale=1.0, float? softcap=None, "
           "bool entropy=False) -> (Tensor, Tensor, Tensor)",
           log_prob);
FASTOPS_OP("log_prob_backward",
           "(Tensor grad, Tensor? grad_entropy, Tensor input, Tensor target, Tensor lse, Tensor entropy, "
           "int ignore_index=-100, float scale=1.0, float? softcap=None, int first_class=0, "
           "int? classes=None) -> Tensor",
           log_prob_backward);

FASTOPS_OP("log_prob_backward_out",
           "(Tensor grad, Tensor? grad_entropy, Tensor input, Tensor target, Tensor lse, Tensor entropy, "
           "int ignore_index, float scale, float? softcap, int first_class, int classes, Tensor(a!) out) -> ()",
           log_prob_backward_out);

}  // namespace fastops::ops
