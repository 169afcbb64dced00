"""One operator in one dtype, as one process of several sees it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from ...cases import Case
from ...cases.inputs import HALVES
from ..accuracy import Evaluation, errors, evaluate, incoming_gradients, is_learnable, tensors_of, truth_of
from ..checks import Outcome
from . import groups
from .calls import Calls
from .least import beside, too_many, wrong_placements
from .placements import Effort, combinations, samples
from .tensors import is_partial, magnification, placed, summed

CHECKS = ("forward", "gradient", "placements", "collectives")


@dataclass
class Found:
    """Of all calls of one operator in one dtype on one process."""

    calls: int = 0
    refused: int = 0  # by torch's product
    worst: dict[str, tuple[float, str]] = field(default_factory=lambda: {"forward": (0.0, ""), "gradient": (0.0, "")})
    failures: dict[str, list[str]] = field(default_factory=lambda: {check: [] for check in CHECKS})

    def measured(self, kind: str, error: float, limit: float, where: str) -> None:
        if not error <= self.worst[kind][0]:
            self.worst[kind] = error, where
        if not error <= limit:
            self.failures[kind].append(f"{where}: {error:.3g} ulps")


def outcomes(case: Case, dtype: torch.dtype, processes: Sequence[Found]) -> Iterator[Outcome]:
    """Of all processes together: the largest errors, and what failed on any of them."""
    bound = case.bounds[dtype]
    limits: dict[str, float | None] = {"forward": bound.forward, "gradient": bound.gradient}
    for check in CHECKS:
        failures = dict.fromkeys(failure for found in processes for failure in found.failures[check])
        error, where = max((found.worst.get(check, (0.0, "")) for found in processes), key=lambda worst: worst[0])
        tried = f"{processes[0].calls} calls" + (f", worst at {where}" if where else "")
        if refused := processes[0].refused:
            tried += f"; torch's product refused {refused} more"
        limit = limits.get(check)
        yield Outcome(
            check,
            not failures,
            None if limit is None else error,
            limit,
            f"{len(failures)} failures: {'; '.join(failures)}" if failures else tried,
        )


class Checker:
    """The calls of one operator in one dtype."""

    def __init__(self, case: Case, dtype: torch.dtype, mesh: DeviceMesh, effort: Effort) -> None:
        self.case, self.dtype, self.mesh, self.effort = case, dtype, mesh, effort
        self.found = Found()

    def run(self, at: Callable[[str], None]) -> Found:
        device = torch.device(self.mesh.device_type)
        chosen = samples(self.case.name, self.mesh.size(), self.effort.few)
        for sample in chosen:
            at(f"sample {sample.name} by itself")
            args = sample.args(device, self.dtype)
            whole = evaluate(self.case.function, args)
            truth = truth_of(self.case, args, whole.outputs)
            grads = incoming_gradients(whole.outputs)
            for placements in combinations(tensors_of(args), self.effort.calls // len(chosen)):
                where = f"sample {sample.name}, {', '.join(map(_name, placements))}"
                at(where)
                try:
                    self._call(args, placements, grads, truth, where)
                except Exception as error:
                    if self.case.rounds_between and isinstance(error, RuntimeError) and "fastops" not in str(error):
                        self.found.refused += 1  # torch's product has no place for these shards, on any process
                    else:
                        self._raised(where, error)
        for call in groups.calls(self.case, self.dtype, self.mesh, quick=self.effort.few):
            where = f"by a group, {call.form.text}"
            at(where)
            try:
                self._of_a_group(call, where)
            except Exception as error:
                self._raised(where, error)
        return self.found

    def _raised(self, where: str, error: Exception) -> None:
        self.found.failures["forward"].append(f"{where}: {type(error).__name__}: {str(error)[:200]}")

    def _of_a_group(self, call: groups.OfAGroup, where: str) -> None:
        bound = self.case.bounds[self.dtype]
        room = 1.0 if self.dtype in HALVES else self.case.room
        found, wrong = call.run()
        for kind, error in found:
            self.found.measured(kind, error, room * getattr(bound, kind), where)
        self.found.failures["collectives"] += [f"{where}: {text}" for text in wrong]
        self.found.calls += 1

    def _call(
        self,
        args: tuple[Any, ...],
        placements: Sequence[Placement],
        grads: Sequence[Tensor],
        truth: Evaluation,
        where: str,
    ) -> None:
        case, mesh, each = self.case, self.mesh, iter(placements)
        given = [placed(a.detach(), mesh, [next(each)]) if isinstance(a, Tensor) else a for a in args]
        learn = [is_learnable(a) and (self.effort.constants or k not in case.constants) for k, a in enumerate(args)]
        given = [a.requires_grad_() if learns else a for a, learns in zip(given, learn, strict=True)]
        with Calls() as forward:
            result = case.function(*given)
        outputs = result if isinstance(result, tuple) else (result,)
        incoming = [
            distribute_tensor(grad, mesh, [Replicate() if p.is_partial() else p for p in out.placements])
            for grad, out in zip(grads, outputs, strict=True)
        ]
        with Calls() as backward:
            gradients = torch.autograd.grad(outputs, list(itertools.compress(given, learn)), incoming)
        self.found.calls += 1
        self._judge_calls((forward, backward), tuple(tensors_of(tuple(given))), where)
        asked = itertools.compress(learn, map(is_learnable, args))
        expected = Evaluation(truth.outputs, tuple(itertools.compress(truth.gradients, asked)))
        self._judge_values(args, outputs, gradients, expected, where)

    def _judge_calls(self, passes: tuple[Calls, Calls], given: tuple[Any, ...], where: str) -> None:
        failures = self.found.failures
        least = beside(self.case.name, given, self.mesh.size())
        for name, calls, most in zip(("forward", "backward"), passes, least, strict=True):
            for call in calls.ours:
                if wrong := wrong_placements(call):
                    failures["placements"].append(f"{where}: {wrong}")
                if many := too_many(call):
                    failures["collectives"].append(f"{where}: {many}")
            if calls.beside > most:
                text = f"{where}: {calls.beside} collectives {name} beside the raw ops, the least is {most}"
                failures["collectives"].append(text)

    def _judge_values(
        self,
        args: tuple[Any, ...],
        outputs: Sequence[Any],
        gradients: Sequence[Any],
        truth: Evaluation,
        where: str,
    ) -> None:
        bound = self.case.bounds[self.dtype]
        together = Evaluation(tuple(map(summed, outputs)), tuple(map(summed, gradients)))
        of_each = zip(
            errors(self.case, args, together, truth),
            (*outputs, *gradients),
            (*truth.outputs, *truth.gradients),
            strict=True,
        )
        for (kind, error), result, expected in of_each:
            if is_partial(result):  # the total is rounded once more, which is half an ulp
                error = max(0.0, error - 0.5) / magnification(result, expected)
            self.found.measured(kind, error, bound.forward if kind == "forward" else bound.gradient, where)


def _name(placement: Placement) -> str:
    return f"Shard({placement.dim})" if isinstance(placement, Shard) else type(placement).__name__
