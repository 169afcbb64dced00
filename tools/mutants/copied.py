"""A copy of the tree with a build of its own, in which one fault at a time is planted.

What a fault changes comes back with its times: the sources are put back, and the build from a second copy of it, so
that the next fault's build is of that fault alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fault import Fault

SOURCES = ("CMakeLists.txt", "cmake", "cpp", "cuda", "src")


class BuildError(Exception):
    """The copy does not build; the text is the compiler's first error."""


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    always = os.environ | {"CMAKE_INSTALL_ALWAYS": "1"}  # a fault's file may have the time of the one without
    done = subprocess.run(
        command, cwd=cwd, env=always, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        lines = done.stdout.splitlines()
        raise BuildError(next((line for line in lines if "error" in line.lower()), "\n".join(lines[-5:])))
    return done.stdout


class Copy:
    """Of the tree at ``root``, in ``folder``; ``settings`` are CMake's, of this project."""

    def __init__(self, root: Path, folder: Path, settings: dict[str, str]) -> None:
        self.root, self.folder, self.settings = root, folder, settings
        self.tree, self.build, self.unplanted = (folder / name for name in ("tree", "cmake", "unplanted"))
        self.packages = folder / "packages"

    @property
    def package(self) -> Path:
        """Without a fault; what PYTHONPATH gets."""
        return self.tree / "src"

    def prepare(self) -> None:
        """The copy as the tree is now, built. The first time compiles all of it."""
        shutil.rmtree(self.packages, ignore_errors=True)
        self._copy_sources()
        if not (self.build / "build.ninja").exists():
            self._configure()
        self._make()
        mirror(self.build, self.unplanted)

    def planted(self, fault: Fault) -> Path:
        """A package with the fault, of which the copy itself is rid again."""
        package = self.packages / fault.name
        with self._planted(fault):
            shutil.copytree(self.package, package)
        return package

    @contextlib.contextmanager
    def _planted(self, fault: Fault) -> Iterator[None]:
        file = self.tree / fault.file
        text, times = file.read_text(), file.stat()
        try:
            file.write_text(text.replace(fault.find, fault.replace))
            if fault.compiled:
                self._make()
            yield
        finally:
            # The build first: a copy that is left half-way has a source that differs, which is built again.
            if fault.compiled:
                mirror(self.unplanted, self.build)
            file.write_text(text)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            if fault.compiled:
                self._install()

    def _copy_sources(self) -> None:
        """Files that differ get the time of now. Those that git ignores stay behind, those that are gone go."""
        listed = _run("git", "ls-files", "-co", "--exclude-standard", "--", *SOURCES, cwd=self.root).splitlines()
        names = {name for name in listed if (self.root / name).is_file()}
        record = self.folder / "sources.txt"
        before = record.read_text().splitlines() if record.exists() else []
        for name in set(before) - names:
            (self.tree / name).unlink(missing_ok=True)
        for name in sorted(names):
            source, target = self.root / name, self.tree / name
            if not target.exists() or source.read_bytes() != target.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        record.write_text("\n".join(sorted(names)) + "\n")

    def _configure(self) -> None:
        """As scikit-build-core does it for `make setup`."""
        version = re.search(r'(?m)^version = "(.+)"$', (self.root / "pyproject.toml").read_text())
        nanobind = importlib.util.find_spec("nanobind")
        if not (version and nanobind and nanobind.origin):
            raise BuildError("pyproject.toml has no version, or nanobind is not installed")
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_MAKE_PROGRAM": str(tool("ninja")),
            "CMAKE_PREFIX_PATH": str(Path(nanobind.origin).parents[1]),
            "Python_EXECUTABLE": sys.executable,
            "SKBUILD": "2",
            "SKBUILD_METADATA_DIR": str(self.folder / "metadata"),
            "SKBUILD_PROJECT_NAME": "fastops",
            "SKBUILD_PROJECT_VERSION": version[1],
            "SKBUILD_PROJECT_VERSION_FULL": version[1],
            "SKBUILD_SOABI": "abi3",
            **self.settings,
        }
        defined = [f"-D{name}={value}" for name, value in settings.items()]
        _run(tool("cmake"), "-S", self.tree, "-B", self.build, "-G", "Ninja", *defined)

    def _make(self) -> None:
        _run(tool("cmake"), "--build", self.build)
        self._install()

    def _install(self) -> None:
        _run(tool("cmake"), "--install", self.build, "--prefix", self.package)


def tool(name: str) -> Path:
    """Of the environment, or of the machine."""
    own = Path(sys.executable).with_name(name)
    return own if own.exists() else Path(shutil.which(name) or name)


def mirror(source: Path, target: Path) -> None:
    """Makes ``target`` what ``source`` is, times too. Files of one size and time are taken to be alike."""
    target.mkdir(parents=True, exist_ok=True)
    entries = {entry.name: entry for entry in os.scandir(source)}
    for there in os.scandir(target):
        if there.name not in entries:
            shutil.rmtree(there.path) if there.is_dir(follow_symlinks=False) else os.unlink(there.path)
    for name, entry in entries.items():
        if entry.is_dir(follow_symlinks=False):
            mirror(Path(entry.path), target / name)
        elif not _alike(entry, target / name):
            shutil.copy2(entry.path, target / name, follow_symlinks=False)


def _alike(entry: os.DirEntry[str], other: Path) -> bool:
    if not other.exists():
        return False
    a, b = entry.stat(), other.stat()
    return (a.st_size, a.st_mtime_ns) == (b.st_size, b.st_mtime_ns)
