"""What is compiled in the tests goes into a cache of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
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
