"""Finder of activations: torch's own modules, and subclasses of them, that an operator has in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..ops.glu import glu
from ..ops.log_softmax import log_softmax
from ..ops.relu import relu
from ..ops.sigmoid import sigmoid
from ..ops.softmax import softmax
from .proof import (
    Refuted,
    apart,
    checked_run,
    depends_on,
    difference,
    failed,
    fingerprint,
    gradient_difference,
    is_ours,
    numbers,
    one_argument,
    remembered,
    skeleton,
    unlike_its_class,
)
from .swap import Module, Site, Swap, with_parameter_named

# Whether the function has a dim, which is then read of the module's attribute.
OPERATORS: dict[type, tuple[str, Callable[..., Tensor], bool]] = {
    torch.nn.ReLU: ("relu", relu, False),
    torch.nn.Sigmoid: ("sigmoid", sigmoid, False),
    torch.nn.Softmax: ("softmax", softmax, True),
    torch.nn.LogSoftmax: ("log_softmax", log_softmax, True),
    torch.nn.GLU: ("glu", glu, True),
}
_SHAPE = (2, 4, 6, 8)


@dataclass(frozen=True)
class Form:
    """Which class of OPERATORS, and what its forward calls its argument."""

    of: type
    argument: str

    def __str__(self) -> str:
        name, _, has_dim = OPERATORS[self.of]
        return f"{name}(dim=dim)" if has_dim else name


def find_activation(site: Site) -> Swap | str | None:
    """One of OPERATORS, without anything in it."""
    module = site.module
    of = next((cls for cls in OPERATORS if isinstance(module, cls)), None)
    if of is None or is_ours(module):
        return None
    if why := unlike_its_class(module):
        return why
    if module._modules or module._parameters or module._buffers:
        return "it has children, parameters or buffers"
    argument = one_argument(type(module))
    if argument is None:
        return "its forward takes more than one tensor"
    if getattr(module, "inplace", False):
        return "it overwrites its input, which fastops never does"
    if OPERATORS[of][2] and getattr(module, "dim", None) is None:
        return "its dim is None"
    form = Form(of, argument)
    why = remembered(
        site, (find_activation, fingerprint(module)), lambda: _refuted(module, form, site.verify == "bits")
    )
    return why or Swap(str(form), form, lambda: {"forward": forward_of(form)})


def forward_of(form: Form) -> FunctionType:
    """The forward of a swapped activation."""
    _, function, has_dim = OPERATORS[form.of]

    def of_one(self: Any, input: Tensor) -> Tensor:
        return function(input)

    def along(self: Any, input: Tensor) -> Tensor:
        return function(input, self.dim)

    return with_parameter_named(along if has_dim else of_one, form.argument)  # type: ignore[arg-type]


def _refuted(module: Module, form: Form, bits: bool) -> str | None:
    """Why the module is not what its class says, or None."""
    with apart(module):
        made = skeleton(module, {}, {})
        for dtype, scale in product((torch.float64, torch.float32, torch.bfloat16), (1.0, 30.0)):
            x = numbers(_SHAPE, 1, scale=scale).to(dtype).requires_grad_(dtype.itemsize >= 4)
            try:
                y = checked_run(type(module), made, x)
                ours = forward_of(form)(made, x)
            except Refuted as refuted:
                return str(refuted)
            except Exception as error:  # of this many dimensions, perhaps
                return failed(error)
            why = difference(ours, y, bits=bits)
            if why is None and x.requires_grad:
                why = gradient_difference(ours, y, {"its input": x})
            if why is not None:
                return f"it is not {form}: {why}"
        # The swapped forward reads dim at each call.
        return depends_on(type(module), made, numbers(_SHAPE, 1), "dim" if OPERATORS[form.of][2] else None)
