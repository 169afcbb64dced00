"""Tiny causal language models of transformers, from configs, with random weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

CLASSES = 97
_SMALL = {
    "vocab_size": CLASSES,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_HEADS_OF_8 = {"head_dim": 8}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
# By model: the names of its classes begin with it, what its config has beside the above, and whether it has a rope.
MODELS: dict[str, tuple[dict[str, Any], bool]] = {
    "Llama": ({}, True),
    "Mistral": ({}, True),
    "Qwen3": (_HEADS_OF_8, True),
    "Phi3": ({"partial_rotary_factor": 0.5}, True),
    "Gemma2": (_HEADS_OF_8 | {"final_logit_softcapping": 2.0}, True),
    "Cohere": ({"logit_scale": 0.25, "head_dim": 8}, True),
    "Granite": ({"logits_scaling": 4.0, "attention_dropout": 0.0}, True),
    "GPT2": (_GPT2 | {"attn_pdrop": 0.0, "tie_word_embeddings": True}, False),
}
each_model = pytest.mark.parametrize("name", MODELS)


def built(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    config = getattr(transformers, f"{name}Config")(**(_SMALL | MODELS[name][0] | options))
    kind = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    torch.manual_seed(4)
    model = getattr(transformers, f"{name}{kind}")(config)
    with torch.no_grad():  # the heads' own are so small that their losses are that of no head at all
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    return model.to(dtype).train()


def batch(rows: int = 2, tokens: int = 9) -> dict[str, Tensor]:
    ids = torch.randint(3, CLASSES, (rows, tokens), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :3] = -100
    return {"input_ids": ids, "labels": labels}


def step(model: Any, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    """Outputs and gradients by name, which the model does not keep."""
    model.zero_grad(set_to_none=True)
    outputs = model(**(batch() | options))
    outputs.loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return outputs, gradients


def assert_same_step(found: Any, expected: Any, tolerance: float) -> None:
    """Loss, logits and each gradient, within this of the largest number of each; of a gradient within five times."""
    assert found[1].keys() == expected[1].keys()
    pairs = {"loss": (found[0].loss, expected[0].loss), "logits": (found[0].logits, expected[0].logits)}
    largest = max(float(g.abs().max()) for g in expected[1].values())
    pairs |= {name: (found[1][name], expected[1][name]) for name in expected[1]}
    for name, (a, b) in pairs.items():
        is_gradient = name not in ("loss", "logits")
        # Biases of keys have no gradient but rounding.
        scale = max(float(b.detach().abs().max()), 1e-3 * largest if is_gradient else 0.0) * (5 if is_gradient else 1)
        torch.testing.assert_close(
            a.detach().double(), b.detach().double(), rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


def classes_of(model: Any) -> dict[str, type]:
    return {name: type(module) for name, module in model.named_modules()}


def contents_of(model: Any) -> dict[str, list[str]]:
    return {name: sorted(module.__dict__) for name, module in model.named_modules()}


def in_float64(name: str, model: Any) -> Any:
    """The unpatched model of the same weights in float64."""
    wide = built(name, torch.float64)
    wide.load_state_dict({key: value.double() for key, value in copy.deepcopy(model.state_dict()).items()})
    return wide
