"""Count the kernels and bytes of a library's CUDA code by family of operators. device_code.csv has their limits."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from elftools.elf.elffile import ELFFile

# A kernel's mangled name holds the source file, because its types are in an unnamed namespace: 7_norm_cu. Others are in
# the family `other`.
_SOURCE = re.compile(r"_GLOBAL__N__\w{8}_\d+_(\w+?)_cu_")
_OTHER = "other"


class Size(NamedTuple):
    kernels: int
    bytes: int

    def __add__(self, other: object) -> Size:
        assert isinstance(other, Size)
        return Size(self.kernels + other.kernels, self.bytes + other.bytes)

    def __str__(self) -> str:
        return f"{self.kernels} kernels, {self.bytes / 1e6:.2f} MB"


class Limit(NamedTuple):
    family: str
    sources: re.Pattern[str]  # of the names of the files in cuda/, without .cu
    kernels: int
    megabytes: float


def limits() -> list[Limit]:
    """Return the limits of one architecture. A source file belongs to the first family whose pattern matches it."""
    with Path(__file__).with_suffix(".csv").open() as file:
        return [
            Limit(row["family"], re.compile(row["sources"]), int(row["kernels"]), float(row["megabytes"]))
            for row in csv.DictReader(file)
        ]


def sizes(cubins: list[Path], families: list[Limit]) -> dict[str, Size]:
    """Return the size of each family in the machine code of one architecture, and of all families together."""
    found = {limit.family: Size(0, 0) for limit in families}
    for name, size in _functions(cubins):
        source = _SOURCE.search(name)
        family = next((f.family for f in families if source and f.sources.fullmatch(source[1])), _OTHER)
        for key in (family, "all"):
            found[key] += Size(1, size)
    return found


def _functions(cubins: list[Path]) -> Iterator[tuple[str, int]]:
    for cubin in cubins:
        with cubin.open("rb") as file:
            for section in ELFFile(file).iter_sections():
                if section.name.startswith(".text."):
                    yield section.name.removeprefix(".text."), section["sh_size"]
