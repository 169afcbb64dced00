"""The library without Python: the example in C++ is built against the installed package and run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fastops

EXAMPLE = Path(__file__).parents[1] / "examples" / "cpp"
PACKAGE = Path(fastops.library_path()).parent


class Norm(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return fastops.rms_norm(x, (64,))


def run(*command: str | Path, **environment: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_library_has_no_python() -> None:
    if not shutil.which("readelf"):
        pytest.skip("no readelf")
    undefined = [line.split()[-1] for line in run("nm", "-D", "--undefined-only", fastops.library_path()).splitlines()]
    assert undefined
    assert not [name for name in undefined if name.startswith(("Py", "_Py", "nb_"))]
    needed = run("readelf", "-d", fastops.library_path())
    assert "libpython" not in needed
    assert "libtorch_python" not in needed


def test_what_cmake_and_the_compiler_look_for_is_there() -> None:
    assert (PACKAGE / "fastops-config.cmake").is_file()
    assert (PACKAGE / "include" / "fastops" / "fastops.h").is_file()


@pytest.mark.slow
def test_the_example(tmp_path: Path) -> None:
    if not EXAMPLE.is_dir():
        pytest.skip("the examples are not here")
    if not (shutil.which("cmake") and shutil.which("c++")):
        pytest.skip("no CMake or no C++ compiler")
    with torch.no_grad():
        exported = torch.export.export(Norm(), (torch.randn(4, 64),))
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "norm.pt2"))
    prefix = run(sys.executable, EXAMPLE / "prefix.py").strip()
    run("cmake", "-S", EXAMPLE, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    said = run(tmp_path / "build" / "example", package)
    assert "a package of AOTInductor" in said
    assert "WRONG" not in said
