"""cross_entropy's arguments: what is refused, with which message, and what of them the kernels get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cross_entropy_inputs import every_dtype, made
from recorder import Recorder
from torch import Tensor

import fastops
from fastops import nn
from fastops.cases import Make


@every_dtype
def test_no_classes(dtype: torch.dtype, device: torch.device) -> None:
    x, target = torch.empty(3, 0, dtype=dtype, device=device), torch.full((3,), -100, device=device)
    for f in (fastops.cross_entropy, fastops.reference.cross_entropy):
        with pytest.raises(
            RuntimeError, match=r"^\[cross_entropy\] input must have a class at least, got shape \[3, 0\]"
        ):
            f(x, target)


@every_dtype
@pytest.mark.parametrize("wrong", [10, -1, 12, -101, 2**40])
def test_target_out_of_range(dtype: torch.dtype, wrong: int, device: torch.device) -> None:
    """IndexError on the CPU by each way; on GPUs the row is NaN, and nothing waits or stops."""
    x = Make(device, dtype)(4, 10)
    target = torch.tensor([1, wrong, -100, 3], device=device)
    ways: tuple[Callable[[], Any], ...] = (
        lambda: fastops.cross_entropy(x, target, reduction="none"),
        lambda: fastops.cross_entropy(x.clone().requires_grad_(), target, reduction="none"),
        lambda: fastops.reference.cross_entropy(x, target, reduction="none"),
        lambda: nn.CrossEntropyLoss(reduction="none")(x, target),
    )
    for way in ways:
        if device.type == "cpu":
            message = rf"^\[cross_entropy\] target must be 0 to 9 or ignore_index -100, got {wrong}$"
            with pytest.raises(IndexError, match=message):
                way()
        else:
            assert way().isnan().tolist() == [False, True, False, False]
    if device.type == "cuda":
        batched = torch.func.vmap(lambda x: fastops.reference.cross_entropy(x, target, reduction="none"))(x[None])
        assert batched.isnan().tolist() == [[False, True, False, False]]
        leaf = x.requires_grad_()
        (gradient,) = torch.autograd.grad(fastops.cross_entropy(leaf, target, reduction="sum"), leaf)
        assert gradient.isnan().all(1).tolist() == [False, True, False, False]


def test_defaults_are_left_out_of_a_call() -> None:
    """Each argument takes a tenth of a microsecond or two."""
    x, target, _ = made(torch.float32, torch.device("cpu"), 3, 4, ignored=0, options={})
    x.requires_grad_()
    for arguments, expected in (
        ({}, ()),
        ({"reduction": "mean", "scale": 1, "dtype": torch.float32}, ()),
        ({"reduction": "sum"}, (None, 2)),
        ({"ignore_index": 3}, (None, 1, 3)),
        ({"z_loss": 0.5}, (None, 1, -100, 0.0, 1.0, None, 0.5)),
    ):
        with Recorder() as recorder:
            fastops.cross_entropy(x, target, **arguments).sum().backward()  # type: ignore[arg-type]
        assert recorder.args[0][2:] == expected
        # Behind grad, grad_lse, input, target, lse and total.
        assert recorder.args[1][6:] == expected


Wrong = tuple[type[Exception], str, Callable[[Tensor, Tensor], Any]]


def with_options(error: type[Exception], message: str, **options: Any) -> Wrong:
    return error, message, lambda x, target: fastops.cross_entropy(x, target, **options)


def with_tensors(message: str, change: Callable[[Tensor, Tensor], Any], error: type[Exception] = RuntimeError) -> Wrong:
    return error, message, lambda x, target: fastops.cross_entropy(*change(x, target))


WRONG: dict[str, Wrong] = {
    "reduction": with_options(ValueError, "reduction must be 'none', 'mean' or 'sum', got 'avg'", reduction="avg"),
    "no reduction": with_options(TypeError, "reduction must be a str, got NoneType", reduction=None),
    "smoothing": with_options(RuntimeError, r"label_smoothing must be 0 to 1, got 1\.5", label_smoothing=1.5),
    "negative": with_options(RuntimeError, r"label_smoothing must be 0 to 1, got -0\.1", label_smoothing=-0.1),
    "softcap": with_options(RuntimeError, "softcap must be finite and greater than 0, got 0", softcap=0),
    "softcap without end": with_options(
        RuntimeError, "softcap must be finite and greater than 0, got inf", softcap=float("inf")
    ),
    "scale": with_options(TypeError, "scale must be a number, got Tensor", scale=torch.ones(())),
    "index": with_options(TypeError, "ignore_index must be an integer, got float", ignore_index=1.0),
    "dtype": with_options(RuntimeError, "dtype must be floating point, got torch.int64", dtype=torch.int64),
    "no dtype": with_options(TypeError, "dtype must be a torch.dtype or None, got type", dtype=float),
    "int32": with_tensors(
        r"target must have dtype torch\.int64 or torch\.uint8, got torch\.int32", lambda x, t: (x, t.int())
    ),
    "floats": with_tensors(
        r"target must have dtype torch\.int64 or torch\.uint8, got torch\.float32", lambda x, t: (x, t.float())
    ),
    "targets": with_tensors(r"target must have shape \[5\], got \[4\]", lambda x, t: (x, t[:4])),
    "probabilities": with_tensors(r"target must have input's shape \[5, 7\], got \[5, 6\]", lambda x, t: (x, x[:, 1:])),
    "classes": with_tensors(r"weight must have shape \[7\], got \[6\]", lambda x, t: (x, t, x.detach()[0, :6])),
    "weight": with_tensors("weight must have input's dtype", lambda x, t: (x, t, x.detach()[0].half())),
    "learns": with_tensors("weight must not require a gradient", lambda x, t: (x, t, torch.ones(7).requires_grad_())),
    "list": with_tensors("target must be a Tensor, got list", lambda x, t: (x, t.tolist()), TypeError),
    "integers": with_tensors("input must be floating point, got torch.int64", lambda x, t: (x.long(), t)),
    "number": with_tensors(r"input must have a dimension of classes, got shape \[\]", lambda x, t: (x[0, 0], t[0])),
    "ignored": with_options(RuntimeError, "ignore_index must be below 0 for probabilities, got 1", ignore_index=1),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str, device: torch.device) -> None:
    error, message, call = WRONG[name]
    x, target = torch.randn(5, 7, device=device), torch.zeros(5, dtype=torch.int64, device=device)
    for input in (x, x.clone().requires_grad_()):
        with pytest.raises(error, match=rf"^\[cross_entropy\] {message}"):
            call(input, x if name == "ignored" else target)
