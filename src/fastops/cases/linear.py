"""Inputs of linear, and its formula."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.linear import ACTIVATIONS
from .case import RawCall, Sample
from .inputs import LAYOUTS, Layout, Make, expanded, laid_out, misaligned, transposed


def gelu(u: Tensor) -> Tensor:
    """F.gelu is u·(1 + erf) / 2, which cancels in the left tail even in float64."""
    return u * torch.erfc(u * -(0.5**0.5)) / 2


def gelu_tanh(u: Tensor) -> Tensor:
    """u·sigmoid(2z), since 1 + tanh(z) cancels likewise, and y·(1 - y), autograd's of sigmoid, in the right tail."""
    t = 2 * (2 / math.pi) ** 0.5 * (u + 0.044715 * u**3)
    return u * torch.where(t < 0, torch.sigmoid(t), 1 - torch.sigmoid(-t))


PLAIN_ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda u: u,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": F.silu,
}


def plain(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    u = input @ (weight.mT if weight.dim() > 1 else weight)
    return PLAIN_ACTIVATIONS[activation](u if bias is None else u + bias)


TORCH_ACTIVATIONS = PLAIN_ACTIVATIONS | {
    "gelu": F.gelu,
    "gelu_tanh": lambda u: F.gelu(u, approximate="tanh"),
}


def torch_op(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    return TORCH_ACTIVATIONS[activation](F.linear(input, weight, bias))


def samples() -> Iterator[Sample]:
    def sample(
        name: str,
        activation: str | None,
        leading: tuple[int, ...],
        k: int,
        n: int,
        bias: str | None = "own",
        x: Layout | None = None,
        w: Layout | None = None,
        b: Layout | None = None,
        scale: float = 1.0,
        **flags: bool,
    ) -> Sample:
        def build(make: Make) -> tuple[Any, ...]:
            dtype = make.parameter_dtype if bias == "f32" else make.dtype
            if activation == "relu":
                # Whole numbers and a half: products and sums are exact and none is near the kink, where the rounding of
                # the product would decide whether a gradient is there.
                first = make(*leading, k, layout=lambda t: laid_out(t.round(), x))
                second = make(n, k, layout=lambda t: laid_out(t.round(), w))
                third = make(n, dtype=dtype, layout=lambda t: laid_out(t.round() + 0.5, b))
            else:
                first = make(*leading, k, layout=x, scale=scale)
                second = make(n, k, scale=max(k, 1) ** -0.5, layout=w)  # the product then has variance 1
                third = make(n, dtype=dtype, layout=b)
            return first, second, third if bias else None, activation

        return Sample(f"{activation or 'none'}-{name}", build, **flags)

    for a in (None, *ACTIVATIONS):
        yield sample("small", a, (3,), 4, 5, small=True)
        yield sample("3d", a, (2, 3), 5, 7)
        yield sample("wide", a, (37,), 64, 65)
        yield sample("no_bias", a, (7,), 13, 17, bias=None)
        yield sample("f32_bias", a, (37,), 31, 33, bias="f32")
        yield sample("no_rows", a, (0,), 5, 3)
        yield sample("many_rows", a, (4099,), 16, 19, large=True)
        yield sample("whole_words", a, (37,), 16, 64)
        yield sample("whole_vectors", a, (601,), 8, 1024, large=True)
        yield sample("part_vectors", a, (1401,), 8, 451, large=True)
    yield sample("far", "silu", (37,), 5, 33, scale=60.0)
    yield sample(
        "many_outputs", "gelu", (33,), 2, 67601, large=True
    )  # on GPUs of up to 132 multiprocessors the bias's tiles are all blocks
    for a in ("gelu", "relu"):
        yield sample("one", a, (1,), 1, 1)
        yield sample("vector", a, (), 5, 3)
        yield sample("long", a, (3,), 4, 4099, bias="f32")
        yield sample("rows_in_pairs", a, (2201,), 8, 1024, large=True)
        yield sample("whole_vectors_f32_bias", a, (601,), 8, 1024, bias="f32", large=True)
        yield sample("whole_vectors_misaligned_bias", a, (601,), 8, 1024, b=misaligned, large=True)
        yield sample("part_vectors_f32_bias", a, (1401,), 8, 451, bias="f32", large=True)
        yield sample("part_vectors_no_bias", a, (1401,), 8, 451, bias=None, large=True)
        yield sample("short_rows", a, (120001,), 4, 3, large=True)
        yield sample("no_features_in", a, (3,), 0, 5)
        for layout in LAYOUTS:
            yield sample(f"{layout.__name__}_input", a, (37,), 31, 33, x=layout)
        yield sample("transposed_weight", a, (37,), 31, 33, w=transposed)
        yield sample("misaligned_bias", a, (37,), 31, 33, b=misaligned)
        yield sample("expanded_bias", a, (37,), 31, 33, b=expanded)


def problem(make: Make, rows: int, in_features: int, out_features: int | None = None) -> tuple[Any, ...]:
    n = in_features if out_features is None else out_features
    return make(rows, in_features), make(n, in_features, scale=in_features**-0.5), make(n), "gelu"


def raw(make: Make, rows: int, n: int) -> list[RawCall]:
    def pair(
        activation: str, bias_dtype: torch.dtype | None, bias_added: bool = False, bias_learns: bool = True
    ) -> Iterator[RawCall]:
        bias = None if bias_dtype is None else make(n, dtype=bias_dtype)
        alone = bias is None
        product = make(rows, n)
        forward = RawCall("linear_epilogue", (product, bias, activation, bias_added), shared=(1,), elementwise=alone)
        saved = forward.reference()[0] if activation in ("relu", "sigmoid") else product
        yield forward
        args = (make(rows, n), saved, bias, activation, bias_learns, bias_added)
        yield RawCall("linear_epilogue_backward", args, shared=(2,), elementwise=alone)

    calls = [call for activation in ("none", *ACTIVATIONS) for call in pair(activation, make.dtype)]
    return [
        *calls,
        *pair("gelu", None),
        *pair("gelu_tanh", None),
        *pair("silu", make.parameter_dtype),
        *pair("gelu", make.dtype, bias_added=True),
        *pair("silu", make.dtype, bias_learns=False),
    ]
