"""A patched model in the training loops that people have: transformers' Trainer, with accelerate, and TRL's."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastops

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
datasets = pytest.importorskip("datasets", reason="datasets is not installed")

VOCABULARY = 96
ROWS = [[(7 * row + 5 * k * k) % VOCABULARY for k in range(24 + row)] for row in range(8)]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(20)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config)


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models

    words = {f"<{n}>": n for n in range(VOCABULARY)}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<3>")),
        pad_token="<0>",
        bos_token="<1>",
        eos_token="<2>",
    )


def options(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
    }


def by_transformers(model: nn.Module, folder: Path) -> Any:
    rows = datasets.Dataset.from_dict({"input_ids": ROWS})
    collator = transformers.DataCollatorForLanguageModeling(tokenizer(), mlm=False)
    arguments = transformers.TrainingArguments(**options(folder))
    return transformers.Trainer(model, arguments, train_dataset=rows, data_collator=collator)


def by_trl(model: nn.Module, folder: Path) -> Any:
    trl = pytest.importorskip("trl", reason="trl is not installed")
    rows = datasets.Dataset.from_dict({"input_ids": ROWS})
    arguments = trl.SFTConfig(**options(folder), gradient_checkpointing=False)
    return trl.SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer())


TRAINERS = {"transformers": by_transformers, "TRL": by_trl}


@pytest.mark.parametrize("name", TRAINERS)
def test_trains_alike(name: str, model: nn.Module, tmp_path: Path) -> None:
    """Losses, gradient norms and, of TRL, what it reads from the logits."""
    histories, trained = [], []
    for patched in (False, True):
        own = copy.deepcopy(model)
        if patched:
            report = fastops.patch(own, loss=True)
            assert any("cross_entropy" in what for what in report.swapped.values())
        trainer = TRAINERS[name](own, tmp_path)
        trainer.train()
        histories.append([entry for entry in trainer.state.log_history if "loss" in entry])
        trained.append(dict(own.named_parameters()))
    eager, ours = histories
    assert len(eager) == 4
    read = {"loss", "grad_norm", "mean_token_accuracy", "entropy"} & set(eager[0])
    assert len(read) == (4 if name == "TRL" else 2)
    for one, other in zip(eager, ours, strict=True):
        assert {key: other[key] for key in read} == pytest.approx({key: one[key] for key in read}, rel=2e-3)
    assert eager[-1]["loss"] < eager[0]["loss"]
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-2, atol=1e-3)  # Adam's first steps divide by themselves
