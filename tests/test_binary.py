"""What the built extension contains, needs and leaks: the promises that let one file run everywhere."""

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
import torch

from fastops import _C

EXTENSION = Path(_C.__file__)
TORCH_INCLUDE = Path(torch.__file__).parent / "include"

NEEDED = re.compile(r"lib(torch|torch_cpu|c10|stdc\+\+|gcc_s|m|c|dl|rt|pthread)\.so[.\d]*|ld-linux[\w-]*\.so[.\d]*")
# What is not of the C and C++ libraries. Their symbols carry a version, but for functions of the C++ library that
# libtorch exports too and that the linker found there first.
CPP_LIBRARY = re.compile(r"_ZN[KRO]*St\w+")
TORCH_SHIM = re.compile(r"(aoti_)?torch_\w+")
ELSEWHERE = re.compile(r"_?Py\w+|nb_\w+|_ITM_\w+|__gmon_start__|__cxa_finalize|_Jv_RegisterClasses")


def output_of(tool: str, *args: str) -> str:
    if not shutil.which(tool):
        pytest.skip(f"no {tool} here")
    return subprocess.run([tool, *args], capture_output=True, text=True, check=True).stdout


def undefined_symbols() -> list[str]:
    return [line.split()[-1] for line in output_of("nm", "-D", "--undefined-only", str(EXTENSION)).splitlines()]


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


def test_libraries_needed() -> None:
    libraries = re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-d", str(EXTENSION)))
    assert libraries
    assert [name for name in libraries if not NEEDED.fullmatch(name)] == []


def test_no_run_path_of_this_machine() -> None:
    paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", output_of("readelf", "-d", str(EXTENSION)))
    assert all(part.startswith("$ORIGIN") for path in paths for part in path.split(":"))


def test_undefined_symbols() -> None:
    """The stable ABIs of torch and Python, and versioned symbols of the C and C++ libraries."""
    known = (CPP_LIBRARY, TORCH_SHIM, ELSEWHERE)
    foreign = [name for name in undefined_symbols() if "@" not in name and not any(k.fullmatch(name) for k in known)]
    assert foreign == []
    leaked = [name for name in undefined_symbols() if re.match(r"_ZNK?(2at|3c10|5torch|8pybind11)", name)]
    assert leaked == []


def newer_shims() -> dict[str, str]:
    """Name of a torch shim function to the version that brought it, for those after our floor."""
    floor = tuple(map(int, _C.build_info()["torch_floor"].split(".")[:2]))
    newer = {}
    for header in sorted(TORCH_INCLUDE.rglob("shim*.h")):
        versions: list[tuple[int, int] | None] = []
        for line in header.read_text(errors="replace").splitlines():
            if match := re.match(r"#\s*if.*TORCH_FEATURE_VERSION >= TORCH_VERSION_(\d+)_(\d+)_", line):
                versions.append((int(match[1]), int(match[2])))
            elif re.match(r"#\s*if", line):
                versions.append(None)
            elif re.match(r"#\s*endif", line):
                versions.pop()
            elif now := max((v for v in versions if v), default=None):
                for name in re.findall(r"\b((?:aoti_)?torch_\w+)\s*\(", line):
                    if now > floor:
                        newer[name] = f"{now[0]}.{now[1]}"
    return newer


def test_no_torch_shim_newer_than_the_floor() -> None:
    newer = newer_shims()
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11):
        assert newer, "the headers no longer mark versions as this test reads them"
    used = set(undefined_symbols())
    assert used & {"torch_call_dispatcher", "aoti_torch_empty_strided"}
    assert {name: version for name, version in newer.items() if name in used} == {}


def test_python_stable_abi() -> None:
    assert ".abi3." in EXTENSION.name


def test_exports_nothing_but_its_entry() -> None:
    lines = output_of("nm", "-D", "-C", "--defined-only", str(EXTENSION)).splitlines()
    names = [line.split(maxsplit=2)[2] for line in lines]
    assert "PyInit__C" in names
    assert [name for name in names if name.startswith("fastops::")] == []


def test_names_no_folder_of_the_build_machine() -> None:
    root = str(Path(__file__).parents[1]).encode()
    assert root not in EXTENSION.read_bytes()
