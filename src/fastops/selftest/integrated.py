"""The layers of ``fastops.integrations`` that need no framework, against the formulas of what they replace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import nn
from ..integrations import kernels, megatron
from .accuracy import evaluate, in_float64, incoming_gradients, near
from .checks import MAIN_DTYPES, Outcome
from .forms import Worst
from .modules import Module
from .patched import rotated
from .refusals import error_of
from .target import Target

_N, _EPS = 16, 0.25
Forward = Callable[..., Any]  # of what a layer reads its attributes from, and its inputs


@dataclass(frozen=True)
class Layer:
    formula: Forward
    shapes: tuple[tuple[int, ...], ...] = ((3, 5, _N),)  # of the inputs, and then of the parameters
    inputs: int = 1
    options: tuple[Any, ...] = ()  # positional, behind the inputs
    stands_for: Callable[..., Any] = lambda: None  # what has these parameters
    of_two_dtypes: bool = False  # parameters may be float32 beside inputs of a half type
    how: str = ""  # behind its name in a report


def _normalized(x: Tensor) -> Tensor:
    return x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + _EPS)


def _norm(self: Any, x: Tensor) -> Tensor:
    return _normalized(x).to(x.dtype) * self.weight


def _zero_centered(self: Any, x: Tensor) -> Tensor:
    return (_normalized(x) * (1 + self.weight.double())).to(x.dtype)


def _activation(function: Callable[[Tensor], Tensor]) -> Layer:
    return Layer(lambda self, x: function(x))


def _rotated(self: Any, *args: Any) -> tuple[Tensor, Tensor]:
    return rotated(*args)


def _norm_layer(formula: Forward, eps: str) -> Layer:
    def with_weight(weight: Tensor) -> Any:
        return SimpleNamespace(weight=weight, **{eps: _EPS})

    return Layer(formula, ((3, 5, _N), (_N,)), stands_for=with_weight, of_two_dtypes=True, how=f" by {eps}")


def _mlp(activation: Callable[[Tensor], Tensor]) -> Layer:
    def formula(self: Any, x: Tensor) -> Any:
        return self.down_proj(activation(self.gate_proj(x)) * self.up_proj(x))

    return Layer(formula, ((3, 5, _N), (24, _N), (24, _N), (_N, 24)), stands_for=_with_layers)


def _with_layers(*weights: Tensor) -> Any:
    names = "gate_proj", "up_proj", "down_proj"
    return SimpleNamespace(**{name: partial(F.linear, weight=w) for name, w in zip(names, weights, strict=True)})


_HEADS = ((2, 4, 5, _N), (2, 3, 5, _N), (2, 5, _N), (2, 5, _N))
_HEADS_BEHIND = ((2, 5, 4, _N), (2, 5, 3, _N), *_HEADS[2:])
_gelu_tanh = partial(F.gelu, approximate="tanh")
# By the operator whose check runs them, and by their names in the mapping.
LAYERS: dict[str, dict[str, tuple[Layer, ...]]] = {
    "rms_norm": {
        name: tuple(_norm_layer(formula, eps) for eps in ("eps", "variance_epsilon"))
        for name, formula in (("RMSNorm", _norm), ("RMSNormZeroCentered", _zero_centered))
    },
    "rope": {
        "rotary_pos_emb": (
            Layer(_rotated, _HEADS, 4),
            Layer(_rotated, _HEADS_BEHIND, 4, (2,), how=" with heads behind tokens"),
        )
    },
    "swiglu": {
        "SwiGLUMLP": (_mlp(F.silu),),
        "SiLU": (_activation(F.silu),),
    },
    "geglu": {
        "GeGLUMLP": (_mlp(_gelu_tanh),),
        "GeLU": (_activation(F.gelu),),
        "GeluTanh": (_activation(_gelu_tanh),),
        "NewGELU": (_activation(_gelu_tanh),),
        "FastGELU": (_activation(_gelu_tanh),),
    },
}
_OF_MEGATRON: dict[str, tuple[str, Module]] = {
    "layer_norm": ("LayerNorm", nn.LayerNorm),
    "rms_norm": ("RMSNorm", nn.RMSNorm),
}


def integrations(t: Target) -> Iterator[Outcome]:
    """Values, gradients and dtypes, also of float32 weights beside half types; and what Megatron's config chooses."""
    if t.case.name not in {*LAYERS, *_OF_MEGATRON} or (t.quick and t.dtype not in MAIN_DTYPES):
        return
    worst = Worst(t, "integrations")
    for name, layers in LAYERS.get(t.case.name, {}).items():
        module = kernels.mapping()[name][t.path.device.type].load()
        for layer in layers:
            for dtype in dict.fromkeys((t.dtype, *[t.make().parameter_dtype] * layer.of_two_dtypes)):
                _as_formula(worst, name, module, layer, dtype)
    if t.case.name in _OF_MEGATRON:
        _as_config(worst, *_OF_MEGATRON[t.case.name])
    yield worst.outcome()


def _as_formula(worst: Worst, name: str, module: Module, layer: Layer, parameters: torch.dtype) -> None:
    make, inputs = worst.t.make(), layer.inputs
    dtypes = (worst.t.dtype if k < inputs else parameters for k in range(len(layer.shapes)))
    args = tuple(make(*shape, dtype=dtype) for shape, dtype in zip(layer.shapes, dtypes, strict=True))

    def by(forward: Forward) -> Forward:
        return lambda *args: forward(layer.stands_for(*args[inputs:]), *args[:inputs], *layer.options)

    found = evaluate(by(module.forward), args)
    own = by(layer.formula)(*args)
    outputs = own if isinstance(own, tuple) else (own,)
    truth = in_float64(by(layer.formula), args, incoming_gradients(outputs))
    where = f"{name}{layer.how}" + f", parameters of {parameters}" * layer.of_two_dtypes
    worst.expect([x.dtype for x in found.outputs] == [x.dtype for x in outputs], "another dtype", where)
    results, expected = found.outputs + found.gradients, truth.outputs + truth.gradients
    worst.expect(near(results, expected, worst.t.dtype), "other numbers", where)


def _as_config(worst: Worst, name: str, kind: Module) -> None:
    t = worst.t
    x = t.make()(3, _N)
    for zero_centered, parallel in product((False, True), repeat=2):
        norm = megatron.Norm(_config(name, zero_centered, parallel), _N, _EPS)
        assert isinstance(norm, torch.nn.Module)
        norm.to(t.path.device, t.dtype)
        plain = kind(_N, eps=_EPS).to(t.path.device, t.dtype)
        where = f"Megatron's {name}, zero-centered: {zero_centered}, sequence_parallel: {parallel}"
        worst.expect(type(norm) is kind, "another class", where)
        begins = norm.get_parameter("weight") == (0 if zero_centered else 1)
        worst.expect(bool(begins.all()), "the weight begins elsewhere", where)
        with torch.no_grad():
            for module in (norm, plain):
                module.get_parameter("weight").add_(0.75)
        worst.expect(near([norm(x)], [plain(x)], t.dtype), "other numbers", where)
        marked = {getattr(p, "sequence_parallel", False) for p in norm.parameters()}
        worst.expect(marked == {parallel}, "other marks on the parameters", where)
    found = error_of(partial(megatron.Norm, _config("GroupNorm"), _N))
    worst.expect(isinstance(found, ValueError), f"no error, got {found!r}", "another normalization")


def _config(name: str, zero_centered: bool = False, parallel: bool = False) -> Any:
    options = {"layernorm_zero_centered_gamma": zero_centered, "sequence_parallel": parallel}
    return SimpleNamespace(normalization=name, **options)
