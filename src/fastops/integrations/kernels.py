"""Hugging Face's ``kernels``: fastops' layers under the names that transformers gives its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .activations import GELU, GELUTanh, SiLU
from .layers import GeGLUMLP, RotaryPosEmb, SwiGLUMLP
from .norms import RMSNorm, RMSNormZeroCentered

DEVICES = ("cpu", "cuda")
LAYERS: dict[str, type[nn.Module]] = {
    "RMSNorm": RMSNorm,
    "RMSNormZeroCentered": RMSNormZeroCentered,
    "rotary_pos_emb": RotaryPosEmb,
    "SwiGLUMLP": SwiGLUMLP,
    "GeGLUMLP": GeGLUMLP,
    "SiLU": SiLU,
    "GeLU": GELU,
    "GeluTanh": GELUTanh,
    "NewGELU": GELUTanh,
    "FastGELU": GELUTanh,
}


@dataclass(frozen=True)
class Installed:
    """What ``kernels`` takes for a repository: a layer of this package, which nothing fetches."""

    layer_name: str

    def load(self) -> type[nn.Module]:
        return LAYERS[self.layer_name]


def mapping() -> dict[str, dict[str, Installed]]:
    """fastops' layers for ``use_kernel_mapping`` and ``register_kernel_mapping`` of Hugging Face's ``kernels``.

    On CPU and CUDA and in every mode, training and inference, with ``torch.compile`` and without. A norm's eps is
    read from ``variance_epsilon`` or ``eps``. The rotary function of a model's module is one object, which
    ``kernelize`` replaces for every model of that class. transformers' ``KernelConfig`` takes names of repositories
    alone, and its ``use_kernels=True`` registers transformers' own mapping again: call ``kernelize`` as below.

    Example::

        >>> from kernels import Mode, kernelize, use_kernel_mapping
        >>> with use_kernel_mapping(fastops.integrations.kernels.mapping()):
        ...     kernelize(model, mode=Mode.TRAINING | Mode.TORCH_COMPILE)
    """
    return {name: dict.fromkeys(DEVICES, Installed(name)) for name in LAYERS}
