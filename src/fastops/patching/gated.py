"""Finder of gated MLPs: two projections into (or one of both halves), one out, and an activation between them.

Which child is which follows from sizes and from trying. The block's own forward runs on projections of a few columns,
and what is compared with it, in values and gradients, is the very forward that it would get. That calls the projections
as modules: what hangs on them, such as hooks, adapters, shards or quantised weights, stays in force.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..ops.geglu import geglu
from ..ops.glu import glu
from ..ops.reglu import reglu
from ..ops.swiglu import swiglu
from .proof import (
    apart,
    attributes,
    difference,
    gradient_difference,
    numbers,
    one_argument,
    remembered,
    skeleton,
    told_apart,
    unlike_its_class,
)
from .swap import Module, Site, Swap, with_parameter_named

Unit = Callable[[Tensor, Tensor], Tensor]


def _glu(gate: Tensor, up: Tensor) -> Tensor:
    return glu(up, gate=gate)


# Of gate and up, by what the report calls them.
UNITS: dict[str, Unit] = {
    "swiglu": swiglu,
    "geglu": geglu,
    "geglu(approximate=tanh)": partial(geglu, approximate="tanh"),
    "swiglu(alpha=1.702)": partial(swiglu, alpha=1.702),
    "reglu": reglu,
    "glu": _glu,
}

_HIDDEN, _BETWEEN, _ROWS = 6, 8, 5


@dataclass(frozen=True)
class Form:
    """Which unit, the names of the children, and which half of ``gate`` is the gate where it has both."""

    unit: str
    gate: str
    up: str | None
    down: str
    argument: str
    gate_first: bool = True

    def __str__(self) -> str:
        name, _, options = self.unit.partition("(")
        halves = (self.gate,) if self.up is None else (self.gate, self.up)
        swapped = "" if self.gate_first else ", gate second"
        return f"{name}({', '.join(halves)}{swapped}{', ' + options if options else ')'} into {self.down}"


def find_gated_mlp(site: Site) -> Swap | str | None:
    """A module whose children are projections of fitting sizes and at most an activation."""
    module = site.module
    roles = list(_roles(module))
    if not roles or module._parameters or module._buffers or one_argument(type(module)) is None:
        return None
    if type(module).__module__.startswith("fastops."):
        return None
    if why := unlike_its_class(module):
        return why
    others = [name for name in module._modules if name not in roles[0][1:]]
    for name in others:
        child = module._modules[name]
        if child is not None and (child._forward_hooks or child._forward_pre_hooks or child._backward_hooks):
            return f"its {name} has hooks, which would not be called"
    children = tuple(told_apart(child) if name in others else name for name, child in _children(module))
    key = find_gated_mlp, told_apart(module), children, tuple(roles)
    found = remembered(site, key, lambda: _prove(module, roles, site))
    if found is None or isinstance(found, str):
        return found
    return Swap(str(found), found, lambda: {"forward": forward_of(found)}, unused=tuple(others))


def _children(module: Module) -> list[tuple[str, Module]]:
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _projection(child: Module) -> tuple[int, int] | None:
    """Sizes of a linear layer, whatever its weight is kept as."""
    sizes = getattr(child, "in_features", None), getattr(child, "out_features", None)
    return sizes if type(sizes[0]) is int and type(sizes[1]) is int else None  # type: ignore[return-value]


def _roles(module: Module) -> Iterator[tuple[int, str, str | None, str]]:
    """Which children may be what: how many projections, gate, up if it has its own, down."""
    children = _children(module)
    if not 2 <= len(children) <= 4:
        return
    sizes = {name: size for name, child in children if (size := _projection(child))}
    others = [child for name, child in children if name not in sizes]
    if len(others) > 1 or any(child._modules or child._parameters or child._buffers for child in others):
        return
    if len(sizes) == 2:
        for both, down in permutations(sizes):
            if sizes[both] == (sizes[down][1], 2 * sizes[down][0]):
                yield 2, both, None, down
    elif len(sizes) == 3:
        for gate, up, down in permutations(sizes):
            if sizes[gate] == sizes[up] == sizes[down][::-1]:
                yield 3, gate, up, down


def forward_of(form: Form) -> FunctionType:
    """The forward of a swapped block."""
    unit, gate, up, down = UNITS[form.unit], form.gate, form.up, form.down
    gate_first = form.gate_first

    def of_two(self: Any, input: Tensor) -> Tensor:
        return getattr(self, down)(unit(getattr(self, gate)(input), getattr(self, up)(input)))  # type: ignore[arg-type]

    def of_one(self: Any, input: Tensor) -> Tensor:
        first, second = getattr(self, gate)(input).chunk(2, -1)
        return getattr(self, down)(unit(first, second) if gate_first else unit(second, first))

    return with_parameter_named(of_one if up is None else of_two, form.argument)  # type: ignore[arg-type]


class _Refuted(Exception):
    """With the reason why a block is left."""


def _prove(module: Module, roles: list[tuple[int, str, str | None, str]], site: Site) -> Form | str | None:
    with apart():
        failed = None
        for _, gate, up, down in roles:
            try:
                if form := _identified(module, gate, up, down):
                    _compare(module, form, site.verify == "bits")
                    return form
            except _Refuted as refuted:
                return str(refuted)
            except Exception as error:  # of a forward that nobody knows
                failed = f"its forward failed on a small copy: {type(error).__name__}: {str(error).splitlines()[:1]}"
        return failed or "it is not a gated unit between its projections"


def _made(module: Module, gate: str, up: str | None, down: str, dtype: torch.dtype, device: Any = "cpu") -> Module:
    """The block with small projections: of other sizes than any attribute says, and with biases."""
    sizes = {gate: (_HIDDEN, _BETWEEN if up else 2 * _BETWEEN), down: (_BETWEEN, _HIDDEN)}
    if up:
        sizes[up] = _HIDDEN, _BETWEEN
    children: dict[str, Module | None] = {}
    for k, (name, child) in enumerate(module._modules.items()):
        if name in sizes:
            columns, rows = sizes[name]
            linear = torch.nn.Linear(columns, rows, device=device, dtype=dtype)
            with torch.no_grad():
                linear.weight.copy_(numbers((rows, columns), 30 + k))
                linear.bias.copy_(numbers((rows,), 40 + k))
            children[name] = linear
        else:
            children[name] = copy.deepcopy(child)
    made = skeleton(module, {}, children)
    # Sizes that the forward reads of its own attributes, to split by them.
    wide = _projection(module._modules[down])  # type: ignore[arg-type]
    small = dict(zip(wide or (), (_BETWEEN, _HIDDEN), strict=False))
    for name, value in attributes(made).items():
        if type(value) is int and value in small:
            made.__dict__[name] = small[value]
    return made


def _forms(module: Module, gate: str, up: str | None, down: str) -> Iterator[Form]:
    argument = one_argument(type(module)) or "input"
    for unit in UNITS:
        yield Form(unit, gate, up, down, argument)
        if up is None:
            yield Form(unit, gate, up, down, argument, gate_first=False)


def _run(module: Module, made: Module, x: Tensor) -> Tensor:
    kept = x.detach().clone()
    y: Tensor = type(module).forward(made, x)
    if not torch.equal(x.detach(), kept):
        raise _Refuted("it changes its input")
    return y


def _identified(module: Module, gate: str, up: str | None, down: str) -> Form | None:
    made = _made(module, gate, up, down, torch.float64)
    x = numbers((_ROWS, _HIDDEN), 1)
    y = _run(module, made, x)
    for form in _forms(module, gate, up, down):
        if difference(forward_of(form)(made, x), y) is None:
            return form
    return None


def _compare(module: Module, form: Form, bits: bool) -> None:
    own = _own(module, form)
    half = own.dtype if own is not None and own.dtype in (torch.float16, torch.bfloat16) else torch.bfloat16
    f32, f64 = torch.float32, torch.float64
    for dtype, batch, scale, training in (
        (f64, (_ROWS,), 1.0, True),
        (f64, (1, 2, 3), 30.0, True),
        (f32, (2, 3), 1.0, False),
        (f32, (2, 3), 0.03, True),
        (half, (2, 3), 1.0, True),
    ):
        _agree(module, form, dtype, batch, scale, training)
    if bits:
        dtype = f32 if own is None else own.dtype
        device = torch.device("cpu") if own is None or own.device.type == "meta" else own.device
        _agree(module, form, dtype, (2, 3), 1.0, True, device, bits=True)


def _own(module: Module, form: Form) -> Tensor | None:
    """A floating point parameter of the block, whose dtype and device are its own."""
    parameters = module._modules[form.down].parameters()  # type: ignore[union-attr]
    return next((p for p in parameters if p.is_floating_point() and p.dtype.itemsize > 1), None)


def _agree(
    module: Module,
    form: Form,
    dtype: torch.dtype,
    batch: tuple[int, ...],
    scale: float,
    training: bool,
    device: Any = "cpu",
    bits: bool = False,
) -> None:
    made = _made(module, form.gate, form.up, form.down, dtype, device)
    made.train(training)
    x = numbers((*batch, _HIDDEN), 2, scale=scale).to(device, dtype).requires_grad_()
    y = _run(module, made, x)
    ours = forward_of(form)(made, x)
    why = difference(ours, y, bits=bits)
    if why is None and dtype.itemsize >= 4:
        why = gradient_difference(ours, y, {"its input": x, **dict(made.named_parameters())})
    if why is not None:
        raise _Refuted(f"it is not {form}: {why}")
