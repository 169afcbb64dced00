"""A question put to a fresh process, which answers in one line of JSON: what it imports and compiles is its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "QUACK_CACHE_DIR")


def answer(program: str, arguments: Sequence[str], folder: str, timeout: float, **environment: str) -> dict[str, Any]:
    """Of Python code with these arguments and its compilers' caches in ``folder``; ``{"refused": why}`` if it fails."""
    variables = os.environ | {variable: os.path.join(folder, variable) for variable in CACHES} | environment
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"refused": f"no result within {timeout:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return {"refused": said[:200]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found
