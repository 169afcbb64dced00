"""torch's activations and unary functions, each written as one expression, on torch's own samples (OpInfo)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from common import DTYPES
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

from fastops import kit

# By torch's name, with its variant behind a slash: the scalars in torch's order, and the expression.
ACTIVATIONS = {
    "nn.functional.celu": ("alpha=1.0", "x > 0 ? x : alpha * expm1(x / alpha)"),
    "nn.functional.elu": ("alpha=1.0", "x > 0 ? x : alpha * expm1(x)"),
    "nn.functional.gelu/none": ("", "0.5 * x * erfc(-x * sqrt(0.5))"),
    "nn.functional.gelu/tanh": ("", "0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))"),
    "nn.functional.hardshrink": ("lambd=0.5", "abs(x) <= lambd ? 0 : x"),
    "nn.functional.hardsigmoid": ("", "x <= -3 ? 0 : x >= 3 ? 1 : x / 6 + 0.5"),
    "nn.functional.hardswish": ("", "x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6"),
    "nn.functional.hardtanh": ("min_val=-1.0, max_val=1.0", "x <= min_val ? min_val : x >= max_val ? max_val : x"),
    "nn.functional.leaky_relu": ("negative_slope=0.01", "x > 0 ? x : negative_slope * x"),
    "nn.functional.logsigmoid": ("", "min(x, 0) - log1p(exp(-abs(x)))"),
    "nn.functional.mish": ("", "x * tanh(x > 20 ? x : log1p(exp(x)))"),
    "nn.functional.relu": ("", "x > 0 ? x : 0"),
    "nn.functional.relu6": ("", "x <= 0 ? 0 : x >= 6 ? 6 : x"),
    "nn.functional.selu": ("", "1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * expm1(x))"),
    "nn.functional.silu": ("", "x * sigmoid(x)"),
    "nn.functional.softplus": ("beta=1.0, threshold=20.0", "x * beta > threshold ? x : log1p(exp(x * beta)) / beta"),
    "nn.functional.softshrink": ("lambd=0.5", "x > lambd ? x - lambd : x < -lambd ? x + lambd : 0"),
    "nn.functional.softsign": ("", "x / (1 + abs(x))"),
    "nn.functional.tanhshrink": ("", "x - tanh(x)"),
    "nn.functional.threshold": ("threshold=0.0, value=0.0", "x > threshold ? x : value"),
    "sinc": ("", "x == 0 ? 1 - (pi * x) ** 2 / 6 : sin(pi * x) / (pi * x)"),
    "square": ("", "x * x"),
    "reciprocal": ("", "1 / x"),
    "frac": ("", "x - trunc(x)"),
    "deg2rad": ("", "x * (pi / 180)"),
    "rad2deg": ("", "x * (180 / pi)"),
}
SAME_NAME = "abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor log log10 log1p log2 neg "
SAME_NAME += "rsqrt sigmoid sign sin sinh sqrt tan tanh trunc"
EXPRESSIONS = ACTIVATIONS | {name: ("", f"{name}(x)") for name in SAME_NAME.split()}

INFOS = {info.name: info for info in op_db if not info.variant_test_name}

# Of gradients, relative to 1 and to themselves. A half's gradient is rounded before it is multiplied on.
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


@functools.cache
def ours(name: str) -> Any:
    scalars, body = EXPRESSIONS[name]
    op = name.replace("nn.functional.", "").replace("/", "_")
    return kit.elementwise(f"my_{op}(x{', *, ' * bool(scalars)}{scalars})", body)


def scalars_of(name: str, sample: Any) -> dict[str, float] | None:
    """What a sample gives the scalars; None for a sample of another function: in place, or of the other variant."""
    given = dict(sample.kwargs)
    if given.pop("inplace", False):
        return None
    _, _, variant = name.partition("/")
    if variant and given.pop("approximate", "none") != variant:
        return None
    names = [part.split("=")[0] for part in EXPRESSIONS[name][0].split(", ") if part]
    return dict(zip(names, sample.args, strict=False)) | given


def samples(name: str, dtype: torch.dtype, device: torch.device) -> list[tuple[Any, dict[str, float]]]:
    info = INFOS[name.partition("/")[0]]
    found = info.sample_inputs(str(device), dtype, requires_grad=True)
    usable = [(sample, scalars_of(name, sample)) for sample in found]
    result = [(sample, scalars) for sample, scalars in usable if scalars is not None]
    assert result
    return result


def test_all_are_torchs() -> None:
    assert len(EXPRESSIONS) >= 50
    assert {name.partition("/")[0] for name in EXPRESSIONS} <= set(INFOS)


@pytest.mark.sample(pairs=False)
@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(name: str, dtype: torch.dtype, device: torch.device) -> None:
    info = INFOS[name.partition("/")[0]]
    for sample, scalars in samples(name, dtype, device):
        x = sample.input.detach().requires_grad_()
        wide = x.detach().double().requires_grad_()
        result, truth = ours(name)(x, **scalars), info.op(wide, *sample.args, **sample.kwargs)
        assert result.dtype == dtype
        torch.testing.assert_close(result, truth.to(dtype), equal_nan=True)
        grad = torch.randn_like(result)
        once = gradient(result, x, grad)
        truth_once = gradient(truth, wide, grad.double())
        # The sixth in torch's gradient of hardsigmoid is a float32.
        assert_near(once, truth_once, at_least=1e-7 if name.endswith("hardsigmoid") else 0.0)
        if dtype in (torch.float32, torch.float64) and info.supports_gradgrad:
            assert_near(gradient(once, x, grad), gradient(truth_once, wide, grad.double()))


def gradient(y: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    if not y.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(y, x, grad, create_graph=True, allow_unused=True, materialize_grads=True)[0]


def assert_near(ours: Tensor, truth: Tensor, at_least: float = 0.0) -> None:
    tolerance = max(TOLERANCE[ours.dtype], at_least)
    torch.testing.assert_close(ours, truth.to(ours.dtype), rtol=tolerance, atol=tolerance, equal_nan=True)
