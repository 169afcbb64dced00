"""The library without Python: the example in C++ is built against the installed package and run."""

from __future__ import annotations

import json
import os
import re
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
    assert (PACKAGE / "fastops-config-version.cmake").is_file()
    assert (PACKAGE / "include" / "fastops" / "fastops.h").is_file()


WITHOUT_PYTHON = """
import json, sys, torch
torch.ops.load_library(sys.argv[1])
has = torch._C._dispatch_has_kernel_for_dispatch_key
names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("fastops::")]
print(json.dumps({name.removeprefix("fastops::"): has(name, "CPU") for name in names}))
"""


def test_the_docstring_names_operators_without_kernels() -> None:
    """A process that loads the library alone has kernels for all operators but those that the docstring names."""
    has_kernel = json.loads(run(sys.executable, "-c", WITHOUT_PYTHON, fastops.library_path()))
    said = str(fastops.library_path.__doc__)
    missing = [name for name in fastops.ops.__all__ if not has_kernel.get(name)]
    assert missing == ["linear", "linear_cross_entropy", "linear_log_prob", "lltm"]
    for name in fastops.ops.__all__:
        assert (f"``{name}``" in said) == (name in missing), name
    for name in ("linear_epilogue", "lltm_cell"):
        assert has_kernel[name]
        assert has_kernel[f"{name}_backward"]
        assert name in said


ASKING = """
cmake_minimum_required(VERSION 3.19)
project(asking LANGUAGES NONE)
set_property(GLOBAL PROPERTY TARGET_SUPPORTS_SHARED_LIBS TRUE)
find_package(fastops {request} REQUIRED)
file(WRITE "${{CMAKE_BINARY_DIR}}/version.txt" "${{fastops_VERSION}}")
"""


@pytest.mark.parametrize(
    ("request_for", "found"),
    [
        ("", True),
        ("{major}.{minor}", True),
        ("{major}.{minor}.{patch}", True),
        ("{major}.{minor}.{patch} EXACT", True),
        ("{major}.{minor}...<{major}.{next_minor}", True),
        ("{major}.{minor}.{next_patch}", False),
        ("{major}.{next_minor}", False),
        ("{next_major}", False),
        ("{major}.{minor}.{next_patch} EXACT", False),
    ],
)
def test_cmake_finds_its_version(request_for: str, found: bool, tmp_path: Path) -> None:
    """A pre-release counts as the version that it precedes: CMake's versions are numbers."""
    if not shutil.which("cmake"):
        pytest.skip("no CMake")
    release = re.match(r"\d+(\.\d+)*", fastops.__version__)
    assert release
    major, minor, patch = [*map(int, release[0].split(".")), 0, 0][:3]
    numbers = {"major": major, "minor": minor, "patch": patch}
    numbers |= {f"next_{name}": number + 1 for name, number in numbers.items()}
    (tmp_path / "CMakeLists.txt").write_text(ASKING.format(request=request_for.format(**numbers)))
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={PACKAGE}"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode == 0) == found, result.stdout + result.stderr
    if found:
        assert (tmp_path / "build" / "version.txt").read_text() == release[0]
    else:
        assert f"version: {release[0]}" in result.stderr


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
