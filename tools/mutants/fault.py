"""What a planted fault is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

KINDS = {
    1: "a kernel, a rule or a loop that few samples reach",
    2: "a promise of the docs",
    3: "reading or writing outside",
    4: "a difference too small or too rare",
    5: "a missing wait or barrier",
}

ELEMENTWISE = ("square", "relu", "sigmoid", "axpby")
GATED = ("swiglu", "geglu", "reglu", "glu")
LAYER_NORMS = ("layer_norm", "add_layer_norm")
RMS_NORMS = ("rms_norm", "add_rms_norm")
NORMS = LAYER_NORMS + RMS_NORMS
SOFTMAXES = ("softmax", "log_softmax")
LOSSES = ("cross_entropy", "log_prob")
LINEAR_LOSSES = ("linear_cross_entropy", "linear_log_prob")


class Fault(NamedTuple):
    name: str
    kind: int  # of KINDS
    ops: tuple[str, ...]  # that it concerns, as the selftest calls them
    file: str  # from the root
    wrong: str  # what is wrong with it, in a sentence
    find: str  # stands in the file once
    replace: str
    device: str = "cpu"  # on which the selftest is to find it

    @property
    def compiled(self) -> bool:
        return not self.file.endswith(".py")


def on_cuda(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(fault._replace(device="cuda") for fault in faults)
