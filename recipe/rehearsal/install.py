"""``python install.py CHANNEL PREFIX BUILD SPEC ...``: solves and installs SPEC, and proves fastops there.

CONDA_OVERRIDE_CUDA says which driver the machine is said to have. BUILD is how the build string of the fastops that the
solver must choose begins. Without PREFIX, as an empty string, it only solves.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from machine import SUBDIR
from rattler import VirtualPackage, VirtualPackageOverrides, install, solve

SHOWN = ("fastops", "pytorch", "cuda-version", "nanobind-backend")


async def main(channel: str, prefix: str, build: str, *specs: str) -> int:
    driver = VirtualPackage.detect(VirtualPackageOverrides.from_env())
    records = await solve([channel], list(specs), platforms=[SUBDIR, "noarch"], virtual_packages=driver)
    chosen = {record.name.normalized: record for record in records}
    summary = ", ".join(f"{name} {chosen[name].version} {chosen[name].build}" for name in SHOWN if name in chosen)
    if not str(chosen["fastops"].build).startswith(build):
        print(f"expected fastops of a build {build}*, got {summary}", file=sys.stderr)
        return 1
    if prefix:
        await install(records, target_prefix=Path(prefix).resolve(), show_progress=False)
        prove(Path(prefix).resolve())
    print(summary)
    return 0


def prove(prefix: Path) -> None:
    for module in (["fastops.info"], ["fastops.selftest", "--quick", "--device", "cpu"]):
        # -I: nothing of the tree or of the caller's environment is to be found.
        subprocess.run([prefix / "bin/python", "-I", "-m", *module], cwd=prefix, env={}, check=True)


if __name__ == "__main__":
    status = asyncio.run(main(*sys.argv[1:]))
    sys.stdout.flush()
    # py-rattler's threads now and then outlive the interpreter, which then crashes with all work done.
    os._exit(status)
