"""What others make of a call: vmap, fake tensors, opcheck, torch.compile."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .case import Args, Case, Skip, cotangent, mapped, tensors
from .compare import apart, told

_BATCH = 3


def _batched(args: Args, dim: int) -> tuple[Args, tuple[int | None, ...]]:
    """Three of each tensor along ``dim``, and where the batch is."""
    batched = mapped(lambda x: torch.stack([x, x.flip(0) if x.dim() else x, x], dim), args)
    return batched, tuple(dim if isinstance(x, Tensor) else None for x in args)


def vmap(case: Case) -> str:
    worst = 0.0
    for dim in (0, -1):
        args, dims = _batched(case.args, dim)
        found = tensors(torch.vmap(case.op, dims)(*args))
        for k in range(_BATCH):
            expected = case.outputs(mapped(lambda x, k=k, dim=dim: x.select(dim, k), args))  # type: ignore[misc]
            worst = max(worst, apart([y[k] for y in found], expected, f"batch along {dim}"))
    return f"against one by one, batches along 0 and -1: {told(worst)}"


def vmap_of_gradient(case: Case) -> str:
    case.needs_gradient()
    args, dims = _batched(case.args, 0)
    case.gradients(case.args)  # that there are some

    def scalar(*given: Any) -> Tensor:
        floating = [y for y in tensors(case.op(*given)) if y.is_floating_point()]
        return sum(((cotangent(y) * y).sum() for y in floating), start=floating[0].new_zeros(()))

    found = torch.vmap(torch.func.grad(scalar, tuple(case.floating)), dims)(*args)
    worst = 0.0
    for k in range(_BATCH):
        expected = case.gradients(mapped(lambda x, k=k: x[k], args))  # type: ignore[misc]
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
    torch.library.opcheck(*dispatched(*case.args), test_utils=tried)
    return ", ".join(tried)


def compiled(case: Case) -> str:
    def call(*given: Any) -> Any:
        return case.op(*given)

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
