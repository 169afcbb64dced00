"""The modules of ``fastops.nn``: an operator's have its bits of the same arguments, and begin as torch.nn's do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import nn
from .accuracy import evaluate
from .bits import all_same, same_bits
from .checks import Outcome, same_results
from .forms import Form, Worst, of_calls, of_samples, results_of
from .kept import Kept
from .refusals import error_of
from .target import Target

Arguments = dict[str, Any]
Module = type[torch.nn.Module]


@dataclass(frozen=True)
class As:
    """A module, and which arguments of its operator are what ``forward`` takes, and what it has in its state."""

    module: Module
    inputs: tuple[str, ...] = ("input",)
    state: dict[str, str] = field(default_factory=dict)
    sizes: Callable[[Arguments], Arguments] = lambda a: {}
    options: dict[str, str] = field(default_factory=dict)  # whose names in the constructor differ
    spread: Callable[[Arguments], float] | None = None  # parameters begin uniformly up to it, where torch.nn has none

    def inputs_of(self, arguments: Arguments) -> tuple[Any, ...]:
        """The inputs of ``forward`` among them; LLTM's two states are one argument."""
        first, *others = (arguments.get(name) for name in self.inputs)
        return (first, tuple(others)) if self.module is nn.LLTM else (first, *others)


def _affine(a: Arguments) -> Arguments:
    return {"elementwise_affine": a.get("weight") is not None, "bias": a.get("bias") is not None}


def _layer(a: Arguments) -> Arguments:
    return {"in_features": a["input"].shape[-1], "out_features": len(a["weight"]), "bias": a.get("bias") is not None}


def _head(a: Arguments) -> Arguments:
    classes, *others, features = a["linear_weight"].shape
    sizes = {"in_features": features, "num_classes": classes, "out_features": tuple(others)}
    return sizes | {"bias": a.get("linear_bias") is not None} | _classes(a)


def _classes(a: Arguments) -> Arguments:
    return {"weight": a.get("weight")}


def _cell(a: Arguments) -> Arguments:
    return {"input_features": a["input"].shape[1], "state_size": a["old_h"].shape[1]}


_AFFINE = {"weight": "weight", "bias": "bias"}
_HEAD = {"linear_weight": "linear.weight", "linear_bias": "linear.bias", "weight": "weight"}
MODULES = {
    "relu": As(nn.ReLU),
    "sigmoid": As(nn.Sigmoid),
    "softmax": As(nn.Softmax),
    "log_softmax": As(nn.LogSoftmax),
    "swiglu": As(nn.SwiGLU, ("gate", "up")),
    "geglu": As(nn.GEGLU, ("gate", "up")),
    "layer_norm": As(nn.LayerNorm, state=_AFFINE, sizes=_affine),
    "rms_norm": As(nn.RMSNorm, state=_AFFINE, sizes=_affine),
    "linear": As(nn.Linear, state=_AFFINE, sizes=_layer),
    "cross_entropy": As(nn.CrossEntropyLoss, ("input", "target"), {"weight": "weight"}, _classes),
    "linear_cross_entropy": As(
        nn.LinearCrossEntropyLoss, ("input", "target"), _HEAD, _head, options={"dtype": "loss_dtype"}
    ),
    "lltm": As(
        nn.LLTM,
        ("input", "old_h", "old_cell"),
        {"weights": "weights", "bias": "bias"},
        _cell,
        spread=lambda a: a["old_h"].shape[1] ** -0.5,
    ),
}
# The operators between GatedMLP's layers: which of their arguments are the gate and what it gates.
GATES = {"swiglu": ("gate", "up"), "geglu": ("gate", "up"), "reglu": ("gate", "up"), "glu": ("gate", "input")}


def modules(t: Target) -> Iterator[Outcome]:
    """Of each call of the table that a module takes too: bits of results and gradients; and how parameters begin."""
    if t.quick and not t.first:
        return
    worst = Worst(t, "modules")
    forms = [*of_calls(t), *of_samples(t, t.case.small_samples)]
    if as_ := MODULES.get(t.case.name):
        for form in forms:
            _as_operator(worst, form, as_)
    if t.case.name in GATES:
        _layers_of_mlp(worst)
        for form in forms:
            _between_layers(t, worst, form)
    if t.case.name == "lltm":
        _without_state(worst, forms[0])
    if as_:
        _options_of_torch(worst, as_.module)
        _marks(worst, as_.module)
    if as_ or t.case.name in GATES:
        yield worst.outcome()


def _as_operator(worst: Worst, form: Form, as_: As) -> None:
    arguments = form.arguments
    made = begun(as_, arguments)
    if made is None:
        return
    module, theirs, known_to_torch = made

    def by(module: torch.nn.Module, *args: Any) -> tuple[Tensor, ...]:
        given = form.with_args(args).arguments
        state = {key: given[name] for name, key in as_.state.items() if given.get(name) is not None}
        return results_of(torch.func.functional_call(module, state, as_.inputs_of(given)))

    with (least := Kept()):
        expected = evaluate(form.ours, form.args)
    with (kept := Kept()):
        found = evaluate(partial(by, module), form.args)
    worst.expect(same_results(found, expected), "other bits than the operator's", form.text)
    worst.expect(kept.bytes == least.bytes, f"{kept.bytes} bytes kept, by the operator {least.bytes}", form.text)
    for key, parameter in module.named_parameters():
        twin = theirs.get_parameter(key) if theirs else parameter
        right = parameter + getattr(module, "weight_offset", 0.0) if key == "weight" else parameter
        worst.expect(torch.equal(right, twin), f"{key} does not begin as torch.nn's", form.text)
        if as_.spread:
            largest, limit = float(parameter.abs().max()), as_.spread(arguments)
            worst.expect(0.5 * limit < largest <= limit, f"{key} does not begin in ±{limit:.3g}", form.text)
    if theirs and known_to_torch:
        theirs.__class__ = as_.module
        found = evaluate(partial(by, theirs), form.args)
        worst.expect(same_results(found, expected), "other bits of torch.nn's that became ours", form.text)


def begun(as_: As, arguments: Arguments) -> tuple[torch.nn.Module, torch.nn.Module | None, bool] | None:
    """The module and torch.nn's, if there is one, of these arguments and one seed, and whether torch.nn's knows all of
    them. None: the module lacks one.
    """
    options = {as_.options.get(k, k): v for k, v in arguments.items() if k not in (*as_.inputs, *as_.state)}
    options |= as_.sizes(arguments)
    taken = _constructor(as_.module)
    if any(v is not None for k, v in options.items() if k not in taken and k != "bias"):
        return None
    options = {k: v for k, v in options.items() if k in taken}
    module = _seeded(as_.module, options)
    _of_dtype_and_device(as_.module, options)
    missing = {key for k, key in as_.state.items() if arguments.get(k) is not None} - {*module.state_dict()}
    if missing == {"bias"} and not options.get("elementwise_affine", True):  # of a norm without a weight
        return None
    if missing:
        raise RuntimeError(f"{as_.module.__name__} has no {', '.join(missing)} in its state_dict")
    base = _base(as_.module)
    known = {k: v for k, v in options.items() if k in _constructor(base)}
    return module, None if base is torch.nn.Module else _seeded(base, known), len(known) == len(options)


def _base(module: Module) -> Module:
    return next(cls for cls in module.__mro__ if cls.__module__.startswith("torch.nn"))


def _options_of_torch(worst: Worst, module: Module) -> None:
    """What torch deprecates, and gives another option by, does so."""
    for options in ({"size_average": False}, {"reduce": False}) if "reduce" in _constructor(module) else ():
        found, expected = (of(**options).reduction for of in (module, _base(module)))
        worst.expect(found == expected, f"reduction must be {expected}", str(options))


def _marks(worst: Worst, module: Module) -> None:
    """Parameters say that they are sequence parallel where it is asked for, also those made of the meta device's."""
    for asked in (False, True) if "sequence_parallel" in _constructor(module) else ():
        norm: Any = module(7, device="meta", sequence_parallel=asked)
        for _ in range(2):
            marks = {getattr(p, "sequence_parallel", False) for p in norm.parameters()}
            worst.expect(marks == {asked}, "other marks on the parameters", f"sequence_parallel={asked}")
            norm.to_empty(device="cpu").reset_parameters()


def _of_dtype_and_device(module: Module, options: Arguments) -> None:
    """All parameters are of what the constructor is asked for."""
    if not {"dtype", "device"} <= {*_constructor(module)}:
        return
    asked = {"dtype": torch.bfloat16, "device": torch.device("meta")}
    for key, parameter in module(**(options | asked)).named_parameters():
        if (parameter.dtype, parameter.device) != (*asked.values(),):
            raise RuntimeError(f"{module.__name__}.{key} is {parameter.dtype} on {parameter.device}, not of {asked}")


def _constructor(module: Module) -> list[str]:
    return list(inspect.signature(module).parameters)


def _seeded(module: Module, options: Arguments) -> Any:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return module(**options)


def _without_state(worst: Worst, form: Form) -> None:
    """LLTM begins with zeros of its input's dtype."""
    x = form.args[0]
    cell = _seeded(nn.LLTM, {"input_features": x.shape[1], "state_size": 5, "device": x.device, "dtype": x.dtype})
    zeros = x.new_zeros(len(x), 5)
    worst.expect(all_same(cell(x), cell(x, (zeros, zeros))), "other bits without a state", form.text)


def _layers_of_mlp(worst: Worst) -> None:
    """GatedMLP's are all of what its constructor is asked for."""
    _of_dtype_and_device(nn.GatedMLP, {"hidden": 7, "intermediate": 10, "bias": True})
    state = [f"{layer}_proj.{x}" for layer in ("gate", "up", "down") for x in ("weight", "bias")]
    for bias in (False, True):
        keys = sorted(nn.GatedMLP(7, 10, bias=bias).state_dict())
        expected = sorted(key for key in state if bias or not key.endswith("bias"))
        worst.expect(keys == expected, f"the state_dict must have {expected}", f"bias={bias}")
    for activation in GATES:
        error = error_of(lambda: nn.GatedMLP(7, 10, activation, alpha=1.7))  # noqa: B023
        right = error is None if activation == "swiglu" else isinstance(error, ValueError)
        worst.expect(right, f"alpha of {activation}", repr(error))


def _between_layers(t: Target, worst: Worst, form: Form) -> None:
    """GatedMLP of the options of a call, from numbers of two tensors."""
    first, second = GATES[t.case.name]
    options = {k: v for k, v in form.given.items() if v is not None}
    own = {k: v for k, v in options.items() if k != "approximate"}
    if not {*own} <= {"limit", "alpha", "offset"} or {*form.names} != {first, second}:
        return
    activation = t.case.name + ("_tanh" if options.get("approximate") == "tanh" else "")
    of_layers = {"hidden": 7, "intermediate": 10, "bias": True, "device": t.path.device, "dtype": t.dtype}
    mlp = _seeded(nn.GatedMLP, of_layers | {"activation": activation} | own)
    x = t.make()(3, 7)
    gated = t.case.function(**{first: mlp.gate_proj(x), second: mlp.up_proj(x)}, **options)
    worst.expect(same_bits(mlp(x), mlp.down_proj(gated)), "GatedMLP has other bits than its parts", form.text)
