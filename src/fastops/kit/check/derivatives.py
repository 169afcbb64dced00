"""Derivatives, in float64: against finite differences, and forward mode against the backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from .case import Case, Skip, cotangent, leaves, tensors
from .compare import apart, told

_FEW = 100  # elements up to which every one is moved by itself


def gradient(case: Case) -> str:
    return _against_differences(case, gradcheck)


def second_gradient(case: Case) -> str:
    case.needs_gradient()
    return _against_differences(case, gradgradcheck)


def _against_differences(case: Case, holds: Any) -> str:
    case = case.in_float64()
    case.gradients(case.args)  # that there are some
    several = sum(x.numel() for x in case.args if isinstance(x, Tensor)) > _FEW
    holds(case.op, leaves(case.args), fast_mode=several)
    what = "a random direction" if several else "every element"
    return f"{holds.__name__}: within 1e-05 + 0.1% of finite differences, by {what}"


def forward_mode(case: Case) -> str:
    case = case.in_float64()
    places = case.floating
    if not places:
        raise Skip("no floating-point argument")
    tangents = [cotangent(case.args[k]).sin() for k in places]

    def of_floating(*values: Tensor) -> Any:
        given = list(case.args)
        for k, value in zip(places, values, strict=True):
            given[k] = value
        return case.op(*given)

    at = tuple(case.args[k] for k in places)
    outputs, moved = torch.func.jvp(of_floating, at, tuple(tangents))  # type: ignore[misc]
    case.needs_gradient()
    pairs = [(y, t) for y, t in zip(tensors(outputs), tensors(moved), strict=True) if y.is_floating_point()]
    forward = sum(((cotangent(y) * t).sum() for y, t in pairs), start=at[0].new_zeros(()))
    products = [(g * t).sum() for g, t in zip(case.gradients(case.args), tangents, strict=True)]
    backward = sum(products, start=at[0].new_zeros(()))
    return f"jvp against the backward: {told(apart([forward], [backward]))}"
