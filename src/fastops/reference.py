"""The plain PyTorch compositions behind the operators: same signatures, same results, no kernel of ours.

They are the path for devices and dtypes without a kernel, the source of second derivatives, and what the tests compare
with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ._autocast import computes_wide, lower_precision, single_precision
from ._norm import trailing_dims
from ._product import check_operands, check_types, product
from .families.gated import gated_arguments
from .families.row import row_arguments
from .ops.add_layer_norm import add_layer_norm_reference
from .ops.add_rms_norm import add_rms_norm_reference
from .ops.axpby import axpby_reference
from .ops.cross_entropy import cross_entropy_reference, of_probabilities
from .ops.cross_entropy import raw_arguments as cross_entropy_arguments
from .ops.geglu import UNIT as GEGLU
from .ops.glu import UNIT as GLU
from .ops.layer_norm import layer_norm_reference
from .ops.linear import check_activation, linear_epilogue_reference
from .ops.linear_cross_entropy import linear_cross_entropy_reference
from .ops.linear_cross_entropy import raw_arguments as linear_cross_entropy_arguments
from .ops.linear_log_prob import linear_log_prob_reference
from .ops.linear_log_prob import raw_arguments as linear_log_prob_arguments
from .ops.lltm import lltm_cell_reference
from .ops.log_prob import log_prob_reference
from .ops.log_prob import raw_arguments as log_prob_arguments
from .ops.log_softmax import log_softmax_reference
from .ops.qk_norm_rope import qk_norm_rope_reference
from .ops.reglu import UNIT as REGLU
from .ops.relu import relu_reference as relu
from .ops.rms_norm import rms_norm_reference
from .ops.rope import rope_reference
from .ops.sigmoid import sigmoid_reference as sigmoid
from .ops.softmax import softmax_reference
from .ops.square import square_reference as square
from .ops.swiglu import UNIT as SWIGLU

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "axpby",
    "cross_entropy",
    "geglu",
    "glu",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "linear_log_prob",
    "lltm",
    "log_prob",
    "log_softmax",
    "qk_norm_rope",
    "reglu",
    "relu",
    "rms_norm",
    "rope",
    "sigmoid",
    "softmax",
    "square",
    "swiglu",
]


def axpby(x: Tensor, y: Tensor, alpha: complex = 1.0, beta: complex = 1.0) -> Tensor:
    """:func:`fastops.axpby` in plain PyTorch."""
    dtype = torch.result_type(x, y)
    return axpby_reference(x.to(dtype), y.to(dtype), alpha, beta)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    """:func:`fastops.linear` in plain PyTorch."""
    check_activation("linear", activation)
    check_types(input, weight, bias)
    input, weight, bias = lower_precision(input, weight, bias)  # type: ignore[assignment]
    if bias is None and weight.dim() == 1:
        return linear(input, weight.unsqueeze(0), None, activation).squeeze(-1)
    if bias is not None and (weight.dim() != 2 or bias.device != weight.device):
        check_operands(input, weight, bias, failed=True)
    return linear_epilogue_reference(product(input, weight), bias, activation or "none")


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    weight_offset: float = 0.0,
) -> Tensor:
    """:func:`fastops.layer_norm` in plain PyTorch."""
    if computes_wide(input):
        input, weight, bias = single_precision(input, weight, bias)  # type: ignore[assignment]
    dims = trailing_dims("layer_norm", input, normalized_shape)
    return layer_norm_reference(input, weight, bias, dims, eps, weight_offset)[0]


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    weight_offset: float = 0.0,
) -> Tensor:
    """:func:`fastops.rms_norm` in plain PyTorch."""
    if computes_wide(input):
        input, weight = single_precision(input, weight)  # type: ignore[assignment]
    dims = trailing_dims("rms_norm", input, normalized_shape)
    return rms_norm_reference(input, weight, dims, eps, weight_offset)[0]


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """:func:`fastops.add_layer_norm` in plain PyTorch."""
    if computes_wide(input):
        input, residual, weight, bias = single_precision(input, residual, weight, bias)  # type: ignore[assignment]
    dims = trailing_dims("add_layer_norm", input, normalized_shape)
    return add_layer_norm_reference(input, residual, weight, bias, dims, eps, weight_offset)[:2]


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """:func:`fastops.add_rms_norm` in plain PyTorch."""
    if computes_wide(input):
        input, residual, weight = single_precision(input, residual, weight)  # type: ignore[assignment]
    dims = trailing_dims("add_rms_norm", input, normalized_shape)
    return add_rms_norm_reference(input, residual, weight, dims, eps, weight_offset)[:2]


def lltm(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`fastops.lltm` in plain PyTorch."""
    input, weights, bias, old_h, old_cell = lower_precision(input, weights, bias, old_h, old_cell)  # type: ignore[assignment]
    gates = F.linear(torch.cat([old_h, input], 1), weights)
    return lltm_cell_reference(gates, bias.reshape(-1), old_cell)


def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None, *, scale: float = 1.0) -> Tensor:
    """:func:`fastops.softmax` in plain PyTorch."""
    return softmax_reference(*row_arguments("softmax", input, dim, scale, dtype))


def log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None, *, scale: float = 1.0) -> Tensor:
    """:func:`fastops.log_softmax` in plain PyTorch."""
    return log_softmax_reference(*row_arguments("log_softmax", input, dim, scale, dtype))


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`fastops.cross_entropy` in plain PyTorch."""
    arguments = cross_entropy_arguments(
        input, target, weight, ignore_index, reduction, label_smoothing, scale, softcap, z_loss, dtype
    )
    found = (of_probabilities if target.is_floating_point() else cross_entropy_reference)(*arguments)
    return found[:2] if return_lse else found[0]


def log_prob(
    input: Tensor,
    target: Tensor,
    *,
    scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`fastops.log_prob` in plain PyTorch."""
    found = log_prob_reference(*log_prob_arguments(input, target, scale, softcap, ignore_index, entropy))
    return found[:2] if entropy else found[0]


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
    save: str = "auto",
) -> Tensor:
    """:func:`fastops.linear_cross_entropy` in plain PyTorch, of the whole logits; targets are classes."""
    ignore_index = -100 if ignore_index is None else ignore_index
    options = (ignore_index, reduction, label_smoothing, scale, softcap, z_loss, dtype, save)
    arguments = linear_cross_entropy_arguments(input, linear_weight, target, linear_bias, weight, *options)
    return linear_cross_entropy_reference(*arguments)[0]


def linear_log_prob(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    entropy: bool = False,
    save: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`fastops.linear_log_prob` in plain PyTorch, of the whole logits."""
    options = (scale, softcap, ignore_index, entropy, save)
    found = linear_log_prob_reference(*linear_log_prob_arguments(input, linear_weight, target, linear_bias, *options))
    return found[:2] if entropy else found[0]


def swiglu(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    dim: int = -1,
    interleaved: bool = False,
    limit: float | None = None,
    alpha: float = 1.0,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    """:func:`fastops.swiglu` in plain PyTorch."""
    return SWIGLU.reference(*gated_arguments(SWIGLU, gate, up, dim, interleaved, limit, offset, row_scale, alpha))


def geglu(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    approximate: str = "none",
    dim: int = -1,
    interleaved: bool = False,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    """:func:`fastops.geglu` in plain PyTorch."""
    return GEGLU.reference(*gated_arguments(GEGLU, gate, up, dim, interleaved, limit, offset, row_scale, approximate))


def reglu(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    dim: int = -1,
    interleaved: bool = False,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    """:func:`fastops.reglu` in plain PyTorch."""
    return REGLU.reference(*gated_arguments(REGLU, gate, up, dim, interleaved, limit, offset, row_scale))


def glu(
    input: Tensor,
    dim: int = -1,
    *,
    gate: Tensor | None = None,
    interleaved: bool = False,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    """:func:`fastops.glu` in plain PyTorch."""
    return GLU.reference(*gated_arguments(GLU, input, gate, dim, interleaved, limit, offset, row_scale))


def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    seq_dim: int = -2,
) -> tuple[Tensor, Tensor | None]:
    """:func:`fastops.rope` in plain PyTorch."""
    of_q, of_k = rope_reference(q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim)
    return of_q, None if k is None else of_k


def qk_norm_rope(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float | None = None,
    *,
    weight_offset: float = 0.0,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    seq_dim: int = -2,
) -> tuple[Tensor, Tensor | None]:
    """:func:`fastops.qk_norm_rope` in plain PyTorch."""
    options = (positions, rotary_dim, interleaved, seq_dim, eps, weight_offset)
    of_q, of_k = qk_norm_rope_reference(q, k, q_weight, k_weight, cos, sin, *options)
    return of_q, None if k is None else of_k
