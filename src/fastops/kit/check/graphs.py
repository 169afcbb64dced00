"""What others make of a call: vmap, fake tensors, opcheck, torch.compile."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .case import Args, Case, Skip, cotangent, mapped, tensors
from .compare import apart, told

_BATCH = 3


def _three(x: Tensor) -> list[Tensor]:
    """Different ones, whose means differ too, between the least and the largest number of ``x``."""
    turned = x.flip(0) if x.dim() else x
    if not x.is_floating_point() or not x.numel():
        return [x, turned, x]
    low, high = x.amin(), x.amax()
    if low == high:
        return [x, turned * 0.75, x * 0.5]
    return [x, turned + (high - turned) / 4, x + (low - x) / 2]


def _batched(args: Args, dim: int, places: Sequence[int]) -> tuple[Args, tuple[int | None, ...]]:
    """Three of each tensor at these places along ``dim``, and where the batch is."""
    batched = tuple(torch.stack(_three(x), dim) if k in places else x for k, x in enumerate(args))
    return batched, tuple(dim if k in places else None for k in range(len(args)))


def _one(args: Args, dims: tuple[int | None, ...], k: int) -> Args:
    return tuple(x if dim is None else x.select(dim, k) for x, dim in zip(args, dims, strict=True))


def vmap(case: Case) -> str:
    tensor_places = [k for k, x in enumerate(case.args) if isinstance(x, Tensor)]
    worst = 0.0
    batches = [(dim, tensor_places) for dim in (0, -1)]
    if len(tensor_places) > 1:
        batches += [(0, [k]) for k in tensor_places]
    for dim, places in batches:
        args, dims = _batched(case.args, dim, places)
        what = f"batch along {dim} of {', '.join(map(case.label, places))}"
        found = tensors(torch.vmap(case.function, dims)(*args))
        for k in range(_BATCH):
            expected = case.outputs(_one(args, dims, k))
            worst = max(worst, apart([y[k] for y in found], expected, what))
    alone = ", and each input's alone" if len(tensor_places) > 1 else ""
    return f"against one by one, batches along 0 and -1{alone}: {told(worst)}"


def vmap_of_gradient(case: Case) -> str:
    case.needs_gradient()
    args, dims = _batched(case.args, 0, [k for k, x in enumerate(case.args) if isinstance(x, Tensor)])
    case.gradients(case.args)  # that there are some

    def scalar(*given: Any) -> Tensor:
        floating = [y for y in tensors(case.function(*given)) if y.is_floating_point()]
        return sum(((cotangent(y) * y).sum() for y in floating), start=floating[0].new_zeros(()))

    found = torch.vmap(torch.func.grad(scalar, tuple(case.floating)), dims)(*args)
    worst = 0.0
    for k in range(_BATCH):
        expected = case.gradients(_one(args, dims, k))
        worst = max(worst, apart([g[k] for g in found], expected))
    return f"against one by one: {told(worst)}"


def fake(case: Case) -> str:
    with FakeTensorMode() as mode:
        fakes = case.outputs(mapped(mode.from_tensor, case.args))
    for fake, real in zip(fakes, case.outputs(case.args), strict=True):
        for what in ("shape", "dtype", "device"):
            expected, got = getattr(real, what), getattr(fake, what)
            if expected != got:
                raise AssertionError(f"the fake's {what} must be {expected}, got {got}")
        if real.numel() and fake.stride() != real.stride():
            raise AssertionError(f"the fake's strides must be {real.stride()}, got {fake.stride()}")
    return "shapes, strides, dtypes, devices"


def opcheck(case: Case) -> str:
    dispatched = getattr(case.op, "dispatched", None)
    if dispatched is None:
        raise Skip("not made by the kit: give torch.library.opcheck the op that torch knows")
    tried = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    first = len(case.args) - len(case.names)
    named = dict(zip(case.names, case.args[first:], strict=True))
    torch.library.opcheck(*dispatched(*case.args[:first], **named), test_utils=tried)
    return ", ".join(tried)


def compiled(case: Case) -> str:
    function = case.function

    def call(*given: Any) -> Any:
        return function(*given)

    # Dynamo counts how often a code object is compiled anew; each op gets one of its own.
    code = types.FunctionType(call.__code__.replace(), globals(), closure=call.__closure__)
    compiled = torch.compile(code, fullgraph=True, backend=case.backend)
    worst = apart(tensors(compiled(*case.args)), case.outputs(case.args))
    what = "outputs"
    if "gradient" not in case.unsupported and case.floating:
        expected = case.gradients(case.args)
        worst = max(worst, apart(case.gradients(case.args, op=compiled), expected, "gradients"))
        what = "outputs and gradients"
    return f"{what} by {case.backend}, without a graph break: {told(worst)}"
