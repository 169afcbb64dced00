"""A wheel opened for the gates: its files on disk, its metadata, its two binaries, and what they say of themselves."""

from __future__ import annotations

import email
import email.message
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from elftools.elf.elffile import ELFFile
from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[2]


def platform_glibc(platform: str) -> tuple[int, int]:
    _, major, minor, *_ = platform.split("_")
    return int(major), int(minor)


class Failed(Exception):
    """A gate's finding; the text says what was expected and what was there."""


@dataclass(frozen=True)
class Wheel:
    file: Path
    folder: Path  # where it is unpacked
    release: bool  # held to what is published, not only to what is right

    @classmethod
    def open(cls, file: Path, folder: Path, release: bool) -> Wheel:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)
        return cls(file, folder, release)

    @property
    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())

    @property
    def distribution(self) -> str:
        return parse_wheel_filename(self.file.name)[0]

    @property
    def version(self) -> str:
        return str(parse_wheel_filename(self.file.name)[1])

    @property
    def tags(self) -> frozenset[Tag]:
        return parse_wheel_filename(self.file.name)[3]

    @property
    def glibc(self) -> tuple[int, int] | None:
        """The newest glibc that the platform tags allow; None where the tag promises nothing."""
        promised = [platform_glibc(tag.platform) for tag in self.tags if tag.platform.startswith("manylinux_")]
        return min(promised, default=None)

    @cached_property
    def dist_info(self) -> Path:
        (folder,) = self.folder.glob("*.dist-info")
        return folder

    @cached_property
    def metadata(self) -> email.message.Message:
        return email.message_from_string((self.dist_info / "METADATA").read_text(encoding="utf-8"))

    @property
    def extension(self) -> Path:
        return self.folder / "fastops" / "_C.abi3.so"

    @property
    def library(self) -> Path:
        return self.folder / "fastops" / "libfastops.so"

    @property
    def binaries(self) -> tuple[Path, Path]:
        return self.extension, self.library

    @cached_property
    def elf(self) -> dict[Path, ELFFile]:
        return {binary: ELFFile(binary.open("rb")) for binary in self.binaries}

    @cached_property
    def build(self) -> dict[str, object]:
        """``_C.build_info()``, asked in a process that sees this wheel's package first."""
        code = "import fastops, json; print(json.dumps(dict(fastops._C.build_info(), file=fastops._C.__file__)))"
        # -S: the finder of an editable installation would come first.
        path = os.pathsep.join([str(self.folder), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        command, environment = [sys.executable, "-S", "-c", code], os.environ | {"PYTHONPATH": path}
        result = subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True)
        if result.returncode:
            raise Failed(f"the wheel does not import: {result.stderr.strip().splitlines()[-1]}")
        found: dict[str, object] = json.loads(result.stdout)
        if found["file"] != str(self.extension):
            raise Failed(f"another fastops came first on the path: {found['file']}")
        return found
