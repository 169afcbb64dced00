"""The plain compositions serve as kernels and under torch.func: their results are new, also of the smallest inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

import fastops
from fastops._operator import OPERATORS
from fastops.cases import CASES, Case, Make


def results(outputs: Any) -> list[Tensor]:
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_results_are_new_tensors(case: Case, rows: int, dtype: torch.dtype) -> None:
    for call in case.raw(Make("cpu", dtype), rows, 4):
        found = results(OPERATORS[call.op].reference(*call.args))
        for k, y in enumerate(found):
            for x in [*(x for x in call.args if isinstance(x, Tensor)), *found[:k]]:
                assert y.numel() == 0 or not torch._C._is_alias_of(y, x), call.op


PER_SAMPLE: dict[str, tuple[Any, Any]] = {
    "layer_norm": (
        lambda x, w, b: fastops.layer_norm(x, (6,), w, b),
        lambda x, w, b: F.layer_norm(x, (6,), w, b),
    ),
    "rms_norm": (lambda x, w, b: fastops.rms_norm(x, (6,), w) + b, lambda x, w, b: F.rms_norm(x, (6,), w) + b),
    "add_layer_norm": (
        lambda x, w, b: sum(fastops.add_layer_norm(x, x.cos(), (6,), w, b)),
        lambda x, w, b: F.layer_norm(x + x.cos(), (6,), w, b) + x + x.cos(),
    ),
    "add_rms_norm": (
        lambda x, w, b: sum(fastops.add_rms_norm(x, b, (6,), w)),
        lambda x, w, b: F.rms_norm(x + b, (6,), w) + x + b,
    ),
    "axpby": (lambda x, w, b: fastops.axpby(x, fastops.axpby(w, b), 2.0), lambda x, w, b: 2 * x + w + b),
    "linear": (
        lambda x, w, b: fastops.linear(x, w * torch.eye(6, dtype=w.dtype), b, "gelu"),
        lambda x, w, b: F.gelu(F.linear(x, w * torch.eye(6, dtype=w.dtype), b)),
    ),
    "square of relu": (lambda x, w, b: fastops.square(fastops.relu(x * w + b)), lambda x, w, b: F.relu(x * w + b) ** 2),
    "softmax": (
        lambda x, w, b: fastops.softmax(x * w + b, 0, scale=2.0),
        lambda x, w, b: torch.softmax(2 * (x * w + b), 0),
    ),
    "log_softmax": (lambda x, w, b: fastops.log_softmax(x * w + b, -1), lambda x, w, b: F.log_softmax(x * w + b, -1)),
    "sigmoid": (lambda x, w, b: fastops.sigmoid(x * w + b), lambda x, w, b: torch.sigmoid(x * w + b)),
}


@pytest.mark.parametrize("learns", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("name", PER_SAMPLE)
def test_per_sample_gradients_of_one_dimension(name: str, learns: tuple[int, ...], device: torch.device) -> None:
    """``vmap(grad(...))`` over samples without leading dimensions; twice in a row, as higher derivatives nest."""
    ours, torchs = PER_SAMPLE[name]
    x, w, b = (torch.randn(*shape, dtype=torch.float64, device=device) for shape in ((4, 6), (6,), (6,)))
    if device.type == "cuda" and name == "linear":
        pytest.skip("the function makes its matrix on the CPU")

    def gradients(f: Any) -> Any:
        return vmap(grad(lambda x, w, b: f(x, w, b).sin().sum(), learns), (0, None, None))(x, w, b)

    torch.testing.assert_close(gradients(ours), gradients(torchs), rtol=1e-9, atol=1e-9)
    twice = [
        vmap(grad(lambda x, w, b, f=f: grad(lambda x: f(x, w, b).sin().sum())(x).cos().sum(), learns), (0, None, None))
        for f in (ours, torchs)
    ]
    torch.testing.assert_close(twice[0](x, w, b), twice[1](x, w, b), rtol=1e-8, atol=1e-8)


def test_no_output_features(device: torch.device) -> None:
    """Second derivatives come from the references."""
    x = torch.randn(3, 8, device=device, requires_grad=True)
    w, b = torch.randn(0, 8, device=device), torch.zeros(0, device=device, requires_grad=True)
    (first,) = torch.autograd.grad(fastops.linear(x, w, b, "gelu").sum(), x, create_graph=True)
    assert not torch.autograd.grad(first.sin().sum(), x)[0].any()
    empty = torch.zeros(3, 0, device=device, requires_grad=True)
    weights = torch.zeros(0, 8, device=device, requires_grad=True)
    h, c = fastops.lltm(x, weights, b, empty, empty)
    (first,) = torch.autograd.grad(h.sum() + c.sum(), x, create_graph=True)
    assert not torch.autograd.grad(first.sin().sum(), x, allow_unused=True, materialize_grads=True)[0].any()
