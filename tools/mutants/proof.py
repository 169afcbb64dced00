"""Runs of the selftest, and what they found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Run(NamedTuple):
    passed: bool
    found: str  # the first check that failed, or what else happened
    seconds: float


_under_way = set[subprocess.Popen[str]]()


def stop() -> None:
    """Ends the runs of other threads."""
    for process in tuple(_under_way):
        _kill(process)


def selftest(package: Path, device: str, ops: Sequence[str], quick: bool, limit: float) -> Run:
    """Of the package in this folder, for at most so many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        command = [str(_python(package)), "-m", "fastops.selftest", "--device", device, "--json", str(file)]
        command += [word for op in ops for word in ("--op", op)]
        command += ["--quick"] if quick else []
        start = time.perf_counter()
        status, output = _run(command, package, limit)
        seconds = time.perf_counter() - start
        if status == 0:
            return Run(True, "", seconds)
        return Run(False, _first_failure(file) or _other(status, output), seconds)


def origin(package: Path) -> Path:
    """Where ``import fastops`` finds it, with this folder in front."""
    _, output = _run([str(_python(package)), "-c", "import fastops; print(fastops.__file__)"], package, 120)
    return Path(output.splitlines()[-1] if output.strip() else "nothing")


def _python(package: Path) -> Path:
    """With this environment's packages but not its hooks: that of an editable install comes before PYTHONPATH."""
    folder = package.parents[1] / "python"
    if not folder.exists():
        venv.create(folder, symlinks=True)
        (own,) = folder.glob("lib/python*/site-packages")
        (own / "environment.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    return folder / "bin" / "python"


def _run(command: list[str], package: Path, limit: float) -> tuple[int | None, str]:
    """The exit status, None after the limit, and the output. In a session of its own, so that its threads end too."""
    environment = {
        "OMP_WAIT_POLICY": "PASSIVE",  # beside other work, threads that spin take several times as long
        **os.environ,
        "PYTHONPATH": str(package),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    _under_way.add(process)
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        if process.poll() is None:  # Ctrl-C as well
            _kill(process)
            process.communicate()
        _under_way.discard(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _first_failure(file: Path) -> str:
    if not file.exists():
        return ""
    failed = [r for r in json.loads(file.read_text())["results"] if not r["ok"]]
    if not failed:
        return ""
    first = failed[0]
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    return f"{first['op']} {first['path']} {first['dtype']}: {first['check']}{more}"


def _other(status: int | None, output: str) -> str:
    if status is None:
        return "time limit"
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    return f"{how}: {last.strip()[:160]}"
