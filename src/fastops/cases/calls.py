"""Calls of the public functions by keyword: every optional tensor, and each option.

Some options are no numbers of float32, so that one that is rounded to it on its way shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch

from .case import Call, Calls
from .inputs import HALVES, Make, transposed
from .losses import IGNORED
from .norms import halves
from .rope import MOST_ROTATED

Options = dict[str, Any]


def _each(tensors: Options, *options: Options, **needs: str) -> Iterator[Call]:
    return (Call(tensors | given, needs=needs) for given in options)


def elementwise(make: Make) -> Iterator[Call]:
    return _each({"input": make(2, 3, 4)}, {})


def gated(first: str, second: str, *own: Options) -> Calls:
    def calls(make: Make) -> Iterator[Call]:
        scale = make(2, 3, dtype=make.parameter_dtype)
        tensors = {first: make(2, 3, 8, scale=2.0), second: make(2, 3, 8), "row_scale": scale}
        turns = {second: None, "interleaved": True}
        # Whose squares overflow in float32.
        far = (tensors | {first: _far(tensors[first], 1e20)} | given for given in own if "approximate" in given)
        # At the limit itself the derivative is that of what is not bounded, of gate and of up.
        at_limit = {first: tensors[first].clamp(max=1.25), second: tensors[second].clamp(-1.25, 1.25)}
        options: tuple[Options, ...] = (
            {"limit": 1.25, "offset": 0.5},
            {"limit": 1.25, **at_limit},
            {"limit": 0.7, "row_scale": None},
            {"offset": -1.4, "row_scale": None},
            {"limit": 0.0, "offset": 1},
            turns,
            turns | {"dim": 0, "row_scale": None},
            {second: None, "dim": 0, "row_scale": None},
            *own,
        )
        return chain(_each(tensors, *options), (Call(given, needs={first: second}, unlike_torch=True) for given in far))

    return calls


def _far(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x * (100.0 if x.dtype == torch.float16 else scale)


def axpby(make: Make) -> Iterator[Call]:
    options = {"alpha": 0.5}, {"beta": -2.0}, {"alpha": 0, "beta": 3}, {"x": make(4)}
    return _each({"x": make(3, 4), "y": make(3, 4)}, *options)


def norm(layer: bool, residual: bool) -> Calls:
    def calls(make: Make) -> Iterator[Call]:
        def rows(scale: float) -> Options:
            total = make(2, 3, 2, 4, scale=scale)
            return dict(zip(("input", "residual"), halves(total), strict=True)) if residual else {"input": total}

        affine = {"weight": make(2, 4)} | ({"bias": make(2, 4)} if layer else {})
        of_shape = {"normalized_shape": (2, 4), **affine}
        several = rows(1.0)
        wide = {name: x.to(make.parameter_dtype) for name, x in affine.items()}
        last: Options = {"normalized_shape": (24,), **{name: make(24) for name in affine}}
        total = make(3, 24)
        last |= dict(zip(several, halves(total) if residual else (total,), strict=True))
        yield from _each(
            several | of_shape,
            {"weight_offset": 1.0, "eps": 1e-2},
            {"weight_offset": -0.4},
            {"eps": 0.5},
            rows(1e-3) | {"eps": 0},
            rows(1e-3) | {"eps": 1e-8},  # below float16's smallest number
            wide,
            {name: x[0, 0] for name, x in several.items()} | wide,
            last,
            last | {"weight_offset": 1.0},
        )
        if not layer:  # an eps of None beside numbers whose squares are as small
            eps = torch.finfo(torch.float64 if make.dtype == torch.float64 else torch.float32).eps
            yield Call(rows(eps**0.5) | of_shape | {"eps": None}, {"eps": eps})

    return calls


def rows(make: Make) -> Iterator[Call]:
    x = make(3, 4, 5, scale=2.0)
    wide, least = {"dtype": make.parameter_dtype}, {"scale": 1e-46}  # 0 in float32
    options = {"scale": -0.6}, {"scale": 0.0}, least, {"dim": -1, "scale": 2.0, **wide}, wide
    return _each({"input": x, "dim": 1}, *options)


def linear(make: Make) -> Iterator[Call]:
    tensors = {"input": make(2, 3, 4), "weight": make(5, 4, scale=0.5), "bias": make(5)}
    wide = tensors["bias"].to(make.parameter_dtype)
    # Whose third powers overflow in float32.
    far = _far(tensors["input"], 1e15)
    return _each(
        tensors,
        {"activation": "gelu"},
        {"bias": wide},
        {"activation": "gelu_tanh", "input": far},
        {"activation": "sigmoid", "bias": wide},
        {"activation": "relu"},
        *([] if make.dtype in HALVES else [{"activation": "sigmoid", "input": _far(tensors["input"], 100.0)}]),
        {"activation": "silu", "input": make(2, 1, 4), "weight": make(4), "bias": None},
    )


_OF_LOGITS: tuple[Options, ...] = ({"scale": -0.7}, {"softcap": 3.3}, {"softcap": 3e3}, {"scale": 0})
_OF_LOSS: tuple[Options, ...] = (
    {"reduction": "sum", "scale": -1.5, "softcap": 5.0, "z_loss": 1e-2, "label_smoothing": 0.2},
    {"reduction": "none"},
    {"label_smoothing": 0.1},
    {"z_loss": 0.05},
    *_OF_LOGITS,
)
_ENTROPY: tuple[Options, ...] = ({"entropy": True, "scale": 0.5, "softcap": 4.0}, {"entropy": True}, *_OF_LOGITS)
_SAVES: tuple[Options, ...] = ({"save": "logits"}, {"save": "none"})


def losses(linear: bool, likelihood: bool) -> Calls:
    """By logits, or by hidden states and a head; of a mean, or of each row."""

    def calls(make: Make) -> Iterator[Call]:
        target = make.integers(2, 3, below=5)
        target[0, 1] = IGNORED
        shape = (2, 3, 4) if linear else (2, 3, 5) if likelihood else (2, 5, 3)
        tensors: Options = {"input": make(*shape, scale=1.0 if linear else 2.0), "target": target}
        if linear:
            tensors |= {"linear_weight": make(5, 4, scale=0.5), "linear_bias": make(5)}
        ignored: Options = {"ignore_index": 0, "target": torch.where(target < 0, 0, target)}
        # 255 marks what is ignored, as in segmentation masks.
        bytes_: Options = {
            "target": transposed(torch.where(target < 0, 255, target).to(torch.uint8)),
            "ignore_index": 255,
        }
        # Of many classes one has, as a byte, the bits of what is ignored.
        other = Make(make.device, make.dtype, 1)
        of_many: Options = {"target": torch.tensor([256 + IGNORED, 3], dtype=torch.uint8, device=make.device)}
        if linear:
            of_many |= {"input": other(2, 4), "linear_weight": other(160, 4, scale=0.5), "linear_bias": None}
        else:
            of_many["input"] = other(2, 160)
        if likelihood:
            masked = tensors["input"].clone()
            if not linear:  # a class that is not the last row's target
                masked[1, 2, (int(target[1, 2]) + 1) % 5] = -torch.inf
            own: tuple[Options, ...] = _SAVES if linear else ({"input": masked, "entropy": True},)
            return _each(tensors, *_ENTROPY, ignored, bytes_, of_many, *own)
        of_many["weight"] = None
        tensors["weight"] = make(5).abs().add(0.1)
        wide, widest, narrow = {"dtype": make.parameter_dtype}, {"dtype": torch.float64}, {"dtype": torch.bfloat16}
        single = {"dtype": torch.float32}
        none_kept = {"target": torch.full_like(target, IGNORED)}
        of_single = {"weight": tensors["weight"].float()}
        smooth = {"label_smoothing": 1, "weight": None}
        if linear:
            several = {"target": target.unflatten(1, (3, 1)), "linear_weight": make(5, 1, 4), "linear_bias": make(5, 1)}
            likely = {"target": make(2, 3, 5).softmax(2), "softcap": 2.0, "scale": 1.5, "label_smoothing": 0.1}
            rest = (
                ignored,
                bytes_,
                of_many,
                none_kept,
                smooth,
                wide,
                widest,
                narrow,
                single,
                of_single,
                {"ignore_index": None},
            )
            of_op = _each(tensors, *_OF_LOSS, *_SAVES, *rest)
            of_one = {"input": make(4), "target": make(5).softmax(0)}
            of_each = several | {"ignore_index": 0, "target": ignored["target"].unflatten(1, (3, 1))}
            others = likely, several, several | {"softcap": 2.0}, of_each, of_one
            of_others = (Call(tensors | given, public=True) for given in others)
            return chain(of_op, of_others)
        # Near the least loss of a smoothed target, where its gradient is the difference of nearly equal numbers:
        # float32, which the half types are computed in, has digits for theirs alone.
        sure = 3.9 * torch.eye(5)[target.cpu().clamp(0)].movedim(-1, 1).to(target.device)
        sure = make(2, 5, 3, scale=0.05) + (sure.to(make.dtype) if make.dtype in HALVES else 0)
        near = {"label_smoothing": 0.1, "weight": None, "input": sure}
        # Of the mean by the number of rows.
        likely = {"target": make(2, 5, 3).softmax(1), "label_smoothing": 0.1}
        of_one = {"input": make(5), "target": make(5).softmax(0)}
        options: tuple[Options, ...] = (
            ignored,
            bytes_,
            of_many,
            none_kept,
            smooth,
            near,
            of_one,
            likely,
            likely | _OF_LOSS[0] | {"return_lse": True},
            wide | {"target": make(2, 5, 3, dtype=make.parameter_dtype).softmax(1)},
            wide,
            widest,
            narrow,
            single,
            of_single,
        )
        return _each(tensors, _OF_LOSS[0] | {"return_lse": True}, *_OF_LOSS[1:], *options)

    return calls


# More is not rotated than half of the longest head, and more is than qk_norm_rope's kernels on CUDA take.
_LONG_HEAD, _LONG_ROTATED = MOST_ROTATED * 3 // 4, 500


_OTHER = {
    torch.float64: torch.float32,
    torch.float32: torch.bfloat16,
    torch.bfloat16: torch.float16,
    torch.float16: torch.bfloat16,
}


def rope(norm: bool) -> Calls:
    def calls(make: Make) -> Iterator[Call]:
        def heads(count: int) -> Any:
            return make(2, count, 5, 8)

        wide = make.parameter_dtype
        other = _OTHER[make.dtype]
        full, half = make(2, 5, 8, dtype=wide), make(2, 5, 4, dtype=wide)
        of_both = make(2, 5, 16, dtype=wide)  # of each sequence
        positions = make.integers(2, 5, below=5)
        weights = {"q_weight": make(8, dtype=wide), "k_weight": make(8, dtype=wide), "eps": 1e-2} if norm else {}
        q, k = heads(3), heads(2)
        tensors = {"q": q, "k": k, **weights, "cos": full[0], "sin": full[1], "positions": positions}
        narrow = {"cos": half[0], "sin": half[1]}
        odd = {"cos": half[0, :, :3], "sin": half[1, :, :3]}
        by_token = {"q": q.movedim(-2, -3).contiguous(), "k": k.movedim(-2, -3).contiguous(), "seq_dim": -3}
        # Positions, in steps of two, and half tables of the first of two batch dimensions, broadcast along the other.
        stepped = {"positions": make.integers(2, 1, 10, below=5)[..., ::2]}
        two_batches = {"q": make(2, 3, 3, 5, 8), "k": make(2, 3, 2, 5, 8), "seq_dim": -2}
        cos, sin = make(2, 2, 1, 5, 4, dtype=wide)
        yield from _each(
            tensors,
            {},
            {"interleaved": True, "positions": positions.int()},
            narrow | {"rotary_dim": 4},
            narrow | {"rotary_dim": 8, "interleaved": True},
            by_token,
            by_token | {"seq_dim": 1},
            {"seq_dim": 2},
            {"q": q.movedim(-2, 0).contiguous(), "k": k.movedim(-2, 0).contiguous(), "seq_dim": 0},
            {"positions": positions[0]},
            two_batches | stepped,
            two_batches | {"positions": None, "cos": cos, "sin": sin, "rotary_dim": 8},
            {"cos": full[0].to(other), "sin": full[1].to(other)},
            {"cos": of_both[..., :8], "sin": of_both[..., 8:], "positions": None},
            {"k": None} | ({"k_weight": None} if norm else {}),
            *([{"weight_offset": 1.0}] if norm else []),
            **({"k_weight": "k"} if norm else {}),
        )
        yield Call(tensors | odd, {"rotary_dim": 6}, {"k_weight": "k"} if norm else {})
        if make.device.type == "cpu" or not norm:  # else it is the composition's, with less exact means
            long = {name: make(1, 1, 2, _LONG_HEAD) for name in ("q", "k")} | {
                "positions": None,
                "rotary_dim": _LONG_ROTATED,
            }
            long |= {name: make(_LONG_HEAD, dtype=wide) for name in weights if name != "eps"}
            long |= {name: make(2, _LONG_ROTATED, dtype=wide) for name in ("cos", "sin")}
            yield Call(tensors | long, needs={"k_weight": "k"} if norm else {})
        if norm:
            eps = torch.finfo(torch.float64 if make.dtype == torch.float64 else torch.float32).eps
            small = {name: x * (eps**0.5 / 2) for name, x in (("q", q), ("k", k))}
            yield Call(tensors | small | {"eps": None}, {"eps": eps}, {"k_weight": "k"})

    return calls
