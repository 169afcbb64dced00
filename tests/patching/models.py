"""Tiny models of transformers with random weights, and what a patched one is compared by."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

KINDS = (
    *("llama", "gemma", "gemma2", "gemma3_text", "qwen2", "qwen3", "mistral", "mixtral", "phi3", "olmo2", "granite"),
    *("cohere2", "nemotron", "smollm3", "exaone4", "starcoder2", "falcon_h1", "gpt2", "bert", "llama4_text"),
)

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# What these want beside or in place of it.
_OF_KIND: dict[str, dict[str, Any]] = {
    "bert": {"is_decoder": True},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1},
    "llama4_text": {"intermediate_size_mlp": 48, "num_local_experts": 2, "interleave_moe_layer_step": 2},
    "mixtral": {"num_local_experts": 2},
}


def tiny(kind: str, **changes: Any) -> torch.nn.Module:
    """A causal language model with norms' weights that are not 1."""
    transformers = pytest.importorskip("transformers")
    try:
        config = transformers.AutoConfig.for_model(kind, **{**_SIZES, **_OF_KIND.get(kind, {}), **changes})
    except ValueError as error:
        pytest.skip(f"this transformers has no {kind}: {error}")
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def ids() -> Tensor:
    return torch.randint(3, 64, (2, 9), generator=torch.Generator().manual_seed(4))


def step(model: torch.nn.Module) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Logits, loss and gradients."""
    model.zero_grad(set_to_none=True)
    output = model(ids(), labels=ids(), use_cache=False)
    output.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return output.logits.detach(), output.loss.detach(), gradients


def same_step(
    found: tuple[Tensor, Tensor, dict[str, Tensor]], expected: tuple[Tensor, Tensor, dict[str, Tensor]]
) -> None:
    """Logits within 1e-6 of the largest; gradients within 1e-5, of tensors that are not nothing beside the largest."""
    scale = float(expected[0].abs().max())
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-6 * max(scale, 1.0))
    torch.testing.assert_close(found[1], expected[1], rtol=1e-6, atol=0)
    assert found[2].keys() == expected[2].keys()
    largest = max(float(gradient.abs().max()) for gradient in expected[2].values())
    for name, gradient in expected[2].items():
        size = float(gradient.abs().max())
        if size > 1e-6 * largest:
            torch.testing.assert_close(
                found[2][name], gradient, rtol=0, atol=1e-5 * size, msg=lambda m, n=name: f"{n}: {m}"
            )
