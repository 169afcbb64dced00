"""Facts that two places must state are the same in both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fastops import _load
from fastops._remedy import RELEASES, TEGRA
from fastops.selftest import workers

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


KIT = "src/fastops/kit/sources"


@pytest.mark.parametrize(
    "places",
    [
        {f"{KIT}/pointwise.cuh": "kMaxDims", f"{KIT}/rows.h": "kMaxDims", "cpp/problem/pointwise.h": "kMaxDims"},
        {f"{KIT}/pointwise.cuh": "kThreads", "cpp/kit/pointwise.cpp": "kThreads"},
        {f"{KIT}/rows.h": "kThreads", "cpp/kit/reduction.cpp": "kThreads"},
        {f"{KIT}/rows.h": "kSideBySide", "cpp/kit/reduction.cpp": "kSideBySide"},
    ],
)
def test_sizes_of_what_is_passed_to_code_made_at_run_time(places: dict[str, str]) -> None:
    assert len({number(file, name) for file, name in places.items()}) == 1


def test_tegra_chips() -> None:
    listed = re.search(r"int chips\[\] = \{([\d, ]+)\}", (ROOT / "cpp/core/cuda.cpp").read_text())
    assert listed
    assert tuple(map(int, listed[1].split(","))) == TEGRA


def readme() -> str:
    return " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def test_processes_of_the_selftest() -> None:
    said = (
        f"one for each core, at most {workers.MOST}, and with a GPU at most one for each {workers.OF_A_GPU >> 30} GiB"
    )
    assert said in readme()


def test_version_for_cmake() -> None:
    major, minor = PROJECT["version"].split(".")[:2]
    for place in (readme(), (ROOT / "src/fastops/cpp.py").read_text()):
        assert f"find_package(fastops {major}.{minor})" in place
    assert f"takes any {major}.{minor}.x" in (ROOT / "src/fastops/cpp.py").read_text()
