"""What the machine has, asked of the machine: versions, and where things are."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MACHINE = platform.machine()
SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}[MACHINE]
PYTHON = platform.python_version()
PYTHON_MINOR = "{}.{}".format(*sys.version_info)
GLIBC = platform.libc_ver()[1]


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


GXX = shutil.which(os.environ.get("CXX", "g++")) or sys.exit("the rehearsal needs g++ on PATH, or in CXX")
GXX_VERSION = output(GXX, "-dumpfullversion")


# Without nvcc only the CPU build is rehearsed.
NVCC = shutil.which(os.environ.get("CUDACXX", "nvcc")) or ""
NVCC_VERSION = re.findall(r"release .*, V([\d.]+)", output(NVCC, "--version"))[0] if NVCC else ""
CUDA = ".".join(NVCC_VERSION.split(".")[:2])


def torch_folder() -> Path:
    spec = find_spec("torch")
    if not spec or not spec.submodule_search_locations:
        sys.exit("the rehearsal needs torch beside it: make setup")
    return Path(spec.submodule_search_locations[0])


def requires(distribution: str) -> list[str]:
    """The distributions that this one needs on this machine, without its extras."""
    found = map(Requirement, metadata.requires(distribution) or [])
    return [canonicalize_name(r.name) for r in found if not r.marker or r.marker.evaluate({"extra": ""})]


def closure(*distributions: str) -> list[str]:
    every, waiting = [], list(distributions)
    while waiting:
        if (name := waiting.pop()) not in every:
            every.append(name)
            waiting += requires(name)
    return sorted(every)
