"""Fixtures of all tests: the device, the dtype's short name as an id, a fixed seed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fastops
from fastops import _C

NO_CUDA = fastops.capabilities().no_gpu or (
    "" if fastops.capabilities().paths.get("cuda:0") == "cuda" else "this build has no kernels for this GPU"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cuda" in getattr(item, "fixturenames", ()):
            item.add_marker("cuda")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Dtypes by their short names, cases and samples by theirs."""
    if isinstance(val, torch.dtype):
        return str(val).removeprefix("torch.")
    name = getattr(val, "name", None)
    return name if isinstance(name, str) else None


ON_CUDA = (pytest.mark.cuda, pytest.mark.skipif(bool(NO_CUDA), reason=NO_CUDA))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=ON_CUDA)])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, and the first GPU where there is one for our kernels."""
    return torch.device(request.param)


@pytest.fixture
def cuda() -> torch.device:
    """The first GPU; the test is skipped where there is none for our kernels."""
    if NO_CUDA:
        pytest.skip(NO_CUDA)
    return torch.device("cuda")


@pytest.fixture(params=[level for level, missing in _C.cpu()["missing"].items() if not missing])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each instruction-set level that this machine runs, forced for the test."""
    before = _C.cpu()["isa"]
    _C.set_isa(request.param)
    yield request.param
    _C.set_isa(before)


@pytest.fixture(autouse=True)
def seed() -> int:
    torch.manual_seed(20)
    return 20


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the kit compiles in the tests goes into a cache of their own."""
    before = os.environ.get("FASTOPS_CACHE_DIR")
    os.environ["FASTOPS_CACHE_DIR"] = str(tmp_path_factory.mktemp("kit-cache"))
    yield
    if before is None:
        del os.environ["FASTOPS_CACHE_DIR"]
    else:
        os.environ["FASTOPS_CACHE_DIR"] = before


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that has nothing yet, for this test alone."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FASTOPS_CACHE_DIR", str(folder))
    return folder
