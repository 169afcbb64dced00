// linear_cross_entropy, linear_log_prob and a shard's part of either: their schemas. What runs is composed of torch's products and
// of the losses' kernels in src/fastops/families/linear_walk.py: a product that adds takes a Scalar, and the stable ABI
// converts none.
#include "core/torch_edge.h"

namespace fastops::ops {

FASTOPS_SCHEMA("linear_cross_entropy",
               "(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias=None, Tensor? weight=None, "
               "int reduction=1, int ignore_index=-100, float label_smoothing=0.0, float scale=1.0, "
               "float? softcap=None, float z_loss=0.0, ScalarType? dtype=None, ScalarType? product=None, "
               "SymInt width=1, SymInt kept=0) -> (Tensor, Tensor, Tensor, Tensor)");
FASTOPS_SCHEMA("linear_cross_entropy_backward",
               "(Tensor grad, Tensor input, Tensor linear_weight, Tensor target, Tensor lse, Tensor total, "
               "Tensor logits, Tensor? linear_bias, Tensor? weight, int reduction, int ignore_index, "
               "float label_smoothing, float scale, float? softcap, float z_loss, ScalarType? product, "
               "bool need_input, bool need_weight, bool need_bias, SymInt width, int first_class=0, "
               "int? classes=None, ScalarType? input_dtype=None) -> (Tensor, Tensor, Tensor)");
FASTOPS_SCHEMA("linear_log_prob",
               "(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias=None, int ignore_index=-100, "
               "float scale=1.0, float? softcap=None, bool entropy=False, ScalarType? product=None, SymInt width=1, "
               "SymInt kept=0) -> (Tensor, Tensor, Tensor, Tensor)");
FASTOPS_SCHEMA("linear_log_prob_backward",
               "(Tensor grad, Tensor? grad_entropy, Tensor input, Tensor linear_weight, Tensor target, Tensor lse, "
               "Tensor entropy, Tensor logits, Tensor? linear_bias, int ignore_index, float scale, float? softcap, "
               "ScalarType? product, bool need_input, bool need_weight, bool need_bias, SymInt width, "
               "int first_class=0, int? classes=None, ScalarType? input_dtype=None) -> (Tensor, Tensor, Tensor)");
FASTOPS_SCHEMA("linear_likelihood_partial",
               "(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias, Tensor? weight, "
               "int first_class, int classes, int ignore_index, float label_smoothing, float scale, float? softcap, "
               "bool entropy, ScalarType? product, SymInt width, SymInt kept) -> (Tensor, Tensor)");

}  // namespace fastops::ops
