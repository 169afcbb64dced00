"""Ctrl-C while something is compiled for the first time is KeyboardInterrupt, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from common import needs_compiler, needs_nvrtc
from torch import Tensor

from fastops import _operator, kit
from fastops.kit import cache, compiler, cpp_op, nvrtc

CALLS: dict[str, Callable[[Any], object]] = {
    "call": lambda op: op(torch.ones(3)),
    "gradient": lambda op: op(torch.ones(3, requires_grad=True)),
    "func": lambda op: torch.func.grad(lambda x: op(x).sum())(torch.ones(3)),
    "vmap": lambda op: torch.vmap(op)(torch.ones(2, 3)),
    "prepare": lambda op: op.prepare(torch.float32, device="cpu"),
    "explain": lambda op: op.explain(torch.ones(3)),
}
OPS: dict[str, Callable[[str], Any]] = {
    "elementwise": lambda name: kit.elementwise(f"{name}(x)", "x * x * x"),
    "reduction": lambda name: kit.reduction(f"{name}(x)", map="x * x", reduce="a + b"),
}


def interrupted(*given: object, **named: object) -> None:
    raise KeyboardInterrupt


@needs_compiler
@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("call", CALLS)
def test_it_is_not_another_error(call: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op = OPS[kind](f"interrupted_{call}")
    monkeypatch.setattr(compiler, "shared_library", interrupted)
    with pytest.raises(KeyboardInterrupt):
        CALLS[call](op)
    monkeypatch.undo()
    CALLS[call](op)  # and the next call compiles


@needs_compiler
def test_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    op, y = cpp_op("void f(float* y) { y[0] = 3; }", "f", "float* y"), torch.zeros(1)
    monkeypatch.setattr(compiler, "shared_library", interrupted)
    with pytest.raises(KeyboardInterrupt):
        op(y)
    monkeypatch.undo()
    assert y._version == 0
    op(y)
    assert y.item() == 3


@needs_compiler
def test_in_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    op = kit.elementwise("interrupted_later(x)", "x * x * x * x")
    x = torch.ones(3, requires_grad=True)
    y = op(x).sum()
    monkeypatch.setattr(compiler, "shared_library", interrupted)
    with pytest.raises(KeyboardInterrupt):
        y.backward()


@needs_compiler
def test_an_error_that_comes_later_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    op = kit.elementwise("interrupted_first(x, y)", "x * y")
    _operator.keep_error(KeyboardInterrupt())  # one that nothing took back
    with pytest.raises(RuntimeError, match=r"^\[interrupted_first\] x and y must have shapes that broadcast"):
        op(torch.ones(3), torch.ones(2))


# A shell's background job starts with SIGINT ignored, and so do its children: then Python has no handler of its own.
PROCESS = """
import signal, sys, torch
from fastops import kit
signal.signal(signal.SIGINT, signal.default_int_handler)
print("ready", flush=True)
try:
    {call}
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
"""
SLEEPING = """#!/bin/sh
echo $$ > {folder}/pid
sleep 60 &
wait
"""


def running(group: int) -> list[str]:
    """The processes of a group that are not dead: the one that should bury the others' children may not."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state != "Z":
                found.append(path.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize(
    "call",
    [
        'kit.elementwise("slow(x)", "x * x")(torch.ones(3))',
        'kit.cpp_op("void f(float* y) {}", "f", "float* y")(torch.ones(3))',
    ],
    ids=["elementwise", "function"],
)
@pytest.mark.parametrize("group", [False, True], ids=["process", "terminal"])
def test_a_signal_ends_the_compiler_and_what_it_started(
    call: str, group: bool, tmp_path: Path, empty_cache: Path
) -> None:
    slow = tmp_path / "slow"
    slow.write_text(SLEEPING.format(folder=tmp_path))
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    env = {**os.environ, "CXX": str(slow), "TMPDIR": str(tmp_path)}
    code = [sys.executable, "-c", PROCESS.format(call=call)]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True) as process:
        pid = tmp_path / "pid"
        deadline = time.monotonic() + 60
        while not (pid.is_file() and pid.read_text().strip()) and time.monotonic() < deadline:
            time.sleep(0.02)
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert said.split() == ["ready", "KeyboardInterrupt"]
    assert not running(int(pid.read_text()))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("fastops-")]
    assert not empty_cache.exists() or list(empty_cache.iterdir()) == []


@needs_nvrtc
def test_nvrtc_keeps_nothing(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setattr(nvrtc._Nvrtc, "_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        nvrtc.compile('extern "C" __global__ void f() {}', name="f", arch="sm_90")
    assert not empty_cache.exists()


def test_a_write_that_is_interrupted_leaves_nothing(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.put(["part"], b"content")
    assert list(empty_cache.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*there is no C")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_in_torchs_functions_where_there_is_no_compiler(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reference(*inputs: Tensor) -> Tensor:
        raise error

    op = kit.elementwise("interrupted_reference(x)", f"x + {len(error.__name__)}")
    monkeypatch.setattr(compiler, "available", lambda: None)
    monkeypatch.setattr(op._program, "_torch", reference)
    with pytest.raises(error):
        op(torch.ones(3))
