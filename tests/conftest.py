"""Fixtures of all tests: the device, the dtype's short name as an id, a fixed seed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sampling import sampled

# OpenMP reads it when torch is imported. Threads that wait actively take the cores from pytest-xdist's other workers.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Inductor compiles its loops without vectors, in two thirds of the time. The tests are of the ops between them.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
import torch

import fastops
from fastops import _C

NO_CUDA = fastops.capabilities().no_gpu or (
    "" if fastops.capabilities().paths.get("cuda:0") == "cuda" else "this build has no kernels for this GPU"
)


LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="all cases of each test, instead of a sample where it has many")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "cuda" in getattr(item, "fixturenames", ()):
            item.add_marker("cuda")
    if config.getoption("all") or any(argument.endswith("]") for argument in config.args):  # a case by its name
        return
    kept = sampled(items)
    left_out = [item for item in items if item not in kept]
    items[:] = [item for item in items if item in kept]
    config.hook.pytest_deselected(items=left_out)
    config.stash[LEFT_OUT] = len(left_out)
    if hasattr(config, "workeroutput"):  # of pytest-xdist, whose workers all have the same
        config.workeroutput["left_out"] = len(left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if left_out := getattr(node, "workeroutput", {}).get("left_out"):  # a worker that crashed has none
        node.config.stash[LEFT_OUT] = left_out


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"A sample ran: {left_out} more cases run with --all (make test-all)")


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
    """What the kit compiles in the tests goes into a cache of their own, one for all workers of pytest-xdist."""
    before = os.environ.get("FASTOPS_CACHE_DIR")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "kit-cache"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ["FASTOPS_CACHE_DIR"] = str(folder)
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
