"""The PEP 517 backend: scikit-build-core, and around it what release builds change in pyproject.toml.

The environment says what is wanted:

- ``FASTOPS_CUDA=12`` or ``13`` builds ``fastops-cu12`` or ``fastops-cu13`` and needs nvcc of that version; ``none``
  builds ``fastops`` without CUDA. Unset, the name is ``fastops`` and the machine decides.
- ``FASTOPS_CUDA_ARCHS="80;90"``: machine code for these; unset, for those of a release.
- ``FASTOPS_STATIC_NANOBIND=1`` links nanobind into the module: cp312-abi3, and no need of nanobind-backend.
- ``FASTOPS_GIT_COMMIT``: what the binary reports as its commit, where git cannot tell.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scikit_build_core import build as plain
from scikit_build_core.build import *  # noqa: F403 - the hooks that stay as they are, and those that may yet come

CHOICES = {"FASTOPS_CUDA": ("", "none", "12", "13"), "FASTOPS_STATIC_NANOBIND": ("", "1")}

Settings = dict[str, "list[str] | str"]


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    """With torch, asked for here and not in pyproject.toml, so that a Python that cannot be served gets none."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit("[fastops] free-threaded Python has no stable ABI before 3.15; use one with the GIL")
    return [*plain.get_requires_for_build_wheel(config_settings), "torch>=2.10"]


def get_requires_for_build_editable(config_settings: Settings | None = None) -> list[str]:
    return get_requires_for_build_wheel(config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    folder, metadata = os.path.abspath(wheel_directory), metadata_directory and os.path.abspath(metadata_directory)
    with release_tree(config_settings) as settings:
        return plain.build_wheel(folder, settings, metadata)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings | None = None) -> str:
    folder = os.path.abspath(metadata_directory)
    with release_tree(config_settings) as settings:
        return plain.prepare_metadata_for_build_wheel(folder, settings)


def build_editable(
    wheel_directory: str, config_settings: Settings | None = None, metadata_directory: str | None = None
) -> str:
    return plain.build_editable(wheel_directory, settings_of(config_settings), metadata_directory)


@contextlib.contextmanager
def release_tree(config_settings: Settings | None) -> Iterator[Settings]:
    """The settings of a build, in a current folder whose pyproject.toml says what the environment asks for.

    A name cannot be dynamic by the standards, so a wheel that is not plain ``fastops`` is built from this tree's own
    sdist, unpacked elsewhere: the tree is never written to, and a file that the sdist lacks is missed here first.
    """
    settings, edits = settings_of(config_settings), edits_of_project()
    if not edits:
        yield settings
        return
    with tempfile.TemporaryDirectory(prefix="fastops-") as folder:
        with tarfile.open(Path(folder, plain.build_sdist(folder, config_settings))) as archive:
            # Our own archive; the filter is not in every Python 3.10 and 3.11, and 3.12 warns without it.
            archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        (tree,) = (path for path in Path(folder).iterdir() if path.is_dir())
        edit(tree / "pyproject.toml", edits)
        before = Path.cwd()
        os.chdir(tree)
        try:
            yield settings
        finally:
            os.chdir(before)


def settings_of(config_settings: Settings | None) -> Settings:
    """What the caller set; beneath it what the environment says, always all of it, since CMake's cache remembers."""
    cuda, static = asked("FASTOPS_CUDA"), asked("FASTOPS_STATIC_NANOBIND")
    settings: Settings = {
        "cmake.define.FASTOPS_CUDA": cuda,
        "cmake.define.FASTOPS_CUDA_ARCHS": os.environ.get("FASTOPS_CUDA_ARCHS", ""),
        "cmake.define.FASTOPS_STATIC_NANOBIND": "ON" if static else "",
        "cmake.define.FASTOPS_GIT_COMMIT": commit(),
    }
    if static:
        settings["wheel.py-api"] = "cp312"  # nanobind's own floor for the stable ABI
    given = config_settings or {}
    # The name and the requirements follow the environment alone, and must not say other than the binary.
    if cuda and given.get("cmake.define.FASTOPS_CUDA", cuda) != cuda:
        wished = given["cmake.define.FASTOPS_CUDA"]
        raise SystemExit(f"[fastops] FASTOPS_CUDA is {cuda!r} in the environment and {wished!r} in the settings")
    if "cmake.define.FASTOPS_STATIC_NANOBIND" in given:
        raise SystemExit("[fastops] FASTOPS_STATIC_NANOBIND=1 must be in the environment, not in the settings")
    return settings | given


def asked(variable: str) -> str:
    value = os.environ.get(variable, "")
    if value not in CHOICES[variable]:
        choices = ", ".join(CHOICES[variable][1:])
        raise SystemExit(f"[fastops] {variable} must be unset or one of {choices}, got {value!r}")
    return value


def edits_of_project() -> dict[str, str]:
    """Text of pyproject.toml, as a pattern that is there once, to what takes its place."""
    edits = {}
    if (cuda := os.environ.get("FASTOPS_CUDA", "")) not in ("", "none"):
        edits[r'(?m)^name = "fastops"$'] = f'name = "fastops-cu{cuda}"'
    if os.environ.get("FASTOPS_STATIC_NANOBIND"):
        edits[r'(?m)^(dependencies = .*), "nanobind-backend[^"]*"\]$'] = r"\1]"
    return edits


def edit(file: Path, edits: dict[str, str]) -> None:
    text = file.read_text(encoding="utf-8")
    for pattern, replacement in edits.items():
        text, found = re.subn(pattern, replacement, text)
        if found != 1:
            raise SystemExit(f"[fastops] pyproject.toml must match {pattern!r} once, got {found}")
    file.write_text(text, encoding="utf-8")


def commit() -> str:
    """Of the tree. An unpacked sdist does not know, so who builds from one may say it in FASTOPS_GIT_COMMIT."""
    if told := os.environ.get("FASTOPS_GIT_COMMIT"):
        return told
    # In a container the tree often belongs to another user, and git would refuse to look at it without safe.directory.
    git = ["git", "-c", "safe.directory=*", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        described = subprocess.run(git, capture_output=True, text=True).stdout.strip() if Path(".git").exists() else ""
    except OSError:
        described = ""
    return described or "unknown"
