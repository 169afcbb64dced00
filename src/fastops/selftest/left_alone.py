"""What :func:`fastops.patch` leaves as it is: modules whose results differ, and all that its report does not name."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..patching import patch
from .bits import all_same
from .checks import Outcome
from .forms import Worst
from .patched import MLP, PLAIN, Beside, LanguageModel, of_random_numbers
from .refusals import error_of
from .target import Target


def left_alone(t: Target) -> Iterator[Outcome]:
    """Modes, hooks, names, numbers and gradients of a patched model, and modules that must not be swapped."""
    if t.case.name not in PLAIN or not t.first:
        return
    worst = Worst(t, "what fastops.patch leaves alone")
    module, inputs = of_random_numbers(t)
    for k, part in enumerate(module.modules()):  # both modes, beside each other
        part.training = k % 2 == 0
    for parameter in (*module.parameters(),)[::2]:
        parameter.grad = torch.ones_like(parameter)
    before, numbers = _described(module), [x.detach().clone() for x in _tensors(module)]
    report = patch(module, loss=isinstance(module, LanguageModel))
    for when in ("patch", "a call", "undo"):
        if when == "a call":
            module(*inputs)
        elif when == "undo":
            report.undo()
        worst.expect(_described(module) == before, "modes, hooks, names or gradients are others", f"after {when}")
        worst.expect(all_same(_tensors(module), numbers), "parameters or gradients are others", f"after {when}")
    if not isinstance(module, LanguageModel):
        _not_asked_for(worst, module)
        _by_name(worst, module)
        if isinstance(module, MLP):
            _with_hooks(worst, module)
        _undo_of_another_class(worst, module)
        for attribute in (3, 3.0) if t.case.name != "rope" else ():  # whose calls are proved one by one
            _that_depends_on(worst, module, attribute)
    yield worst.outcome()


def _described(module: nn.Module) -> list[Any]:
    parts = [
        (name, m.training, *(len(hooks) for of, hooks in sorted(vars(m).items()) if of.endswith("_hooks")))
        for name, m in module.named_modules()
    ]
    learns = [(name, x.requires_grad, x.grad is None) for name, x in module.named_parameters()]
    return [parts, learns, [name for name, _ in module.named_buffers()], torch.is_grad_enabled()]


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    gradients = [x.grad for x in module.parameters() if x.grad is not None]
    return [*module.parameters(), *module.buffers(), *gradients]


def _undo_of_another_class(worst: Worst, module: nn.Module) -> None:
    """If a class was changed afterwards nothing is undone."""
    model = Beside([copy.deepcopy(module) for _ in range(3)])
    own = [type(m) for m in model]
    report = patch(model)
    last = model[-1]
    now = [type(m) for m in model]
    last.__class__ = type("Later", (now[-1],), {})
    error = error_of(report.undo)
    worst.expect(isinstance(error, RuntimeError), f"no error, got {error!r}", "undo after a change of class")
    worst.expect([type(m) for m in model][:-1] == now[:-1], "undone in part", "undo after a change of class")
    last.__class__ = now[-1]
    report.undo()
    worst.expect([type(m) for m in model] == own, "not undone", "undo after a change of class and back")


def _not_asked_for(worst: Worst, module: nn.Module) -> None:
    """Calls of ``patch`` whose arguments say that it is not to be swapped."""
    own = type(module)
    options: tuple[dict[str, Any], ...] = {"only": []}, {"only": ["loss"]}, {"skip": _KINDS}, {"dry_run": True}
    for given in options:
        patch(module, **given)
        worst.expect(type(module) is own, "swapped", f"{given}")


_KINDS = ("norms", "gated_mlps", "activations", "rope")


def _by_name(worst: Worst, module: nn.Module) -> None:
    """A name, also one with ``*`` and ``?``, stands for all that is in the module."""
    model = nn.ModuleDict({"tower": Beside([copy.deepcopy(module)]), "other": copy.deepcopy(module)})
    expected: tuple[tuple[dict[str, Any], set[str]], ...] = (
        ({"only": ["tower"]}, {"tower.0"}),
        ({"only": ["t?w*"]}, {"tower.0"}),
        ({"only": ["tower.?"]}, {"tower.0"}),
        ({"skip": ["tower"]}, {"other"}),
        ({"skip": ["*er.0"]}, {"other"}),
        ({"only": ["other"], "skip": ["tower"]}, {"other"}),
        ({"only": ["tower"], "skip": ["tower.0"]}, set()),
    )
    for given, names in expected:
        report = patch(model, **given)
        worst.expect({*report.swapped} == names, f"swapped {sorted(report.swapped)}", f"{given}")
        report.undo()


def _with_hooks(worst: Worst, module: MLP) -> None:
    """On an activation, which a swapped MLP does not call."""
    for name in ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"):
        other = copy.deepcopy(module)
        other.activation = nn.SiLU()
        getattr(other.activation, f"register_{name}")(lambda *_: None)
        report = patch(other)
        worst.expect("" in report.left, f"not left for the {name}", str(report))


def _that_depends_on(worst: Worst, module: nn.Module, attribute: float) -> None:
    """A module whose result depends on one of its numbers, which may change later."""

    def forward(self: Any, x: torch.Tensor) -> Any:
        return type(module).forward(self, x) * (self.factor / attribute)

    other = copy.deepcopy(module)
    other.__class__ = type(type(module).__name__, (type(module),), {"forward": forward})
    other.factor = attribute  # type: ignore[assignment]
    report = patch(other)
    right = any("attribute factor" in why for why in report.left.values())
    worst.expect(right, f"not left for its attribute {attribute!r}", str(report))
