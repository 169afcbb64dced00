"""``python -m fastops.info [--json]``: everything that a bug report needs, also where fastops does not load.

``--plan layer_norm bf16 8192x4096 [--card h100] [--backward]``: which kernel runs, and why; ``--plan layer_norm``: the
table that it is chosen by. It needs no GPU.

Exit status 0 if fastops loads, 1 with the diagnosis if it does not, 2 for a plan that there is not. No probe can make
the report fail.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from . import _driver, _load
from ._console import print_anything

_CPU_FLAGS = re.compile(r"pni|ssse3|sse4_\d|popcnt|avx\w*|fma|f16c|bmi\d|amx_\w+|asimd\w*|sve\w*|i8mm|bf16")


def report() -> dict[str, Any]:
    """The report as data; what a probe could not find out is a line of text in its place."""
    probes: dict[str, Callable[[], Any]] = {
        "fastops": _fastops,
        "distributions": lambda: _load.installed() or "none recorded beside the package",
        "folders": _load.package_folders,
        "extension files": lambda: {f: _load.made_for(f) for f in _load.extension_files()},
        "capabilities": _capabilities,
        "torch": _torch,
        "nanobind-backend": lambda: metadata.version("nanobind-backend"),
        "python": lambda: f"{platform.python_implementation()} {sys.version}",
        "system": platform.platform,
        "libc": lambda: " ".join(platform.libc_ver()),
        "cpu": _cpu,
        "driver": lambda: {k: v for k, v in dataclasses.asdict(_driver.probe()).items() if v},
        "environment": _environment,
    }
    return {name: _guarded(probe) for name, probe in probes.items()}


def main(arguments: list[str] | None = None) -> int:
    print_anything()
    parser = argparse.ArgumentParser(prog="python -m fastops.info", description="What is installed and what runs here.")
    parser.add_argument("--json", action="store_true", help="the report, or the plan, as JSON")
    parser.add_argument("--plan", nargs="+", metavar=("OP", "DTYPE ROWSxN"), help="which kernel runs, or OP's table")
    parser.add_argument(
        "--card", help="plan for this card, such as h100, a100, l4, t4, b200 or cpu, in place of this one"
    )
    parser.add_argument("--backward", action="store_true", help="plan the gradients' kernel")
    parser.add_argument("--parameter", metavar="DTYPE", help="plan a norm whose parameters have this dtype")
    given = parser.parse_args(arguments)
    as_json = given.json
    if given.plan:
        return _plan(parser, given)
    if given.card or given.backward or given.parameter:
        parser.error("--card, --backward and --parameter are for --plan")
    found = report()
    if as_json:
        print(json.dumps(found, indent=2, default=str))
    else:
        found["capabilities"] = _guarded(lambda: str(_load_capabilities()))
        print("\n".join(_text(name, value) for name, value in found.items()))
    return 0 if _load.failure is None else 1


def _plan(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    if _load.failure is not None:
        print("fastops does not load: " + _load.diagnose(_load.failure))
        return 1
    from . import _plan

    op, *problem = given.plan
    if len(problem) not in (0, 2):
        parser.error(f"--plan takes OP, or OP DTYPE ROWSxN, got {' '.join(given.plan)}")
    if not problem and (given.card or given.parameter):
        parser.error("--card and --parameter are for a problem, --plan OP DTYPE ROWSxN")
    try:
        if not problem:
            print(
                json.dumps(_plan.tables_of(op, given.backward), indent=2)
                if given.json
                else _plan.text_of(op, given.backward)
            )
            return 0
        dtype, size = problem
        found = _plan.plan(
            op, dtype, _plan.sizes_of(op, size), given.card, backward=given.backward, parameter=given.parameter
        )
    except (ValueError, RuntimeError) as error:
        parser.error(str(error))
    print(json.dumps(dataclasses.asdict(found), indent=2) if given.json else found)
    return 0


def _guarded(probe: Callable[[], Any]) -> Any:
    try:
        return probe()
    except Exception as error:
        return f"unknown ({type(error).__name__}: {error})"


def _fastops() -> str:
    if _load.failure is not None:
        return "does not load: " + _load.diagnose(_load.failure)
    import fastops

    return f"{fastops.__version__}, loads"


def _load_capabilities() -> Any:
    if _load.failure is not None:
        return "unknown: fastops does not load"
    from .capability import capabilities

    return capabilities()


def _capabilities() -> Any:
    found = _load_capabilities()
    return found if isinstance(found, str) else dataclasses.asdict(found)


def _torch() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "cpu capability": _guarded(torch.backends.cpu.get_cpu_capability),
        "cuda available": _guarded(torch.cuda.is_available),
    }


def _cpu() -> dict[str, Any]:
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    fields = {key.strip().lower(): value.strip() for key, _, value in reversed(lines)}
    flags = (fields.get("flags") or fields.get("features") or "").split()
    return {
        "model": fields.get("model name") or platform.machine(),
        "usable": len(os.sched_getaffinity(0)),
        "of": os.cpu_count(),
        "flags": " ".join(flag for flag in flags if _CPU_FLAGS.fullmatch(flag)),
    }


def _environment() -> dict[str, str]:
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS")
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith("FASTOPS_") or k in names}


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict):
        value = "\n".join(f"{k}: {v}" for k, v in value.items())
    elif isinstance(value, list):
        value = "\n".join(map(str, value))
    head, *rest = str(value).splitlines() or [""]
    return "\n".join([f"{name + ':':18}{head}", *(" " * 18 + line for line in rest)])


if __name__ == "__main__":
    sys.exit(main())
