"""What proofs share: a module to try that is nobody's, random numbers, and what counts as equal."""

from __future__ import annotations

import copy
import inspect
import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor

from .swap import Module, Site

T = TypeVar("T")

# Relative to the largest number: what is computed in float32 differs by so much from what is in another order.
VALUES = 2e-6
GRADIENTS = 1e-5
HALF_ULPS = 4

_OF_EVERY_MODULE = frozenset(torch.nn.Module().__dict__)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def remembered(site: Site, key: Hashable, prove: Callable[[], T]) -> T:
    """What was proved for another module of this call that cannot be told from this one by ``key``."""
    if key not in site.proofs:
        site.proofs[key] = prove()
    proved: T = site.proofs[key]
    return proved


def attributes(module: Module) -> dict[str, Any]:
    """What the module's ``__init__`` has put beside parameters, buffers and children."""
    return {name: value for name, value in module.__dict__.items() if name not in _OF_EVERY_MODULE}


def fingerprint(module: Module) -> Hashable:
    """What a forward may read of the module, without its tensors' values."""
    return (
        type(module),
        tuple((name, _value(value, module)) for name, value in sorted(attributes(module).items())),
        tuple((name, p if p is None else (p.shape, p.dtype, p.device)) for name, p in module._parameters.items()),
    )


def _value(value: Any, module: Module) -> Hashable:
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_value(part, module) for part in value)
    if type(value) is MethodType and value.__self__ is module:
        return MethodType, value.__func__
    if type(value) is partial:  # each module of a model may have made its own
        keywords = tuple((name, _value(part, module)) for name, part in sorted(value.keywords.items()))
        return partial, value.func, _value(value.args, module), keywords
    return id(value)


def skeleton(module: Module, parameters: Mapping[str, Tensor | None], children: Mapping[str, Module | None]) -> Module:
    """A module of the same class and attributes, with other parameters and children. Its changes reach nobody."""
    made: Module = object.__new__(type(module))
    torch.nn.Module.__init__(made)
    for name, value in attributes(module).items():
        made.__dict__[name] = copy.copy(value) if isinstance(value, (dict, list, set)) else value
    for name, parameter in parameters.items():
        made._parameters[name] = parameter if parameter is None else torch.nn.Parameter(parameter)
    made._modules.update(children)
    made.__dict__["training"] = True
    return made


@contextmanager
def apart(module: Module) -> Iterator[None]:
    """Neither the caller's modes, nor its random numbers, nor what a strange forward says to it.

    A module is tried on its parameters' GPU too: a projection that is made there draws from that GPU's generator.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.device("cpu"))
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(same_random_numbers(module))
        yield


def same_random_numbers(module: Module) -> AbstractContextManager[None]:
    """The generators of the CPU and of all GPUs that the module is on are afterwards what they were."""
    gpus = {p.device for p in module.parameters() if p.is_cuda} if torch.cuda.is_available() else ()
    return torch.random.fork_rng(devices=gpus)


def numbers(shape: tuple[int, ...], seed: int, mean: float = 0.0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu") + mean) * scale


def one_argument(cls: type) -> str | None:
    """The name of ``forward``'s one argument beside self, or None if it takes fewer or more."""
    try:
        parameters = list(inspect.signature(cls.forward).parameters.values())[1:]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return None
    if len(parameters) != 1 or parameters[0].default is not inspect.Parameter.empty:
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return parameters[0].name if parameters[0].kind in kinds else None


def is_ours(module: Module) -> bool:
    """One of fastops.nn or of fastops.integrations."""
    return type(module).__module__.startswith(_OURS)


_OURS = ("fastops.nn.", "fastops.integrations.")


def unlike_its_class(module: Module) -> str | None:
    """Why the module may not run what its class says, or None."""
    if "forward" in module.__dict__:
        return "its forward was replaced on the instance"
    if torch.nn.utils.parametrize.is_parametrized(module):
        return "it is parametrized"
    if isinstance(module, (torch.jit.ScriptModule, torch.fx.GraphModule)):
        return "it is no plain Python module"
    return None


class Refuted(Exception):
    """With the one reason why a module is left."""


def failed(error: Exception, what: str = "its forward raised an error for a tensor of random numbers") -> str:
    """Return the reason for a module whose trial raised. The error itself is logged at DEBUG."""
    logging.getLogger("fastops").debug("patch: %s", what, exc_info=error)
    return what


def checked_run(cls: Any, made: Module, x: Tensor) -> Tensor:
    """``forward`` of a class on a module of ours, which has to leave its input and the module as they are."""
    kept, before = x.detach().clone(), _state(made)
    y = cls.forward(made, x)
    if not torch.equal(x.detach(), kept):
        raise Refuted("it changes its input")
    if _state(made) != before:
        raise Refuted("its forward changes the module")
    if not isinstance(y, Tensor):
        raise Refuted("it does not return one tensor")
    return y


def _state(made: Module) -> list[Any]:
    tensors = [t._version for t in (*made.parameters(), *made.buffers())]
    return [tensors, [attributes(module) for module in made.modules()]]


def depends_on(cls: Any, made: Module, x: Tensor, known: object = None) -> str | None:
    """A number among the attributes, other than ``known``, that the output depends on: it may change later."""
    before = cls.forward(made, x)
    for name, value in attributes(made).items():
        if name == known or type(value) not in (float, int):
            continue
        # A bound far from the numbers shows where it is 0.
        for other in (value + 1 if type(value) is int else 1.5 * value + 0.25, type(value)(0)):
            made.__dict__[name] = other
            try:
                differs = difference(cls.forward(made, x), before) is not None
            except Exception:  # of a size that does not fit
                differs = False
            made.__dict__[name] = value
            if differs:
                return f"its result depends on its attribute {name}"
    return None


def own_place(tensor: Tensor | None) -> tuple[torch.dtype, torch.device]:
    """Dtype and device of a module that has this parameter, for a try with its own."""
    if tensor is None:
        return torch.float32, torch.device("cpu")
    return tensor.dtype, torch.device("cpu") if tensor.device.type == "meta" else tensor.device


def half_of(dtype: torch.dtype) -> torch.dtype:
    """The half type to try a module of this dtype with."""
    return dtype if dtype in (torch.float16, torch.bfloat16) else torch.bfloat16


def difference(found: Tensor, expected: Tensor, coarse: torch.dtype = torch.float64, bits: bool = False) -> str | None:
    """How the second differs from the first: dtype, shape or values; None where it does not by more than rounding.

    ``coarse`` is the coarsest dtype that anything of it was rounded to.
    """
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"it returns {_named(expected)}{list(expected.shape)}, and not {_named(found)}{list(found.shape)}"
    if bits:
        return None if torch.equal(found, expected) else f"its bits in {_named(expected)} are others"
    a, b = found.detach().double().cpu(), expected.detach().double().cpu()
    half = coarser(coarse, expected.dtype)
    if half.itemsize < 4:  # of each element, of small ones as of the mean one
        ulp = torch.finfo(half).eps * b.abs().clamp(min=float(b.abs().mean()))
        worst = float(((a - b).abs() / ulp).max())
        return None if worst <= HALF_ULPS else f"{_named(expected)}: {worst:.2g} ulp off"
    worst = float((a - b).abs().max() / b.abs().max().clamp(min=1e-300))
    return None if worst <= VALUES else f"{_named(expected)}: {worst:.2g} off"


def coarser(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    return min(a, b, key=lambda dtype: dtype.itemsize)


def gradient_difference(found: Tensor, expected: Tensor, named: Mapping[str, Tensor]) -> str | None:
    """Likewise of the gradients of two outputs for the same tensors."""
    direction = numbers(tuple(expected.shape), 5).to(expected)
    tensors = list(named.values())
    pairs = []
    for output in (found, expected):
        if not output.requires_grad:
            return "it has no gradient"
        pairs.append(torch.autograd.grad(output, tensors, direction, allow_unused=True))
    for name, ours, its in zip(named, *pairs, strict=True):
        if ours is None or its is None:
            if ours is not its:
                return f"it has no gradient for {name}"
            continue
        scale = its.abs().max().clamp(min=1e-300)
        if not float((ours - its).abs().max() / scale) <= GRADIENTS:
            return f"its gradient for {name} is another"
    return None


def _named(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
