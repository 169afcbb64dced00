"""Models of transformers: every norm with a weight is swapped, and logits, gradients and names are the same."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from models import KINDS, ids, same_step, step, tiny

import fastops
from fastops.patching.swap import is_swapped

# Blocks that are no gated unit by their structure: two projections, or experts in one tensor.
WITHOUT_GATED = {"bert", "falcon_h1", "gpt2", "mixtral", "nemotron", "starcoder2"}


@pytest.mark.parametrize("kind", KINDS)
def test_model(kind: str) -> None:
    model = tiny(kind)
    names = [name for name, _ in model.named_parameters()]
    classes = {name: type(module) for name, module in model.named_modules()}
    expected = step(model)
    report = fastops.patch(model)
    for name, module in model.named_modules():
        parameters = dict(module.named_parameters(recurse=False))
        if "norm" in type(module).__name__.lower() and parameters and "Gated" not in type(module).__name__:
            assert is_swapped(module), f"{name}: {report.left.get(name)}"
    assert kind in WITHOUT_GATED or any(" into " in now for now in report.swapped.values())
    assert [name for name, _ in model.named_parameters()] == names
    same_step(step(model), expected)
    report.undo()
    assert {name: type(module) for name, module in model.named_modules()} == classes
    after = step(model)
    assert torch.equal(after[0], expected[0])
    assert all(torch.equal(after[2][name], gradient) for name, gradient in expected[2].items())


_LATENT = {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16} | dict.fromkeys(
    ("head_dim", "v_head_dim", "qk_rope_head_dim", "qk_nope_head_dim"), 8
)
_EXPERTS = {"n_routed_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
_EXPERTS |= dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1)
_COMPRESSED = {"o_groups": 2, "o_lora_rank": 8, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
# By kind: half of a head is rotated, by tables of half its width; pairs become halves; the end of a head is rotated.
ROTATED = {
    "glm4": {},
    "nemotron": {},
    "deepseek_v3": _LATENT | _EXPERTS,
    "deepseek_v4": _LATENT | _EXPERTS | _COMPRESSED | {"head_dim": 16, "num_key_value_heads": 1},
}


@pytest.mark.parametrize("kind", ROTATED)
def test_rotations(kind: str) -> None:
    """Each call of what the report calls a rope is ours."""
    model = tiny(kind, **ROTATED[kind])
    expected = step(model)
    report = fastops.patch(model, only=["rope"])
    assert report.calls
    assert not report.left
    found = step(model)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-6)
    largest = max(float(gradient.abs().max()) for gradient in expected[2].values())
    torch.testing.assert_close(found[2], expected[2], rtol=0, atol=1e-6 * largest)
    made = {name: calls.made for name, calls in report.calls.items()}
    assert any(made.values())  # of a few tokens some parts of a model are not called
    assert {name: calls.ran for name, calls in report.calls.items()} == made


def test_save_pretrained(tmp_path: Path) -> None:
    model = tiny("llama")
    model.save_pretrained(tmp_path / "before")
    fastops.patch(model)
    model.save_pretrained(tmp_path / "after")
    for file in (tmp_path / "before").iterdir():
        assert (tmp_path / "after" / file.name).read_bytes() == file.read_bytes(), file.name
    again = type(model).from_pretrained(tmp_path / "after").eval()
    torch.testing.assert_close(again(ids()).logits, model(ids()).logits)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    model = tiny("qwen3").train()
    expected = step(model)
    fastops.patch(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    model.enable_input_require_grads()
    same_step(step(model), expected)


def test_bfloat16() -> None:
    model = tiny("llama").to(torch.bfloat16)
    expected = step(model)
    report = fastops.patch(model)
    assert len(report.swapped) == 9
    found = step(model)
    assert found[0].dtype == expected[0].dtype
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0.03 * float(expected[0].abs().max()))


def test_generate_and_deepcopy() -> None:
    model = tiny("gemma2")
    options = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(ids())}
    expected = model.generate(ids(), **options)
    fastops.patch(model)
    assert torch.equal(model.generate(ids(), **options), expected)
    assert torch.equal(copy.deepcopy(model).generate(ids(), **options), expected)


def test_compile() -> None:
    model = tiny("llama", num_hidden_layers=1)
    expected = model(ids(), use_cache=False).logits
    fastops.patch(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids(), use_cache=False).logits, expected, rtol=1e-5, atol=1e-6)
