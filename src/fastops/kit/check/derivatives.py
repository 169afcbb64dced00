"""Derivatives, in float64: against finite differences, forward mode against the backward, and of some inputs alone."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from . import differences
from .case import Case, Skip, cotangent, leaves, tensors
from .compare import apart, told

_SUBSETS = 3  # inputs up to which each subset of them is tried


def gradient(case: Case) -> str:
    case = case.in_float64()
    case.gradients(case.args)  # that there are some
    labels = [case.label(k) for k in case.floating]
    by = differences.compare(case.function, case.args, case.floating, labels, case.primitive)
    what = "" if case.primitive is case.function or not callable(case.slope) else " of gradient="
    return f"within {100 * differences.RELATIVE:g}% of finite differences{what}, by {by}"


def second_gradient(case: Case) -> str:
    """The gradient as a function of the arguments and of what comes in, by the same means."""
    case.needs_gradient()
    case = case.in_float64()
    case.gradients(case.args)  # that there are some
    places, count = case.floating, len(case.args)
    outputs = [y.detach() for y in case.outputs(case.args)]
    incoming = [k for k, y in enumerate(outputs) if y.is_floating_point()]

    def first(*given: Any) -> tuple[Tensor, ...]:
        args, grads = given[:count], given[count:]
        tracked = any(given[k].requires_grad for k in places)
        args = tuple(args) if tracked else leaves(args)
        results = tensors(case.function(*args))
        reached = [(results[k], g) for k, g in zip(incoming, grads, strict=True) if results[k].requires_grad]
        inputs = [args[k] for k in places]
        found = torch.autograd.grad(
            [y for y, _ in reached], inputs, [g for _, g in reached], create_graph=True, allow_unused=True
        )
        return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True))

    args = (*case.args, *(cotangent(outputs[k]) for k in incoming))
    labels = [*(case.label(k) for k in places), *(f"the gradient of output {k}" for k in incoming)]
    moved = [*places, *range(count, len(args))]
    by = differences.compare(first, args, moved, labels, first)
    return f"within {100 * differences.RELATIVE:g}% of finite differences of the first, by {by}"


def frozen_inputs(case: Case) -> str:
    """Of each subset of the inputs: a backward may have a way of its own where one is not wanted."""
    case.needs_gradient()
    if torch.float64 in case.dtypes:
        case = case.in_float64()
    places = case.floating
    if len(places) < 2:
        raise Skip("fewer than two floating-point arguments")
    all_of_them = dict(zip(places, case.gradients(case.args), strict=True))
    sizes = range(1, len(places)) if len(places) <= _SUBSETS else (1, len(places) - 1)
    subsets = [subset for size in sizes for subset in itertools.combinations(places, size)]
    worst = 0.0
    for subset in subsets:
        expected = [all_of_them[k] for k in subset]
        what = f"where only {', '.join(map(case.label, subset))} requires grad"
        worst = max(worst, apart(case.gradients(case.args, wanted=subset), expected, what))
    return f"{len(subsets)} sets of inputs against all of them: {told(worst)}"


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
        return case.function(*given)

    at = tuple(case.args[k] for k in places)
    outputs, moved = torch.func.jvp(of_floating, at, tuple(tangents))  # type: ignore[misc]
    case.needs_gradient()
    pairs = [(y, t) for y, t in zip(tensors(outputs), tensors(moved), strict=True) if y.is_floating_point()]
    forward = sum(((cotangent(y) * t).sum() for y, t in pairs), start=at[0].new_zeros(()))
    products = [(g * t).sum() for g, t in zip(case.gradients(case.args), tangents, strict=True)]
    backward = sum(products, start=at[0].new_zeros(()))
    return f"jvp against the backward: {told(apart([forward], [backward]))}"
