"""``python recipe/rehearsal``: builds the packages of recipe.yaml and installs them, without a network.

README.md says what it proves. Everything it writes is under build/rehearsal.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from machine import CUDA, GLIBC, GXX_VERSION, PYTHON_MINOR

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OUTPUT = ROOT / "build/rehearsal"
CHANNEL = OUTPUT / "channel"
VARIANTS = OUTPUT / "variants.yaml"


def variants() -> dict[str, list]:
    """What this machine has in place of conda-forge's compilers; of Python the one that there is."""
    cuda = ["None", CUDA] if CUDA else ["None"]
    gxx, glibc = [GXX_VERSION] * len(cuda), [GLIBC] * len(cuda)
    return {
        "cuda_compiler_version": cuda,
        "c_compiler_version": gxx,
        "cxx_compiler_version": gxx,
        "c_stdlib_version": glibc,
        "python": [f"{PYTHON_MINOR}.* *_cpython"],
        "is_python_min": [True],
        "python_min": [PYTHON_MINOR],
        "fastops_cuda_archs": [os.environ.get("FASTOPS_CUDA_ARCHS") or "80;90"],
        "fastops_nanobind": ["static" if os.environ.get("FASTOPS_STATIC_NANOBIND") else "split"],
        # Those of the last file are the ones that count.
        "zip_keys": [
            ["cuda_compiler_version", "c_compiler_version", "cxx_compiler_version", "c_stdlib_version"],
            ["python", "is_python_min"],
        ],
    }


def step(what: str, *command: str | Path, shown: tuple[str, ...] = (), **environment: str) -> None:
    """Runs this Python on ``command``; what it prints is in a file of its own, and shown from a line
    that begins with ``shown`` on.
    """
    log, began = OUTPUT / f"{what.replace(' ', '-')}.log", time.monotonic()
    with log.open("w") as file:
        env = os.environ | {"RATTLER_CACHE_DIR": str(OUTPUT / "cache")} | environment
        done = subprocess.run([sys.executable, *command], stdout=file, stderr=subprocess.STDOUT, env=env)
    lines = log.read_text().splitlines()
    print(f"{'ok' if done.returncode == 0 else 'FAILED':6} {what}, {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        sys.exit("\n".join([*lines[-40:], f"all of it: {log}"]))
    first = next((number for number, line in enumerate(lines) if line.startswith(shown)), len(lines))
    for line in lines[first:]:
        print(f"       {line.replace(f'{CHANNEL}/', '')}")


def build(cuda: str) -> None:
    options = ["--channel", CHANNEL.as_uri(), "--variants", VARIANTS, "--output", CHANNEL]
    step(f"build CUDA {cuda}", ROOT / "tools/conda", "build", cuda, *options, shown=(str(CHANNEL),))


def install(what: str, driver: str, build: str, *specs: str, proved: bool = True) -> None:
    prefix = str(OUTPUT / what.replace(" ", "-")) if proved else ""
    command = (HERE / "install.py", CHANNEL.as_uri(), prefix, build, *specs)
    step(f"install {what}", *command, shown=("all ", "fastops "), CONDA_OVERRIDE_CUDA=driver)


def main() -> None:
    # With the cache: a package of the same name and build string would be taken from it, whatever is in it.
    shutil.rmtree(OUTPUT, ignore_errors=True)
    CHANNEL.mkdir(parents=True)
    VARIANTS.write_text(json.dumps(variants(), indent=2))
    step("channel", HERE / "channel.py", str(CHANNEL))
    build("none")
    if CUDA:
        build(CUDA.split(".")[0])
        install("with a driver", CUDA, f"cuda{CUDA.replace('.', '')}", "fastops")
        install("CPU by request", CUDA, "cpu", "fastops * cpu*", proved=False)
    install("without a driver", "", "cpu", "fastops")


if __name__ == "__main__":
    main()
