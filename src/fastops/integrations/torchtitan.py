"""Overrides of torchtitan's norms: ``--override.imports fastops.integrations.torchtitan.rms_norm``, ``.layer_norm``.

The modules keep torchtitan's classes, fields, parameters and initialisation. Where a node's class is a subclass of
torchtitan's norm it is left, because its formula is another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torchtitan.config import derive, override  # type: ignore[import-not-found]
from torchtitan.models.common import nn_modules  # type: ignore[import-not-found]

from .. import ops


class RMSNorm(nn_modules.RMSNorm):  # type: ignore[misc]
    """torchtitan's RMSNorm by :func:`fastops.rms_norm`."""

    @dataclass(kw_only=True, slots=True)
    class Config(nn_modules.RMSNorm.Config):  # type: ignore[misc]
        pass

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class LayerNorm(nn_modules.LayerNorm):  # type: ignore[misc]
    """torchtitan's LayerNorm by :func:`fastops.layer_norm`."""

    @dataclass(kw_only=True, slots=True)
    class Config(nn_modules.LayerNorm.Config):  # type: ignore[misc]
        pass

    def forward(self, input: Tensor) -> Tensor:
        return ops.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


@override(target=nn_modules.RMSNorm.Config, description="fastops.rms_norm", exact=True)  # type: ignore[untyped-decorator]
def rms_norm(cfg: nn_modules.RMSNorm.Config) -> Any:
    return derive(cfg, RMSNorm.Config)


@override(target=nn_modules.LayerNorm.Config, description="fastops.layer_norm", exact=True)  # type: ignore[untyped-decorator]
def layer_norm(cfg: nn_modules.LayerNorm.Config) -> Any:
    return derive(cfg, LayerNorm.Config)
