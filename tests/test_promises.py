"""The selftest's checks of what the public functions promise: each finds what is broken, by case or by transform."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import NO_CUDA
from table import every_case
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

import fastops
from fastops import _C
from fastops.cases import DTYPES, Case, by_name
from fastops.selftest import checks, compiled, gradients, kept, not_numbers, promises, recomputed, refusals, transforms
from fastops.selftest.checks import Check
from fastops.selftest.runner import ROWS, checks_for, outcomes_of, targets
from fastops.selftest.target import Path, Target, paths_of

Function = Callable[..., Any]


@every_case
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("check", [*promises.PROMISE_CHECKS, *ROWS], ids=lambda check: check.__name__)
def test_promise(case: Case, dtype: torch.dtype, check: Check, device: torch.device) -> None:
    for outcome in check(_target(case, dtype, device)):
        assert outcome.ok, outcome


def _target(case: Case, dtype: torch.dtype, device: torch.device, quick: bool = True) -> Target:
    return Target(case, dtype, Path(device, "cuda" if device.type == "cuda" else "cpu"), quick)


class WithGradient(torch.autograd.Function):
    """The identity, whose gradient ``change`` makes of the incoming one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.change(grads[0]), None


class ReadTwice(torch.autograd.Function):
    """The square, whose backward unpacks what is saved twice: to a checkpoint that is a second run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * (ctx.saved_tensors[0] + ctx.saved_tensors[0])


def with_gradient(change: Callable[[Tensor], Tensor], function: Function = fastops.sigmoid) -> Function:
    return lambda *args, **options: WithGradient.apply(function(*args, **options), change)


def without(name: str, function: Function) -> Function:
    return lambda *args, **options: function(*args, **{**options, name: None})


def changed(change: Callable[[Tensor], Tensor], function: Function) -> Function:
    return lambda *args, **options: change(function(*args, **options))


def alone(*args: Any, **options: Any) -> Tensor:
    y = fastops.layer_norm(*args, **options)
    others = [x for x in (*args, *options.values()) if isinstance(x, Tensor) and x.requires_grad]
    return WithGradient.apply(y, lambda grad: 2 * grad) if len(others) == 1 else y  # type: ignore[no-any-return]


def without_autocast(*args: Any, **options: Any) -> Tensor:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        return fastops.linear(*args, **options)


def as_if_contiguous(input: Tensor) -> Tensor:
    dense = input.new_empty(input.shape).stride()
    return fastops.square(input if input.is_contiguous() else input.as_strided(input.shape, dense))


def doubled(grad: Tensor) -> Tensor:
    return grad.mul_(2) if grad.is_contiguous() else 2 * grad


def as_if_dense(grad: Tensor) -> Tensor:
    return grad if 0 in grad.stride() else grad.as_strided(grad.shape, grad.new_empty(grad.shape).stride())


def nameless(input: Tensor) -> Tensor:
    try:
        return fastops.relu(input)
    except TypeError:
        raise TypeError("input must be a Tensor") from None


def bias_of_the_weights_dtype(*args: Any, **options: Any) -> Tensor:
    return fastops.layer_norm(*args, **{**options, "bias": options["bias"].to(options["weight"].dtype)})


def of_any_target(input: Tensor, target: Tensor, **options: Any) -> Any:
    classes = input.shape[-1]
    return fastops.log_prob(input, torch.where(target < classes, target, classes - 1), **options)


def of_another_type(input: Tensor) -> Tensor:
    if not isinstance(input, Tensor):
        raise RuntimeError(f"[relu] input must be a Tensor, got {input}")
    return fastops.relu(input)


def of_any_smoothing(*args: Any, label_smoothing: Any = 0.0, **options: Any) -> Any:
    bent = min(max(label_smoothing, 0.0), 1.0) if isinstance(label_smoothing, float) else label_smoothing
    return fastops.cross_entropy(*args, label_smoothing=bent, **options)


def without_an_offset_along_the_first(*args: Any, **options: Any) -> Tensor:
    return fastops.swiglu(*args, **(options | ({"offset": 0.0} if options.get("dim") == 0 else {})))


def rounded(*args: Any, **options: Any) -> Any:
    found = fastops.log_prob(*args, **options)
    coarse = [x.to(args[0].dtype if args else options["input"].dtype).to(x.dtype) for x in pytree.tree_leaves(found)]
    return pytree.tree_unflatten(coarse, pytree.tree_structure(found))


SHARED: dict[str, Tensor] = {}


def by_one_place(input: Tensor) -> Tensor:
    SHARED["input"] = input
    time.sleep(1e-3)
    return fastops.square(SHARED["input"])


def in_two_graphs(input: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return fastops.square(input)


def transposed_fake(y: Tensor) -> Tensor:
    return y.mT.contiguous().mT if isinstance(y, FakeTensor) else y


BROKEN: dict[str, tuple[str, Check, Function]] = {
    "an option that is ignored": ("swiglu", promises.arguments, without("limit", fastops.swiglu)),
    "a dtype that is not asked for": ("softmax", promises.arguments, changed(lambda y: y.float(), fastops.softmax)),
    "a gradient by itself": ("layer_norm", gradients.gradients_asked_for, alone),
    "a gradient of a constant": (
        "relu",
        gradients.gradients_asked_for,
        lambda input: fastops.relu(input) + torch.zeros((), requires_grad=True, device=input.device),
    ),
    "a gradient that is written to": ("sigmoid", gradients.incoming, with_gradient(doubled)),
    "a gradient that is the incoming one": (
        "relu",
        gradients.incoming,
        with_gradient(lambda grad: grad, lambda input: input),
    ),
    "a gradient whose strides are ignored": (
        "sigmoid",
        gradients.incoming,
        with_gradient(as_if_dense),
    ),
    "a result that is the input": ("relu", gradients.incoming, lambda input: input.view(input.shape)),
    "strides that are ignored": ("square", gradients.sliced, as_if_contiguous),
    "autocast that is ignored": ("linear", promises.autocast, without_autocast),
    "NaN that spreads": ("square", not_numbers.no_numbers, changed(lambda y: y + 0 * y.sum(), fastops.square)),
    "NaN that vanishes": ("relu", not_numbers.no_numbers, changed(torch.nan_to_num, fastops.relu)),
    "a dtype that is another argument's": ("layer_norm", promises.other_dtypes, bias_of_the_weights_dtype),
    "an index that is bent": ("log_prob", refusals.wrong_indices, of_any_target),
    "an error without a name": ("relu", refusals.invalid_arguments, nameless),
    "a batch along another dimension": (
        "square",
        transforms.vmap,
        lambda input: fastops.square(input) * (2 if is_batchedtensor(input) else 1),
    ),
    "forward mode": (
        "square",
        transforms.forward_mode,
        lambda input: fastops.square(input.detach() if forward_ad._current_level >= 0 else input),
    ),
    "second derivatives": (
        "square",
        transforms.second_derivatives,
        lambda input: (2 * input.detach() * input) - input.detach() ** 2,
    ),
    "two options of which one is ignored": ("swiglu", promises.arguments, without_an_offset_along_the_first),
    "a result that is rounded": ("log_prob", promises.arguments, rounded),
    "another result where nothing learns": (
        "square",
        promises.arguments,
        changed(lambda y: y if y.requires_grad else y + 1, fastops.square),
    ),
    "an error that fake tensors lack": (
        "relu",
        refusals.refused_alike,
        lambda input: torch.empty_like(input) if input.is_meta else fastops.relu(input),
    ),
    "an error of another type": ("relu", refusals.invalid_arguments, of_another_type),
    "an option that is bent": ("cross_entropy", refusals.invalid_arguments, of_any_smoothing),
    "another composition than its parts": (
        "add_rms_norm",
        promises.as_alone,
        changed(lambda pair: (2 * pair[0], pair[1]), fastops.add_rms_norm),
    ),
    "infinity that an option makes a number": (
        "log_softmax",
        promises.options_of_hard_numbers,
        changed(torch.nan_to_num, fastops.log_softmax),
    ),
    "integers that are truncated": (
        "axpby",
        promises.other_dtypes,
        lambda x, y, alpha=1, beta=1: fastops.axpby(x, y, alpha, beta).to(x.dtype),
    ),
    "what is saved, read twice": ("square", recomputed.recomputed, lambda input: ReadTwice.apply(input)),
    "memory that threads share": ("square", promises.threads, by_one_place),
    "NaN that does not come out": ("sigmoid", not_numbers.no_number_comes_in, with_gradient(torch.nan_to_num)),
    "no kernel": ("square", kept.kernels_run, lambda input: input * input),
    "more that is kept": ("square", kept.kept, lambda input: fastops.square(input) + 0 * input.exp()),
    "one rounding too many": ("square", checks.rounds, with_gradient(lambda grad: 1.01 * grad, fastops.square)),
    "a break of the graph": ("square", compiled.compiled, in_two_graphs),
    "a number in a trace": (
        "square",
        transforms.traced,
        lambda input: fastops.square(input) + (input.sum().item() if torch.jit.is_tracing() else 0.0),
    ),
    "forward mode over a gradient": (
        "square",
        transforms.forward_over_reverse,
        lambda input: (2 * input.detach() * input) - input.detach() ** 2,
    ),
    "strides of fakes": ("square", transforms.fakes, changed(transposed_fake, fastops.square)),
}


@pytest.mark.parametrize(("op", "check", "broken"), BROKEN.values(), ids=BROKEN)
def test_what_is_broken_is_found(op: str, check: Check, broken: Function, device: torch.device) -> None:
    case = by_name()[op]
    function = functools.wraps(case.function)(lambda *args, **options: broken(*args, **options))
    dtype = torch.float32 if check is transforms.traced else torch.bfloat16
    quick = check not in (compiled.compiled, transforms.traced)
    outcomes = outcomes_of(check, _target(dataclasses.replace(case, function=function), dtype, device, quick))
    assert not all(outcome.ok for outcome in outcomes)


def test_on_the_best_path_alone() -> None:
    paths = paths_of(torch.device("cpu"), None, quick=False)
    if not NO_CUDA:
        paths += paths_of(torch.device("cuda", 0), None, quick=False)
    asked = [p for p in paths if promises.autocast in checks_for(Target(by_name()["relu"], DTYPES[0], p, False))]
    assert [str(p) for p in asked] == [str(p) for p in paths if p.kind == "cuda" or p.isa == _C.cpu()["isa"]]


def test_a_quick_run_leaves_out_dtypes() -> None:
    def checks(dtype: torch.dtype, asked: list[torch.dtype]) -> set[str]:
        ((_, _, found),) = targets([by_name()["relu"]], [Path(torch.device("cpu"), "cpu", best=True)], asked, True)
        (target,) = (t for t in found if t.dtype == dtype)
        return {check.__name__ for check in checks_for(target)}

    half, single = torch.float16, torch.float32
    assert {"rules", "vmap"} <= checks(single, [single, half])
    assert "rules" not in checks(half, [single, half])
    assert "values" in checks(half, [single, half])
    assert "rules" in checks(half, [half])  # where it is all that is asked for
