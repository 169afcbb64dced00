"""patch(loss=True) on a GPU: tiny language models against themselves unpatched in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from language_models import assert_same_step, batch, built, each_model, in_float64, step

import fastops


def on(device: torch.device, name: str, dtype: torch.dtype) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model there, and a batch."""
    return built(name, dtype).to(device), {key: value.to(device) for key, value in batch().items()}


@each_model
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)], ids=["float32", "bfloat16"]
)
def test_equals_itself(name: str, dtype: torch.dtype, tolerance: float, cuda: torch.device) -> None:
    model, inputs = on(cuda, name, dtype)
    exact = step(in_float64(name, model).to(cuda), **inputs)
    report = fastops.patch(model, loss=True)
    assert report.left == {}
    found = step(model, **inputs)
    assert found[0].logits.is_deferred
    assert_same_step(found, exact, tolerance)


def test_autocast(cuda: torch.device) -> None:
    model, inputs = on(cuda, "Llama", torch.float32)
    exact = step(in_float64("Llama", model).to(cuda), **inputs)
    fastops.patch(model, loss=True)
    with torch.autocast("cuda", torch.bfloat16):
        found = step(model, **inputs)
    assert_same_step(found, exact, 4e-2)


def test_compile(cuda: torch.device) -> None:
    model, inputs = on(cuda, "Qwen3", torch.float32)
    exact = step(in_float64("Qwen3", model).to(cuda), **inputs)
    fastops.patch(model, loss=True)
    model.compile(fullgraph=True)
    assert_same_step(step(model, **inputs), exact, 1e-5)


def test_random_numbers_stay(cuda: torch.device) -> None:
    """The CPU's and the card's, where modules are made and tried too."""
    model, inputs = on(cuda, "Llama", torch.float32)
    before = torch.get_rng_state(), torch.cuda.get_rng_state(cuda)
    report = fastops.patch(model, loss=True)
    step(model, **inputs)  # some proofs wait for the first call
    assert report.left == {}
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.cuda.get_rng_state(cuda), before[1])
