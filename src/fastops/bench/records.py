"""The CSV file of a card: one line a measurement. The documentation's tables and pictures are made from these files.

The key of a line is what was measured: op, direction, dtype, shape, measure, level and implementation. A run replaces
the lines of its keys, whatever torch or commit they came from, and leaves the others. What was refused has no line.
Lines are sorted by their keys, so that a file's bytes depend on its measurements alone.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from ..selftest.target import NotThereError
from . import first, host
from .problems import spelled

Key = tuple[str, ...]
_DIGITS = 5  # of a time; its spread is wider


@dataclass(frozen=True)
class Record:
    """One line. A field is empty, here None, where the thing was not measured."""

    op: str
    direction: str
    dtype: str
    shape: str  # rows x columns, of some ops rows x in_features x columns; of a model layers x hidden x batch x tokens
    measure: (
        str  # call | host | first | again: the first result with what an earlier process left on disk | model | start
    )
    level: str  # of fastops' kernels: the CPU's instruction set, or the GPU's group of kernels
    implementation: str
    us: float
    share_of_copy: float | None = None
    peak_mb: float | None = None  # 1e6 bytes beyond the inputs
    torch: str = ""
    commit: str = ""

    @property
    def key(self) -> Key:
        return self.op, self.direction, self.dtype, self.shape, self.measure, self.level, self.implementation

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(int, self.shape.split("x")))


HEADER = tuple(field.name for field in fields(Record))
_NUMBERS = ("us", "share_of_copy", "peak_mb")


def records_of(content: Mapping[str, Any]) -> dict[Key, Record | None]:
    """What a run measured, of the content of its JSON file; None: refused."""
    found: dict[Key, Record | None] = {}

    def add(r: Mapping[str, Any], shape: Iterable[int], measure: str, us: float | None, **more: float | None) -> None:
        record = Record(
            r["op"],
            r.get("direction", "forward"),
            r["dtype"],
            spelled(shape),
            measure,
            level_of(content, r["device"]),
            r["implementation"],
            us or 0.0,  # a refusal's is not kept
            torch=content["environment"]["versions"]["torch"],
            commit=content["environment"]["capabilities"]["build"]["git_commit"],
            **more,
        )
        found[record.key] = None if us is None else record

    for r in content["results"]:
        shape = (r[size] for size in ("rows", "in_features", "columns") if r[size] is not None)
        peak = None if r["peak_bytes"] is None else r["peak_bytes"] / 1e6
        add(r, shape, "call", r["microseconds"], share_of_copy=r["share_of_copy"], peak_mb=peak)
    for r in content["host"]:
        add(r, host.SHAPE, "host", r["microseconds"])
    for r in content["first"]:
        us = None if r["seconds"] is None else r["seconds"] * 1e6
        add(r, first.SHAPE, "again" if r["caches"] == "filled" else "first", us)
    return found


def level_of(content: Mapping[str, Any], device: str) -> str:
    capabilities = content["environment"]["capabilities"]
    if device == "cpu":
        return str(capabilities["cpu_level"])
    index = int(device.partition(":")[2] or 0)
    return next((str(gpu["arch"]) for gpu in capabilities["gpus"] if gpu["index"] == index), "")


def check(file: str, devices: Iterable[object]) -> None:
    """Before hours of measuring, not after."""
    several = sorted({str(device) for device in devices})
    if len(several) > 1:
        raise NotThereError(f"--csv keeps the lines of one device, got {', '.join(several)}")
    read(file)


def read(file: str | Path) -> list[Record]:
    """The lines of a file; none where there is no file yet."""
    try:
        with Path(file).open(newline="", encoding="utf-8") as lines:
            header, *cells = list(csv.reader(lines)) or [[]]
        if tuple(header) != HEADER:
            raise ValueError("not a file of `python -m fastops.bench --csv` of this version")
        return [_record(dict(zip(HEADER, line, strict=True))) for line in cells]
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise NotThereError(f"{file}: {error}") from None


def _record(cells: Mapping[str, str]) -> Record:
    numbers = {name: float(cells[name]) if cells[name] else None for name in _NUMBERS}
    return Record(**{**cells, **numbers})  # type: ignore[arg-type]


def text(records: Iterable[Record]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    for r in sorted(records, key=lambda r: (r.op, r.direction, r.dtype, r.sizes, r.key)):
        writer.writerow([_cell(name, value) for name, value in zip(HEADER, astuple(r), strict=True)])
    return out.getvalue()


def _cell(name: str, value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    places = 4 if name == "share_of_copy" else max(0, _DIGITS - 1 - math.floor(math.log10(value))) if value else 0
    number = f"{value:.{places}f}"
    return number.rstrip("0").rstrip(".") if "." in number else number


def replaced(before: Iterable[Record], found: Mapping[Key, Record | None]) -> list[Record]:
    """The lines of before, but for those of a key that was found, and the new ones."""
    kept = [r for r in before if r.key not in found]
    return [*kept, *(r for r in found.values() if r is not None)]


def write(content: Mapping[str, Any], file: str | None) -> None:
    if file:
        put(records_of(content), file)


def put(found: Mapping[Key, Record | None], file: str) -> None:
    Path(file).write_text(text(replaced(read(file), found)), encoding="utf-8")
