"""Tables of cosines and sines, which rotary position embeddings are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from inspect import signature
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .. import nn
from .bits import all_same
from .checks import Outcome, default_dtype
from .forms import Worst
from .target import Target


def rotary_tables(t: Target) -> Iterator[Outcome]:
    """RotaryEmbedding by the formulas of its docstring, an angle at a time."""
    if t.case.name != "rope" or not t.first:
        return
    worst = Worst(t, "tables of RotaryEmbedding")
    for options, positions, interleaved in product(_ROTARY, _POSITIONS, (False, True)):
        module = nn.RotaryEmbedding(**options, interleaved=interleaved)
        at = torch.tensor(positions, device=t.path.device)
        tables = module(at)
        truth = [[p * f for f in _frequencies(max(positions) + 1, **options)] for p in positions]
        for function, table in zip((math.cos, math.sin), tables, strict=True):
            right = torch.tensor([[function(angle) for angle in row] for row in truth], dtype=torch.float64)
            right = right * _factor(**options)
            right = right.repeat_interleave(2, -1) if interleaved else torch.cat((right, right), -1)
            near = torch.allclose(table.cpu().double(), right, rtol=1e-7, atol=1e-9)
            where = f"{options} up to position {max(positions)}"
            worst.expect(near and table.dtype == torch.float32, "not the formula's, rounded to float32", where)
        for text, config, layer in _configs(**options):
            by_config = nn.RotaryEmbedding.from_config(config, layer_type=layer, interleaved=interleaved)
            _same_tables(worst, by_config(at), tables, f"{options} of {text}")
        with torch.device("meta"), default_dtype(torch.bfloat16):
            elsewhere = module(at)
        _same_tables(worst, elsewhere, tables, f"{options} where another device and dtype are the default")
        at += 1  # as a loop that decodes has it
        _same_tables(worst, module(at), module(at.clone()), f"{options} of positions that were changed in place")
        at -= 1
        batch, *each = (torch.stack((x, x.flip(0))) for x in (at, *tables))
        _same_tables(worst, module(batch), tuple(each), f"{options} of a batch")
    yarn = _LONGER | {"scaling": "yarn"}
    for name in ("mscale", "mscale_all_dim"):
        module, alone = nn.RotaryEmbedding(**yarn), nn.RotaryEmbedding.from_config(_config(**yarn | {name: 0.7}))
        few = torch.arange(5, device=t.path.device)
        _same_tables(worst, alone(few), module(few), f"a config with {name} alone")
    for options, dtype in product(_ROTARY, _INTEGERS):
        # Of a length that a byte does not hold.
        longer = options | ({"original_max_positions": 300} if "original_max_positions" in options else {})
        module, positions = nn.RotaryEmbedding(**longer), torch.tensor([0, 5, 100], device=t.path.device)
        _same_tables(worst, module(positions.to(dtype)), module(positions), f"{options} of positions of {dtype}")
    given = {name for options in _ROTARY for name in options} | {"interleaved"}
    worst.expect(given == {*signature(nn.RotaryEmbedding).parameters}, "every argument is to be given once", str(given))
    yield worst.outcome()


def _same_tables(worst: Worst, found: tuple[Tensor, ...], expected: tuple[Tensor, ...], where: str) -> None:
    worst.expect(all_same(found, expected), "other tables", where)


def _config(dim: int, base: float = 1e4, scaling: str = "default", **settings: Any) -> SimpleNamespace:
    """As transformers has it, of a model whose heads are half rotated."""
    longest = settings.pop("original_max_positions", 2048)
    scaled = {"rope_type": scaling, "rope_theta": base, "partial_rotary_factor": 0.5, **settings}
    if scaling in ("dynamic", "yarn", "llama3"):  # of the first it is not what counts
        scaled["original_max_position_embeddings"] = longest // (2 if scaling == "dynamic" else 1)
    return SimpleNamespace(head_dim=2 * dim, max_position_embeddings=longest, rope_parameters=scaled)


def _configs(**options: Any) -> Iterator[tuple[str, SimpleNamespace, str | None]]:
    """And for which type of layers: as transformers 5 has them, with settings for each, and as 4 and 3 do."""
    config = _config(**options)
    yield "a config", config, None
    settings = {**config.rope_parameters}
    by_layer = {"first": {**settings, "rope_theta": 77.0}, "second": settings}
    yield "layers", SimpleNamespace(**{**vars(config), "rope_parameters": by_layer}), "second"
    older = {"rope_theta": settings.pop("rope_theta"), "rope_scaling": settings}
    older["partial_rotary_factor"] = settings.pop("partial_rotary_factor")
    rest = {name: value for name, value in vars(config).items() if name != "rope_parameters"}
    yield "an older config", SimpleNamespace(**rest, **older), None
    older["rope_scaling"] = {"type": settings.pop("rope_type"), **settings}
    yield "one that says type", SimpleNamespace(**rest, **older), None
    of_heads = {"hidden_size": 6 * config.head_dim, "num_attention_heads": 6, "num_key_value_heads": 2}
    rest = {name: value for name, value in vars(config).items() if name != "head_dim"}
    yield "a config without the heads' width", SimpleNamespace(**rest, **of_heads), None
    latent = {"qk_rope_head_dim": config.head_dim, "hidden_size": 7 * config.head_dim, "num_attention_heads": 9}
    yield "a config of latent attention", SimpleNamespace(**rest, **latent), None


_POSITIONS = [0, 1, 5], [63, 64, 4095, 100_003], [(1 << 24) + 1]  # which float32 does not hold
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)


_LONGER: dict[str, Any] = {"dim": 16, "base": 500000.0, "factor": 8.0, "original_max_positions": 64}
_ROTARY: tuple[dict[str, Any], ...] = (
    {"dim": 2},
    {"dim": 16, "base": 500.0},
    {"dim": 16, "scaling": "linear", "factor": 4.0},
    _LONGER | {"scaling": "dynamic"},
    _LONGER | {"scaling": "yarn"},
    _LONGER | {"scaling": "yarn", "mscale": 0.7, "mscale_all_dim": 0.3, "beta_fast": 4.0, "truncate": False},
    _LONGER | {"scaling": "yarn", "attention_factor": 1.5},
    _LONGER | {"scaling": "yarn", "beta_slow": 2.5},
    # Whose ramp ends behind the last angle.
    _LONGER | {"scaling": "yarn", "base": 500.0, "original_max_positions": 1 << 20},
    _LONGER | {"scaling": "llama3", "original_max_positions": 8192},
    _LONGER | {"scaling": "llama3", "low_freq_factor": 0.5, "high_freq_factor": 2.0},
)


def _frequencies(
    length: int,
    dim: int,
    base: float = 1e4,
    scaling: str = "default",
    factor: float = 1.0,
    original_max_positions: int = 1,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    **_: float,
) -> Iterator[float]:
    longest = original_max_positions
    if scaling == "dynamic":
        base *= (factor * max(length, longest) / longest - (factor - 1)) ** (dim / (dim - 2))
    for i in range(dim // 2):
        f = base ** (-2 * i / dim)
        kept = 0.0 if scaling == "linear" else 1.0
        if scaling == "yarn":
            first, last = (
                dim * math.log(longest / (math.tau * turns)) / (2 * math.log(base)) for turns in (beta_fast, beta_slow)
            )
            if truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, dim - 1)
            kept = 1 - min(max((i - first) / (last - first), 0.0), 1.0)
        elif scaling == "llama3":
            kept = min(max((longest * f / math.tau - low_freq_factor) / (high_freq_factor - low_freq_factor), 0.0), 1.0)
        yield f * kept + f / factor * (1 - kept)


def _factor(
    scaling: str = "default",
    factor: float = 1.0,
    attention_factor: float | None = None,
    mscale: float = 1.0,
    mscale_all_dim: float = 0.0,
    **_: Any,
) -> float:
    if scaling != "yarn" or attention_factor:
        return attention_factor or 1.0
    return (1 + 0.1 * mscale * math.log(factor)) / (1 + 0.1 * mscale_all_dim * math.log(factor))
