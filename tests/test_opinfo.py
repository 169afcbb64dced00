"""torch's own sample and error inputs (OpInfo) on our functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

import fastops
from fastops.cases.inputs import HALVES

OURS: dict[str, Callable[..., Any]] = {
    "nn.functional.cross_entropy": fastops.cross_entropy,
    "nn.functional.glu": fastops.glu,
    "nn.functional.layer_norm": fastops.layer_norm,
    "nn.functional.linear": fastops.linear,
    "nn.functional.nll_loss": fastops.cross_entropy,
    "nn.functional.relu": fastops.relu,
    "nn.functional.rms_norm": fastops.rms_norm,
    "log_softmax": fastops.log_softmax,
    "sigmoid": fastops.sigmoid,
    "softmax": fastops.softmax,
    "square": fastops.square,
}
if hasattr(torch.nn.functional, "linear_cross_entropy"):  # from torch 2.13 on
    OURS["nn.functional.linear_cross_entropy"] = fastops.linear_cross_entropy


def nll_of_logits(logits: Tensor, target: Tensor, weight: Tensor | None = None, **options: Any) -> Tensor:
    log_p = F.log_softmax(logits, min(logits.dim() - 1, 1), dtype=torch.float64)  # torch's loss of halves rounds it
    return F.nll_loss(log_p, target, None if weight is None else weight.double(), **options).to(logits.dtype)


# What ours computes of torch's samples, where that is not torch's function of the name.
THEIRS: dict[str, Callable[..., Any]] = {"nn.functional.nll_loss": nll_of_logits}
INFOS = [info for info in op_db if info.name in OURS and info.variant_test_name in ("", "with_dtype")]
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def test_all_found() -> None:
    assert {info.name for info in INFOS} == set(OURS)


@pytest.mark.parametrize("info", INFOS, ids=lambda info: f"{info.name}{info.variant_test_name}")
@pytest.mark.parametrize("dtype", DTYPES)
def test_samples(info: Any, dtype: torch.dtype, device: torch.device) -> None:
    if dtype not in info.supported_dtypes(device.type):
        pytest.skip(f"torch's {info.name} does not take {dtype}")
    differentiable = dtype in info.supported_backward_dtypes(device.type)
    tried = 0
    for sample in info.sample_inputs(str(device), dtype, requires_grad=differentiable):
        arguments = dict(sample.kwargs)
        if arguments.pop("inplace", False):
            continue  # we overwrite nothing
        ours = OURS[info.name](sample.input, *sample.args, **arguments)
        theirs = THEIRS.get(info.name, info.op)(sample.input, *sample.args, **arguments)
        assert_values_close(info.name, ours, theirs)
        if differentiable:
            tensors = [x for x in (sample.input, *sample.args, *arguments.values()) if isinstance(x, Tensor)]
            inputs = [x for x in tensors if x.requires_grad]
            grad = torch.randn_like(theirs)
            assert_gradients_close(
                torch.autograd.grad(ours, inputs, grad, allow_unused=True, materialize_grads=True),
                torch.autograd.grad(theirs, inputs, grad, allow_unused=True, materialize_grads=True),
                GRADIENT_ATOL.get(info.name, 2e-2),
            )
        tried += 1
    assert tried


# torch's log_softmax, and the loss that is made of it, rounds terms to the half types that cancel.
# By how many ulps of its largest value: linear_cross_entropy's logits, some hundreds, are rounded too.
ROUNDED_IN_BETWEEN = {"log_softmax": 1, "nn.functional.cross_entropy": 1, "nn.functional.linear_cross_entropy": 64}


# Of float32 and the half types. Whole logits of some hundred are rounded in ours as in torch's, and then differ.
GRADIENT_ATOL = {"nn.functional.linear_cross_entropy": 8e-2}


def assert_values_close(op: str, ours: Tensor, theirs: Tensor) -> None:
    tolerance = {}
    if op in ROUNDED_IN_BETWEEN and ours.dtype in HALVES and theirs.numel():
        atol = ROUNDED_IN_BETWEEN[op] * torch.finfo(ours.dtype).eps * theirs.abs().nan_to_num(posinf=0.0).max().item()
        tolerance = {"rtol": 2 * torch.finfo(ours.dtype).eps, "atol": atol}
    torch.testing.assert_close(ours, theirs, equal_nan=True, **tolerance)


def assert_gradients_close(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], atol: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        tolerance = {} if a.dtype in (torch.float64, torch.complex64) else {"rtol": 2e-2, "atol": atol}
        if a.dtype == torch.float32:
            tolerance = {"rtol": 1e-4, "atol": 1e-4}  # a lone value's gradient in layer_norm is 0, torch's is not quite
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance)


# torch lists errors for layer_norm under the name of its native op; for the other functions it lists none.
ERRORS = {"native_layer_norm": fastops.layer_norm} | OURS


@pytest.mark.parametrize(
    "info", [i for i in op_db if i.name in ERRORS and i.error_inputs_func], ids=lambda info: info.name
)
def test_errors(info: Any, device: torch.device) -> None:
    tried = 0
    for error in info.error_inputs(str(device)):
        sample = error.sample_input
        with pytest.raises((RuntimeError, ValueError, TypeError)):
            ERRORS[info.name](sample.input, *sample.args, **sample.kwargs)
        tried += 1
    assert tried
