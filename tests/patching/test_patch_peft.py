"""Adapters of peft, added before patch and after: outputs and gradients as without patch."""

from __future__ import annotations

import pytest
import torch
from models import ids, same_step, step, tiny

import fastops
from fastops.patching.swap import is_swapped

peft = pytest.importorskip("peft")


def adapted(of: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(5)
    config = peft.LoraConfig(
        r=4,
        target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"],
        modules_to_save=["norm"],
        init_lora_weights=False,
        lora_dropout=0.0,
    )
    return peft.get_peft_model(of, config)


@pytest.mark.parametrize("first", [False, True])
def test_lora(first: bool) -> None:
    plain = adapted(tiny("llama"))
    expected = step(plain)
    model = tiny("llama")
    if first:
        report = fastops.patch(model)
        model = adapted(model)
    else:
        model = adapted(model)
        report = fastops.patch(model)
    assert sum("swiglu" in now for now in report.swapped.values()) == 2
    norms = [module for module in model.modules() if type(module).__name__ == "LlamaRMSNorm"]
    assert len(norms) == 10  # each and its trainable copy
    assert all(map(is_swapped, norms))
    same_step(step(model), expected)
    assert any("lora_A" in name and "up_proj" in name for name in expected[2])
    assert any("modules_to_save" in name for name in expected[2])
    with plain.disable_adapter(), model.disable_adapter():
        torch.testing.assert_close(model(ids()).logits, plain(ids()).logits)
