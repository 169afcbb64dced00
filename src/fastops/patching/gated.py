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
    Refuted,
    apart,
    attributes,
    checked_run,
    depends_on,
    difference,
    failed,
    fingerprint,
    gradient_difference,
    half_of,
    is_ours,
    numbers,
    one_argument,
    own_place,
    remembered,
    skeleton,
    unlike_its_class,
)
from .recomputed import recomputed
from .swap import Module, Site, Swap, with_parameter_named

Function = Callable[[Tensor, Tensor], Tensor]
Roles = tuple[str, "str | None", str]


def _glu(gate: Tensor, up: Tensor) -> Tensor:
    return glu(up, gate=gate)


# By what the report calls them.
UNITS: dict[str, Function] = {
    "swiglu": swiglu,
    "geglu": geglu,
    "geglu(approximate=tanh)": partial(geglu, approximate="tanh"),
    "swiglu(alpha=1.702)": partial(swiglu, alpha=1.702),
    "reglu": reglu,
    "glu": _glu,
}

_HIDDEN, _BETWEEN, _ROWS = 6, 8, 5
_MOST_CHILDREN = 6  # with what it is then left for
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
    """A module that has projections of fitting sizes among its children."""
    module = site.module
    roles = list(_roles(module))
    if not roles or is_ours(module):
        return None
    others = {name: child for name, child in _children(module).items() if name not in roles[0]}
    for name, child in others.items():
        if any(getattr(child, hooks) for hooks in _HOOKS):
            return f"its {name} has hooks, which would not be called"
    key = find_gated_mlp, fingerprint(module), tuple(roles), tuple(map(fingerprint, others.values()))
    found = remembered(site, key, lambda: _prove(module, roles, others, site.verify == "bits"))
    if found is None or isinstance(found, str):
        return found
    return Swap(str(found), found, lambda: {"forward": forward_of(found)}, unused=tuple(others))


def _children(module: Module) -> dict[str, Module]:
    return {name: child for name, child in module._modules.items() if child is not None}


def _projection(child: Module) -> tuple[int, int] | None:
    """Sizes of a linear layer, whatever its weight is kept as."""
    sizes = getattr(child, "in_features", None), getattr(child, "out_features", None)
    return sizes if type(sizes[0]) is int and type(sizes[1]) is int else None  # type: ignore[return-value]


def _roles(module: Module) -> Iterator[Roles]:
    """Which children may be gate, up if it has its own, and down."""
    if not 2 <= len(module._modules) <= _MOST_CHILDREN:
        return
    sizes = {name: size for name, child in _children(module).items() if (size := _projection(child))}
    if len(sizes) == 2:
        for both, down in permutations(sizes):
            if sizes[both] == (sizes[down][1], 2 * sizes[down][0]):
                yield both, None, down
    elif len(sizes) == 3:
        for gate, up, down in permutations(sizes):
            if sizes[gate] == sizes[up] == sizes[down][::-1]:
                yield gate, up, down


def _structure(module: Module, others: dict[str, Module]) -> str | None:
    if why := unlike_its_class(module):
        return why
    if module._parameters or module._buffers:
        return "it has parameters or buffers beside its projections"
    if len(others) > 1:
        return f"it has {', '.join(others)} beside its projections"
    if any(child._modules or child._parameters or child._buffers for child in others.values()):
        return f"its {', '.join(others)} has parts"
    return None


def forward_of(form: Form) -> FunctionType:
    """The forward of a swapped block."""
    unit, gate, up, down = UNITS[form.unit], form.gate, form.up, form.down
    gate_first = form.gate_first

    def of_two(self: Any, input: Tensor) -> Tensor:
        return _into(getattr(self, down), unit, getattr(self, gate)(input), getattr(self, up)(input))  # type: ignore[arg-type]

    def of_one(self: Any, input: Tensor) -> Tensor:
        first, second = getattr(self, gate)(input).chunk(2, -1)
        return _into(getattr(self, down), unit, *((first, second) if gate_first else (second, first)))

    return with_parameter_named(of_one if up is None else of_two, form.argument)  # type: ignore[arg-type]


def _into(down: Module, unit: Function, gate: Tensor, up: Tensor) -> Tensor:
    y = unit(gate, up)
    with recomputed(down, y, unit, gate, up):
        return down(y)  # type: ignore[no-any-return]


def _prove(module: Module, roles: list[Roles], others: dict[str, Module], bits: bool) -> Form | str | None:
    if one_argument(type(module)) is None:  # an attention, rather
        return None
    if why := _structure(module, others):
        return why
    reason = "it is not a gated unit between its projections"
    with apart(module):
        for gate, up, down in roles:
            try:
                if form := _identified(module, gate, up, down):
                    _compare(module, form, bits)
                    return form
            except Refuted as refuted:
                return str(refuted)
            except Exception as error:  # where another child is the one
                reason = failed(error)
    return reason


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


def _identified(module: Module, gate: str, up: str | None, down: str) -> Form | None:
    made = _made(module, gate, up, down, torch.float64)
    x = numbers((_ROWS, _HIDDEN), 1)
    y = checked_run(type(module), made, x)
    for form in _forms(module, gate, up, down):
        if difference(forward_of(form)(made, x), y) is None:
            if why := depends_on(type(module), made, x):
                raise Refuted(why)
            return form
    return None


def _compare(module: Module, form: Form, bits: bool) -> None:
    # A floating point parameter of the block: of quantised projections perhaps none.
    of_down = module._modules[form.down].parameters()  # type: ignore[union-attr]
    own, device = own_place(next((p for p in of_down if p.is_floating_point() and p.dtype.itemsize > 1), None))
    f32, f64 = torch.float32, torch.float64
    for dtype, batch, scale, training in (
        (f64, (_ROWS,), 1.0, True),
        (f64, (1, 2, 3), 30.0, True),
        (f32, (2, 3), 1.0, False),
        (f32, (2, 3), 0.03, True),
        (half_of(own), (2, 3), 1.0, True),
    ):
        _agree(module, form, dtype, batch, scale, training)
    _agree(module, form, own, (2, 3), 1.0, True, device, bits)


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
    y = checked_run(type(module), made, x)
    ours = forward_of(form)(made, x)
    why = difference(ours, y, bits=bits)
    if why is None and dtype.itemsize >= 4:
        why = gradient_difference(ours, y, {"its input": x, **dict(made.named_parameters())})
    if why is not None:
        raise Refuted(f"it is not {form}: {why}")
