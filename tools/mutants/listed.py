"""All faults, and whether each still has its place in the sources."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import faults_around
import faults_aten
import faults_calls
import faults_cpu
import faults_cuda
import faults_cuda_norms
import faults_host
import faults_kernels
import faults_modules
import faults_python
import faults_python_losses
import faults_python_rows
from fault import KINDS, Fault

FAULTS = (
    *faults_kernels.FAULTS,
    *faults_cpu.FAULTS,
    *faults_host.FAULTS,
    *faults_python_rows.FAULTS,
    *faults_python_losses.FAULTS,
    *faults_python.FAULTS,
    *faults_modules.FAULTS,
    *faults_aten.FAULTS,
    *faults_calls.FAULTS,
    *faults_around.FAULTS,
    *faults_cuda_norms.FAULTS,
    *faults_cuda.FAULTS,
)


def wrong(faults: Iterable[Fault], root: Path) -> list[str]:
    """What is wrong with the list itself, a line each."""
    found, names = [], set[str]()
    for fault in faults:
        if fault.name in names:
            found.append(f"{fault.name}: the name is another's too")
        names.add(fault.name)
        if fault.kind not in KINDS or fault.device not in ("cpu", "cuda") or not fault.ops:
            found.append(f"{fault.name}: kind, device or ops are none of ours")
        if fault.find == fault.replace:
            found.append(f"{fault.name}: it changes nothing")
        path = root / fault.file
        count = path.read_text().count(fault.find) if path.is_file() else 0
        if count != 1:
            found.append(f"{fault.name}: its anchor must be in {fault.file} once, found {count} times")
    return found
