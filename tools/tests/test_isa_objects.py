"""The objects of an instruction-set level hold nothing that another level, or the baseline, could be given instead."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest

from fastops import _C

EXTENSION = Path(_C.__file__)


def output_of(tool: str, *args: str) -> str:
    if not shutil.which(tool):
        pytest.skip(f"no {tool} here")
    return subprocess.run([tool, *args], capture_output=True, text=True, check=True).stdout


def build_folder() -> Path:
    """The folder where this very extension was built, known from the metadata of an editable installation."""
    try:
        origin = json.loads(metadata.distribution("fastops").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        origin = {}
    if not origin.get("dir_info", {}).get("editable"):
        pytest.skip("fastops is not an editable installation: its object files are not here")
    root = Path(url2pathname(urlparse(origin["url"]).path))
    for file in (root / "build").glob("*/_C*.so"):
        if file.read_bytes() == EXTENSION.read_bytes() or file.stat().st_size == EXTENSION.stat().st_size:
            return file.parent
    pytest.skip("no build folder holds this extension")


@pytest.mark.parametrize("level", _C.build_info()["isa_levels"])
def test_isa_objects_define_only_their_own(level: str) -> None:
    """A weak ``std::`` function compiled for AVX-512 may be the one that the linker keeps for everybody."""
    objects = sorted((build_folder() / "CMakeFiles" / f"fastops_isa_{level}.dir").rglob("*.o"))
    assert objects
    defined = 0
    for file in objects:
        for line in output_of("nm", "-C", "--defined-only", "--extern-only", str(file)).splitlines():
            kind, name = re.fullmatch(r"\S+ (\S) (.*)", line).groups()  # type: ignore[union-attr]
            assert name.startswith(f"fastops::{level}::"), f"{file.name} defines {kind} {name}"
            defined += 1
    assert defined
