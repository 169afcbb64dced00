"""fastops.integrations.megatron in a layer that Megatron builds from a spec."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import fastops
from fastops.integrations.megatron import Norm

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what is not installed beside it
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

KINDS = {"LayerNorm": fastops.nn.LayerNorm, "RMSNorm": fastops.nn.RMSNorm}
every_kind = pytest.mark.parametrize("normalization", KINDS)


def config(**options: Any) -> Any:
    return TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=4, **options)


def built(config: Any, eps: float = 0.25) -> nn.Module:
    """As the layers of Megatron build a norm of their spec."""
    spec = get_gpt_layer_local_spec(normalization=config.normalization)
    spec.submodules.input_layernorm = Norm
    return build_module(spec.submodules.input_layernorm, config=config, hidden_size=32, eps=eps)


@every_kind
def test_against_megatrons_own(normalization: str) -> None:
    of = config(normalization=normalization)
    norm, expected = built(of), WrappedTorchNorm(of, 32, 0.25)
    assert type(norm) is KINDS[normalization]
    assert norm.state_dict().keys() == expected.state_dict().keys()
    torch.testing.assert_close(dict(norm.state_dict()), dict(expected.state_dict()))
    x = torch.randn(5, 2, 32)
    torch.testing.assert_close(norm(x), expected(x))


@every_kind
def test_zero_centered_gamma(normalization: str) -> None:
    norm = built(config(normalization=normalization, layernorm_zero_centered_gamma=True))
    assert not norm.weight.any()
    x = torch.randn(5, 2, 32)
    torch.testing.assert_close(norm(x), WrappedTorchNorm(config(normalization=normalization), 32, 0.25)(x))


@pytest.mark.parametrize("parallel", [True, False])
@every_kind
def test_sequence_parallel_is_on_each_parameter(normalization: str, parallel: bool) -> None:
    of = config(normalization=normalization, sequence_parallel=parallel, tensor_model_parallel_size=2)
    parameters = list(built(of).parameters())
    assert len(parameters) == (2 if normalization == "LayerNorm" else 1)
    assert all(getattr(p, "sequence_parallel", False) is parallel for p in parameters)


def test_another_normalization() -> None:
    with pytest.raises(ValueError, match=r"\[megatron.Norm\] normalization must be LayerNorm or RMSNorm, got 'L2Norm'"):
        Norm(config(normalization="L2Norm"), 32)
