"""What a check runs on: one op's row, one dtype, one device and the code path there."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .. import _C, capabilities
from ..cases import Bound, Case, Make, RawCall
from ..cases.inputs import HALVES


@dataclass(frozen=True)
class Path:
    """A code path on a device: ``cpu`` at an ISA level, ``cuda``, or the plain ``reference``."""

    device: torch.device
    kind: str
    isa: str = ""
    best: bool = False  # of its device: where what does not depend on the level is checked

    @property
    def lower(self) -> bool:
        """A CPU level below the best, whose code differs in its vectors alone."""
        return bool(self.isa) and not self.best

    def __str__(self) -> str:
        if self.kind == "cpu":
            return f"cpu {self.isa}"
        return str(self.device) if self.kind == "cuda" else f"{self.device} reference"

    def choose(self) -> None:
        if self.isa:
            _C.set_isa(self.isa)


def parameters_of(case: Case) -> Mapping[str, inspect.Parameter]:
    return _parameters(case.function)


def optional_tensors(case: Case) -> list[str]:
    """Names of the tensors that a call need not have. Torch's own functions have types where ours have their names."""
    found = ((name, str(p.annotation)) for name, p in parameters_of(case).items())
    return [name for name, text in found if "Tensor" in text and ("None" in text or "Optional" in text)]


@functools.cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def on_path(case: Case, path: Path) -> Case:
    """What runs there."""
    return replace(case, function=case.reference) if path.kind == "reference" else case


@dataclass(frozen=True)
class Target:
    case: Case
    dtype: torch.dtype
    path: Path
    quick: bool
    aten: bool = False  # torch's own function, overridden
    main: bool = True  # of a quick run: one of the dtypes of which most is checked
    first: bool = True  # and the one of which all is
    _calls: dict[tuple[int, int], tuple[RawCall, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def function(self) -> Callable[..., Any]:
        return self.case.function

    def bound(self, dtype: torch.dtype | None = None) -> Bound:
        """The case's, of this dtype or the target's. The digits of torch's own sums and functions are the machine's."""
        dtype = dtype or self.dtype
        found, torchs = self.case.bounds[dtype], self.path.kind == "reference" and dtype not in HALVES
        return replace(found, forward=1.5 * found.forward, gradient=1.5 * found.gradient) if torchs else found

    def make(self, seed: int = 0) -> Make:
        return Make(self.path.device, self.dtype, seed)

    def raw(self, rows: int, columns: int) -> tuple[RawCall, ...]:
        """Every raw op behind the function; checks have them in common, and write none of their tensors."""
        if (rows, columns) not in self._calls:
            self._calls[rows, columns] = tuple(self.case.raw(self.make(), rows, columns))
        return self._calls[rows, columns]


class NotThereError(Exception):
    """Asked for something that this machine or this build does not have."""


CHOSEN: str = _C.cpu()["isa"]  # by the library itself, before anything else chooses


def levels_here() -> list[str]:
    """The best last."""
    return [level for level, missing in _C.cpu()["missing"].items() if not missing]


def cpu_levels(wanted: str | None, quick: bool) -> list[str]:
    """Names of the ISA levels to run, best last."""
    cpu = _C.cpu()
    if wanted not in (None, "all"):
        try:
            _C.set_isa(wanted)
        except ValueError as error:
            raise NotThereError(str(error)) from None
        return [wanted]
    if wanted is None and (quick or os.environ.get("FASTOPS_CPU_ISA")):
        return [cpu["isa"]]
    return levels_here()


def devices_of(wanted: str | None) -> list[torch.device]:
    if wanted in (None, "all"):
        gpus = range(torch.cuda.device_count()) if not why_no_cuda() else ()
        return [torch.device("cpu"), *(torch.device("cuda", k) for k in gpus)]
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == "cpu":
        return [torch.device("cpu")]
    if device.type != "cuda":
        raise NotThereError(f"device must be cpu, cuda, cuda:<index> or all, got {wanted!r}")
    if reason := why_no_cuda():
        raise NotThereError(f"device {wanted}: {reason}")
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        raise NotThereError(f"device {wanted}: this machine has {count} GPU(s), cuda:0 to cuda:{count - 1}")
    for gpu in capabilities().gpus:
        if gpu.index == index and not gpu.arch:  # plain PyTorch alone would pass for a proof of kernels
            raise NotThereError(f"device {wanted}: no kernels for {gpu.name}: {gpu.reason}")
    return [torch.device("cuda", index)]


def why_no_cuda() -> str:
    """Why no tensor can be on a GPU here, or none that this build knows of; empty if one can."""
    return capabilities().no_gpu


def paths_of(device: torch.device, isa: str | None, quick: bool) -> list[Path]:
    """The reference last. A GPU without code for it in this build has only that."""
    reference = Path(device, "reference")
    levels = cpu_levels(isa, quick)  # an unknown level is an error on any device
    if device.type == "cpu":
        return [*(Path(device, "cpu", level, level == levels[-1]) for level in reversed(levels)), reference]
    chosen = {row["index"]: row["arch"] for row in _C.cuda_devices()}
    return [Path(device, "cuda", best=True), reference] if chosen.get(device.index) else [reference]
