"""Which compiler is taken: CXX as a shell reads it, and what is said where there is none."""

from __future__ import annotations

import re
import shutil
import stat
import threading
import warnings
from pathlib import Path

import pytest
import torch
from common import needs_compiler

from fastops import kit
from fastops.kit import CompileError, NoCompiler, compiler, cpp_op, program

needs_gpp = pytest.mark.skipif(not shutil.which("g++"), reason="there is no g++")


def answer(source: str = "void f(int32_t* y) { y[0] = VALUE; }") -> int:
    y = torch.zeros(1, dtype=torch.int32)
    cpp_op(source, "f", "int32* y")(y)
    return int(y.item())


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A program that runs another, as ccache does, and a path with a space in it."""
    path = tmp_path / "my tools" / "launch"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\necho "$1" >> "{tmp_path}/launched"\nexec "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@needs_gpp
@pytest.mark.parametrize("command", ["g++ -DVALUE=3", "  g++   '-DVALUE=3' ", 'g++ "-DVALUE=3" -Wall'])
def test_options_in_cxx(command: str, monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    monkeypatch.setenv("CXX", command)
    assert answer() == 3
    assert str(compiler.available()).startswith(str(shutil.which("g++")))
    op = kit.elementwise("by_cxx(x)", f"x + {len(command)}")
    assert op.explain(torch.ones(2)) == f"C++ compiled by {compiler.available()}"


@needs_gpp
def test_a_launcher_before_the_compiler(
    launcher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    monkeypatch.setenv("CXX", f"'{launcher}' g++ -DVALUE=4")
    assert answer() == 4
    assert (tmp_path / "launched").read_text() == "g++\n"
    monkeypatch.setenv("CXX", f"'{launcher}' g++ -DVALUE=5")  # another key
    assert answer() == 5


@needs_gpp
def test_another_compiler_behind_a_launcher_is_another_key(
    launcher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    real = tmp_path / "c++"
    for number in (6, 7):
        real.write_text(f'#!/bin/sh\n# {"x" * number}\nexec g++ -DVALUE={number} "$@"\n')
        real.chmod(0o755)
        monkeypatch.setenv("CXX", f"'{launcher}' {real}")
        assert answer() == number


@needs_gpp
def test_a_path_with_spaces_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    path = tmp_path / "my compiler"
    path.write_text('#!/bin/sh\nexec g++ -DVALUE=8 "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    assert answer() == 8


@needs_compiler
@pytest.mark.parametrize("nothing", ["", "   "])
def test_an_empty_cxx_is_none(nothing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    default = compiler.available()
    monkeypatch.setenv("CXX", nothing)
    assert compiler.available() == default


@pytest.mark.parametrize(
    ("command", "looked_for"), [("ccache-not-there g++", "ccache-not-there g++"), ('g++ "-m64', 'g++ "-m64')]
)
def test_a_command_that_is_not_there(command: str, looked_for: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", command)
    assert compiler.available() is None
    with pytest.raises(
        NoCompiler, match=rf"^\[f\] there is no C\+\+ compiler here \(looked for '?{re.escape(looked_for)}'?\)"
    ):
        answer()


@needs_compiler
def test_a_compiler_that_fails_is_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false -m64")
    with pytest.raises(CompileError, match=r"does not compile with /bin/false:\nexit status 1"):
        kit.elementwise("failed(x)", "x + 12.5")(torch.ones(2))


def test_a_fallback_is_said_once_by_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    monkeypatch.setattr(program, "_warned", set())
    ops = [kit.elementwise(f"fallback_{k}(x)", f"x * {k} + 0.5") for k in range(6)]
    results: dict[int, list[float]] = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        threads = [
            threading.Thread(target=lambda k=k: results.update({k: ops[k](torch.ones(2)).tolist()})) for k in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {k: [k + 0.5] * 2 for k in range(6)}
    texts = [str(one.message) for one in said if "C++ compiler" in str(one.message)]
    assert len(texts) == 1
    assert "(looked for /nowhere/c++)" in texts[0]
    assert texts[0].endswith("Until then CPU tensors take plain PyTorch")
