"""fastops.integrations.torchtitan by torchtitan's own overrides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

pytest.importorskip("torchtitan", reason="torchtitan is not installed")
pytest.importorskip("triton", reason="torchtitan's models import triton, which is not installed")

from torchtitan.config.configurable import Configurable
from torchtitan.config.override import OverrideConfig, apply_overrides
from torchtitan.models.common import nn_modules
from torchtitan.protocols.module import Module

WHERE = "fastops.integrations.torchtitan"
IMPORTS = [f"{WHERE}.rms_norm", f"{WHERE}.layer_norm"]
KINDS = {"rms": nn_modules.RMSNorm, "layer": nn_modules.LayerNorm}


class Centred(nn_modules.RMSNorm):
    """A norm of another formula, as torchtitan's models have them."""

    @dataclass(kw_only=True, slots=True)
    class Config(nn_modules.RMSNorm.Config):
        pass


class Tree(Module):
    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        rms: Any = None
        layer: Any = None
        centred: Any = None
        listed: list[Any] = field(default_factory=list)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.rms, self.layer = config.rms.build(), config.layer.build()


def tree(**options: Any) -> Configurable.Config:
    options = {"normalized_shape": 24, "eps": 0.25} | options
    return Tree.Config(
        rms=nn_modules.RMSNorm.Config(**options, param_init={"weight": torch.nn.init.ones_}),
        layer=nn_modules.LayerNorm.Config(**options),
        centred=Centred.Config(normalized_shape=24),
        listed=[nn_modules.RMSNorm.Config(normalized_shape=24)],
    )


def test_which_nodes_are_replaced() -> None:
    config = tree()
    assert len(apply_overrides(OverrideConfig(imports=IMPORTS), config)) == 3
    assert all(type(c).__module__ == WHERE for c in (config.rms, config.layer, *config.listed))
    assert type(config.centred) is Centred.Config, "its formula is another"
    assert config.rms.param_init == tree().rms.param_init
    assert (config.layer.normalized_shape, config.layer.eps) == (24, 0.25)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_modules(kind: str, affine: bool) -> None:
    config = tree(elementwise_affine=affine)
    expected = getattr(config, kind).build()
    apply_overrides(OverrideConfig(imports=IMPORTS), config)
    module = getattr(config.build(), kind)
    assert isinstance(module, KINDS[kind])
    assert module.state_dict().keys() == expected.state_dict().keys()
    for own, other in zip(module.parameters(), expected.parameters(), strict=True):
        torch.nn.init.uniform_(own)
        other.data.copy_(own.data)
    x = torch.randn(3, 24, requires_grad=True)
    y = module(x)
    assert y.grad_fn.name() == f"{kind}_normBackward", "fastops' own"
    incoming = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, *module.parameters()), incoming)
    reference = torch.autograd.grad(expected(x), (x, *expected.parameters()), incoming)
    torch.testing.assert_close(y, expected(x))
    torch.testing.assert_close(found, reference)
