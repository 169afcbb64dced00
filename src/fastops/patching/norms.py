"""Finder of norms: modules of one tensor whose forward is rms_norm or layer_norm over the trailing dimensions.

A norm is tried, not read. With random parameters and one float attribute after the other made large, its output says
which formula it is, and which attribute is its eps. What is then compared, in values, dtypes and gradients, is the very
forward that it would get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..ops.layer_norm import layer_norm
from ..ops.rms_norm import rms_norm
from ..sharding import is_sharded
from .proof import (
    Refuted,
    apart,
    attributes,
    checked_run,
    coarser,
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
from .swap import Module, Site, Swap, with_parameter_named

Dtypes = Callable[[torch.dtype, torch.dtype], torch.dtype]

# Dtype of the output by those of input and weight. "as torch" is for what returns torch's own norm of its input: under
# autocast, and only there, that is not the input's.
RESULTS: dict[str, Dtypes] = {
    "as torch": lambda x, w: x,
    "input": lambda x, w: x,
    "promoted": torch.promote_types,
    "weight": lambda x, w: w,
    "float32": lambda x, w: torch.float32,
    "float32 at least": lambda x, w: torch.promote_types(x, torch.float32),
}

_LARGE_EPS = 0.37


@dataclass(frozen=True)
class Form:
    """Which norm: parameters by their names in the module, eps by an attribute's name or as a number."""

    op: str
    offset: float
    weight: str | None
    bias: str | None
    dims: int
    eps: str | float | None
    argument: str
    result: str = "input"

    def __str__(self) -> str:
        eps = f"eps={self.eps}"
        offset = f", weight_offset={self.offset:g}" if self.offset else ""
        return f"{self.op}({eps}{offset})"


def find_norm(site: Site) -> Swap | str | None:
    """A module without children whose class is called a norm, but not one of a batch's or a channel's statistics."""
    module = site.module
    if "norm" not in type(module).__name__.lower() or is_ours(module):
        return None
    if isinstance(module, torch.nn.modules.batchnorm._NormBase) or "running_mean" in module._buffers:
        return None
    if module._modules and not torch.nn.utils.parametrize.is_parametrized(module):
        return None
    found = remembered(site, (find_norm, fingerprint(module)), lambda: _prove(module, site.verify == "bits"))
    return found if isinstance(found, str) else Swap(str(found), found, lambda: {"forward": forward_of(found)})


def _structure(module: Module) -> str | None:
    if why := unlike_its_class(module):
        return why
    present = [p for p in module._parameters.values() if p is not None]
    if len(present) > 2 or len({p.shape for p in present}) > 1:
        return "its parameters are no weight and bias of one shape"
    for p in present:
        if type(p) is not torch.nn.Parameter and not is_sharded(p):
            return f"a parameter is a {type(p).__name__}"
        if not p.is_floating_point():
            return f"a parameter is {p.dtype}"
        if not p.numel():
            return "its parameters are empty here"
    if one_argument(type(module)) is None:
        return "its forward takes more than one tensor"
    return None


def forward_of(form: Form) -> FunctionType:
    """The forward of a swapped norm."""
    weight, bias, dims, offset = form.weight, form.bias, form.dims, form.offset
    eps: Any = form.eps
    by_attribute, is_rms = isinstance(eps, str), form.op == "rms_norm"
    result = RESULTS[form.result]

    def norm(self: Any, x: Tensor, w: Tensor | None) -> Tensor:
        shape = x.shape[-dims:] if w is None else w.shape
        e = getattr(self, eps) if by_attribute else eps
        if is_rms:
            return rms_norm(x, shape, w, e, weight_offset=offset)
        return layer_norm(x, shape, w, None if bias is None else getattr(self, bias), e, weight_offset=offset)

    def as_torch(self: Any, input: Tensor) -> Tensor:
        return norm(self, input, None if weight is None else getattr(self, weight))

    def converted(self: Any, input: Tensor) -> Tensor:
        w = None if weight is None else getattr(self, weight)
        of_input = input.dtype
        of_weight = w.dtype if w is not None else of_input if bias is None else getattr(self, bias).dtype
        dtype = result(of_input, of_weight)
        wide = torch.promote_types(of_input, dtype)
        output = norm(self, input if of_input == wide else input.to(wide), w)
        return output if output.dtype == dtype else output.to(dtype)

    forward: Any = as_torch if form.result == "as torch" else converted
    return with_parameter_named(forward, form.argument)


class _Natives(TorchFunctionMode):
    """Keeps the last output of torch's own norms, and what it was made from."""

    native = (torch.layer_norm, torch.rms_norm, torch.native_layer_norm)

    def __init__(self) -> None:
        super().__init__()
        self.last: tuple[Any, Any] = (None, None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in self.native:
            self.last = args[0] if args else None, output
        return output


class _Trial:
    """A norm's own forward, on parameters of ours."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.cls: Any = type(module)
        self.names = [name for name, p in module._parameters.items() if p is not None]
        self.absent = {name: None for name, p in module._parameters.items() if p is None}
        self.own = [p for p in module._parameters.values() if p is not None]

    def sizes(self) -> Iterator[tuple[int, ...]]:
        """What it may normalise over: its parameters' shape, else what its attributes say, else anything."""
        if self.own:
            yield tuple(self.own[0].shape)
            return
        for value in attributes(self.module).values():
            shape = (value,) if type(value) is int else value
            if isinstance(shape, (tuple, list)) and shape and all(type(n) is int and n > 1 for n in shape):
                yield tuple(shape)
        yield (24,)

    def made(self, shape: tuple[int, ...], dtype: torch.dtype, device: Any = "cpu") -> Module:
        parameters = {name: numbers(shape, 11 + k).to(device, dtype) for k, name in enumerate(self.names)}
        made = skeleton(self.module, {**self.absent, **parameters}, {})
        for k, (name, buffer) in enumerate(self.module._buffers.items()):  # of other values: none may matter
            if buffer is not None:
                values = numbers(tuple(buffer.shape), 21 + k, mean=1.0) if buffer.is_floating_point() else 0
                made._buffers[name] = (torch.zeros(buffer.shape, dtype=buffer.dtype) + values).to(device, buffer.dtype)
        return made

    def run(self, made: Module, x: Tensor) -> Tensor:
        return checked_run(self.cls, made, x)


def _prove(module: Module, bits: bool) -> Form | str:
    if why := _structure(module):
        return why
    with apart(module):
        try:
            return _proved(_Trial(module), bits)
        except Refuted as refuted:
            return str(refuted)
        except Exception as error:
            return failed(error)


def _proved(trial: _Trial, bits: bool) -> Form:
    form, shape = _identified(trial)
    form = replace(form, result=_result(trial, form, shape))
    _compare(trial, form, shape)
    dtype, device = own_place(trial.own[0] if trial.own else None)
    _agree(trial, form, shape, (6, *shape), dtype, dtype, bits=bits, device=device)
    return form


def _identified(trial: _Trial) -> tuple[Form, tuple[int, ...]]:
    """Formula, eps and the shape that is normalised over, from outputs in float64, or else in float32."""
    raised: Exception | None = None
    for dtype, shape in product((torch.float64, torch.float32), tuple(trial.sizes())):
        made = trial.made(shape, dtype)
        try:
            x = numbers((3, *shape), 1, mean=0.4).to(dtype)
            for eps, small in _eps_of(trial, made, x):
                x_here = x * 1e-3 if small else x
                y = trial.run(made, x_here)
                for form in _forms(trial, shape, eps):
                    if difference(forward_of(form)(made, x_here), y) is None:
                        if why := depends_on(trial.cls, made, x_here, eps):
                            raise Refuted(why)
                        return form, shape
        except Refuted:
            raise
        except Exception as error:  # of another size or dtype, perhaps
            raised = error
    if raised is not None:
        raise raised
    raise Refuted("it computes neither rms_norm nor layer_norm")


def _eps_of(trial: _Trial, made: Module, x: Tensor) -> Iterator[tuple[str | float | None, bool]]:
    """What eps may be; an attribute is large for as long as it is asked about."""
    before = trial.run(made, x)
    for name, value in attributes(made).items():
        if value is not None and type(value) not in (float, int):
            continue
        made.__dict__[name] = _LARGE_EPS
        try:
            changes = difference(trial.run(made, x), before) is not None
        except Exception:  # a size, or what there is none of
            changes = False
        if changes:
            yield name, False
        made.__dict__[name] = value
    code = getattr(trial.cls.forward, "__code__", None)
    constants = [c for c in getattr(code, "co_consts", ()) if type(c) is float and 0 <= c < 1]
    for constant in dict.fromkeys([*constants, 1e-5, None]):
        yield constant, True


def _forms(trial: _Trial, shape: tuple[int, ...], eps: str | float | None) -> Iterator[Form]:
    argument = one_argument(trial.cls) or "input"
    roles: list[tuple[str | None, ...]] = [*permutations(trial.names, 2)]
    for weight, bias in roles or [(*trial.names, None, None)[:2]]:
        for offset in (0.0, 1.0) if weight else (0.0,):
            for op in ("layer_norm",) if bias else ("rms_norm", "layer_norm"):
                if op == "layer_norm" and eps is None:
                    continue
                yield Form(op, offset, weight, bias, len(shape), eps, argument)


def _pairs(trial: _Trial) -> list[tuple[torch.dtype, torch.dtype]]:
    """Dtypes of input and parameters that the norm has to return the right one for."""
    half = half_of(own_place(trial.own[0] if trial.own else None)[0])
    return [(torch.float64,) * 2, (torch.float32,) * 2, (half, half), (half, torch.float32), (torch.float32, half)]


def _result(trial: _Trial, form: Form, shape: tuple[int, ...]) -> str:
    """The rule of RESULTS that holds for all dtypes which the norm can be called with."""
    seen = []
    native = True
    for x_dtype, dtype in _pairs(trial):
        x = numbers((2, *shape), 1).to(x_dtype)
        try:
            with _Natives() as natives:
                y = trial.run(trial.made(shape, dtype), x)
        except RuntimeError:  # torch's own raise for some mixtures
            continue
        native = native and natives.last[0] is x and natives.last[1] is y
        seen.append((x_dtype, dtype, y.dtype))
    for name, rule in RESULTS.items():
        if (native or name != "as torch") and all(rule(x, w) == y for x, w, y in seen):
            return name
    raise Refuted(f"the dtype of its output follows no rule: {seen}")


def _compare(trial: _Trial, form: Form, shape: tuple[int, ...]) -> None:
    f32, f64 = torch.float32, torch.float64
    for batch in ((5,), (2, 3), (1, 2, 2)):
        _agree(trial, form, shape, (*batch, *shape), f32, f32, optional=len(batch) > 1)
    _agree(trial, form, shape, (5, *shape), f32, f32, training=False)
    _agree(trial, form, shape, (5, *shape), f64, f64, gradients=True, optional=True)
    _agree(trial, form, shape, (2, 3, *shape), f32, f32, gradients=True, scale=30.0)
    _agree(trial, form, shape, (2, 3, *shape), f32, f32, scale=0.03)
    _agree(trial, form, shape, (2, 3, *shape), f32, f32, scale=1e4)
    for x_dtype, dtype in _pairs(trial)[2:]:
        _agree(trial, form, shape, (2, 3, *shape), x_dtype, dtype, optional=True)


def _agree(
    trial: _Trial,
    form: Form,
    shape: tuple[int, ...],
    of_input: tuple[int, ...],
    x_dtype: torch.dtype,
    dtype: torch.dtype,
    *,
    scale: float = 1.0,
    gradients: bool = False,
    training: bool = True,
    optional: bool = False,
    bits: bool = False,
    device: Any = "cpu",
) -> None:
    made = trial.made(shape, dtype, device)
    made.__dict__["training"] = training
    x = numbers(of_input, 2, mean=0.3, scale=scale).to(device, x_dtype).requires_grad_(gradients)
    try:
        y = trial.run(made, x)
    except RuntimeError:
        if optional:  # of this many dimensions, or of these dtypes, it makes nothing
            return
        raise
    ours = forward_of(form)(made, x)
    why = difference(ours, y, coarser(x_dtype, dtype), bits)
    if why is None and gradients:
        parameters = {name: p for name, p in made._parameters.items() if p is not None}
        why = gradient_difference(ours, y, {"its input": x, **parameters})
    if why is not None:
        raise Refuted(f"it is not {form}: {why}")
