"""The models: configs of transformers for the sizes that are timed. No weights are fetched; a seed makes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...selftest.checks import default_dtype
from ...selftest.target import NotThereError

SEED = 20
PATCH = 16  # pixels of a side of what is a token of an image


@dataclass(frozen=True)
class Size:
    """Of a model and of its batch. ``vocabulary`` is the number of classes of an image."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    batch: int
    tokens: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.layers, self.hidden, self.batch, self.tokens


@dataclass(frozen=True)
class Architecture:
    config: str  # names in transformers
    model: str
    options: Callable[[Size], dict[str, Any]]  # of the config
    sizes: dict[str, Size]  # the first is a GPU's default
    image: bool = False  # or a language model, whose loss is over its vocabulary


def _decoder(size: Size) -> dict[str, Any]:
    return {
        "vocab_size": size.vocabulary,
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "max_position_embeddings": size.tokens,
        "tie_word_embeddings": False,
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _gemma2(size: Size) -> dict[str, Any]:
    return _decoder(size) | {"query_pre_attn_scalar": size.head_dim}


def _gpt2(size: Size) -> dict[str, Any]:
    sizes = {"n_embd": size.hidden, "n_layer": size.layers, "n_head": size.heads, "n_inner": size.intermediate}
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    tokens = {"vocab_size": size.vocabulary, "n_positions": size.tokens, "bos_token_id": None, "eos_token_id": None}
    return {**sizes, **no_dropout, **tokens, "use_cache": False}


def _encoder(size: Size) -> dict[str, Any]:
    return {
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    }


def _bert(size: Size) -> dict[str, Any]:
    return _encoder(size) | {"vocab_size": size.vocabulary, "max_position_embeddings": size.tokens}


def _side(size: Size) -> int:
    """Pixels of an image whose tokens are its patches and one more."""
    return PATCH * math.isqrt(size.tokens - 1)


def _vit(size: Size) -> dict[str, Any]:
    return _encoder(size) | {"image_size": _side(size), "patch_size": PATCH, "num_labels": size.vocabulary}


_TINY = Size(2, 64, 160, 4, 2, 16, 512, 2, 32)
# Widths of Llama 3.2 1B, Qwen3 1.7B and Gemma 2 2B; the vocabulary of Llama 3 for the first two.
ARCHITECTURES = {
    "llama": Architecture(
        "LlamaConfig",
        "LlamaForCausalLM",
        _decoder,
        {"8layers": Size(8, 2048, 8192, 32, 8, 64, 128256, 4, 2048), "tiny": _TINY},
    ),
    "qwen3": Architecture(
        "Qwen3Config",
        "Qwen3ForCausalLM",
        _decoder,
        {"8layers": Size(8, 2048, 6144, 16, 8, 128, 128256, 4, 2048), "tiny": _TINY},
    ),
    "gemma2": Architecture(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        _gemma2,
        {"8layers": Size(8, 2304, 9216, 8, 4, 256, 256000, 2, 2048), "tiny": _TINY},
    ),
    "gpt2": Architecture(
        "GPT2Config",
        "GPT2LMHeadModel",
        _gpt2,
        {"base": Size(12, 768, 3072, 12, 12, 64, 50257, 8, 1024), "tiny": _TINY},
    ),
    "bert": Architecture(
        "BertConfig",
        "BertForMaskedLM",
        _bert,
        {"base": Size(12, 768, 3072, 12, 12, 64, 30522, 32, 512), "tiny": _TINY},
    ),
    "vit": Architecture(
        "ViTConfig",
        "ViTForImageClassification",
        _vit,
        {"base": Size(12, 768, 3072, 12, 12, 64, 1000, 64, 197), "tiny": Size(2, 64, 160, 4, 4, 16, 512, 2, 5)},
        image=True,
    ),
}


def size_of(arch: str, name: str | None, device: torch.device) -> str:
    """The size's name that is asked for, or the device's default."""
    sizes = ARCHITECTURES[arch].sizes
    if name is None:
        return "tiny" if device.type == "cpu" else next(iter(sizes))
    if name not in sizes:
        raise NotThereError(f"size of {arch} must be one of {', '.join(sizes)}, got {name!r}")
    return name


def build(arch: str, size: Size, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """In training mode, with parameters of this dtype, always the same; buffers and attention as the model has them."""
    import transformers

    architecture = ARCHITECTURES[arch]
    config = getattr(transformers, architecture.config)(**architecture.options(size))
    torch.manual_seed(SEED)
    with device, default_dtype(dtype):
        model: torch.nn.Module = getattr(transformers, architecture.model)(config)
    return model.train()


def batch_of(arch: str, size: Size, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """Random inputs and labels of a fixed seed."""
    generator = torch.Generator().manual_seed(SEED)
    if ARCHITECTURES[arch].image:
        side = _side(size)
        pixels = torch.randn(size.batch, 3, side, side, generator=generator).to(device, dtype)
        labels = torch.randint(size.vocabulary, (size.batch,), generator=generator)
        return {"pixel_values": pixels, "labels": labels.to(device)}
    tokens = torch.randint(size.vocabulary, (size.batch, size.tokens), generator=generator).to(device)
    return {"input_ids": tokens, "labels": tokens.clone()}
