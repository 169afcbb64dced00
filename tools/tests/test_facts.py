"""Facts that two places must state are the same in both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fastops import _load
from fastops._remedy import RELEASES, TEGRA

ROOT = Path(__file__).parents[2]
tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
TOML = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = TOML["project"]


def cmake(file: str, name: str) -> str:
    found = re.search(rf"(?m)^set\({name} \"?([^\")]+?)\"?( CACHE.*)?\)$", (ROOT / file).read_text())
    assert found, f"{file} has no set({name})"
    return found[1]


def test_released_archs() -> None:
    archs = tuple(map(int, cmake("cmake/FastopsCuda.cmake", "FASTOPS_RELEASE_ARCHS").split()))
    assert RELEASES[12] == archs
    assert RELEASES[13] == tuple(arch for arch in archs if arch >= 75)  # what nvcc 13 still makes


def test_released_cuda_versions() -> None:
    assert set(_load.DISTRIBUTIONS) == {"fastops"} | {f"fastops-cu{major}" for major in RELEASES}


def test_floor_of_torch() -> None:
    floor = cmake("CMakeLists.txt", "FASTOPS_TORCH_FLOOR")
    assert ".".join(map(str, _load.TORCH_FLOOR)) == floor
    assert f"torch>={floor}" in PROJECT["dependencies"]
    assert f'"torch>={floor}"]' in (ROOT / "tools/backend/fastops_backend.py").read_text()
    assert f"torch=={floor}.0" in TOML["tool"]["cibuildwheel"]["overrides"][0]["before-test"]
    if (workflow := ROOT / ".github/workflows/test.yml").exists():  # not in the sdist
        assert f'torch: "{floor}.0"' in workflow.read_text()


def number(file: str, name: str) -> int:
    found = re.search(rf"\b{name} = (\d+)", (ROOT / file).read_text())
    assert found, f"{file} has no {name}"
    return int(found[1])


@pytest.mark.parametrize(
    "places",
    [
        {"kMaxDims": ("kit/sources/pointwise.cuh", "kit/sources/rows.h", "core/pointwise.h")},
        {"kThreads": ("kit/sources/pointwise.cuh", "kit/sources/rows.h", "kit/pointwise.cpp", "kit/reduction.cpp")},
        {"kColumns": ("kit/sources/reduction.h",), "kCpuColumns": ("kit/reduction.cpp",)},
    ],
)
def test_sizes_of_what_is_passed_to_code_made_at_run_time(places: dict[str, tuple[str, ...]]) -> None:
    folders = {True: "src/fastops/", False: "cpp/"}
    assert len({number(folders["sources" in f] + f, name) for name, files in places.items() for f in files}) == 1


def test_few_rows_of_lltm() -> None:
    found = re.search(r"_FEW_ROWS, _FEW_WEIGHTS, _FEW_INPUTS = (\d+),", (ROOT / "src/fastops/ops/lltm.py").read_text())
    assert found
    assert int(found[1]) == number("cpp/kernels/lltm_few.h", "kLltmFewRows")


def test_tegra_chips() -> None:
    listed = re.search(r"int chips\[\] = \{([\d, ]+)\}", (ROOT / "cpp/core/cuda.cpp").read_text())
    assert listed
    assert tuple(map(int, listed[1].split(","))) == TEGRA
