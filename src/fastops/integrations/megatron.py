"""The norm of Megatron's layer specs."""

from __future__ import annotations

from typing import Any

import torch

from .. import nn

_CLASSES: dict[str, type[nn.LayerNorm | nn.RMSNorm]] = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}


class Norm:
    r"""Builds :class:`fastops.nn.LayerNorm` or :class:`fastops.nn.RMSNorm`, as a config of Megatron says.

    A class, because Megatron's ``build_module`` returns a function as it is, without a call.

    Args:
        config: Megatron's ``TransformerConfig``, of which ``normalization`` chooses the class,
            ``layernorm_zero_centered_gamma`` adds 1 to the weight, which then starts at 0, and ``sequence_parallel``
            marks each parameter, whose gradients Megatron then sums over the tensor-parallel ranks.
        hidden_size (int): size of the rows.
        eps (float): added to the variance or the mean square.

    Raises:
        ValueError: another ``normalization``.

    Example::

        >>> spec = get_gpt_layer_local_spec(normalization="RMSNorm")
        >>> spec.submodules.input_layernorm = fastops.integrations.megatron.Norm
    """

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5) -> torch.nn.Module:  # type: ignore[misc]
        if config.normalization not in _CLASSES:
            names = " or ".join(_CLASSES)
            raise ValueError(f"[megatron.Norm] normalization must be {names}, got {config.normalization!r}")
        offset = 1.0 if config.layernorm_zero_centered_gamma else 0.0
        options = {"weight_offset": offset, "sequence_parallel": config.sequence_parallel}
        return _CLASSES[config.normalization](hidden_size, eps=eps, **options)
