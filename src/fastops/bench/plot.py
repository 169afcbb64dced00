"""A picture of the results: the share of the copy bandwidth over the row length, as SVG, which needs no library.

Where none has a share, as of losses of a linear layer, it is ``plane``'s.

The bytes of a picture depend on the records alone: coordinates have one decimal, and text is the reader's own font.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..selftest.target import NotThereError
from . import plane
from .records import Record
from .svg import colour, picture, place, text
from .work import DIRECTIONS

FORMAT = ".svg"

_WIDTH, _HEIGHT = 300, 230  # of a panel
_LEFT, _TOP, _RIGHT, _BOTTOM = 40, 26, 14, 46  # its margins, where its text is
_LEGEND = 30
_STEP = 0.25  # between two lines of the grid

Panel = tuple[str, ...]  # op, dtype, level, rows where lengths come with several


def check(file: str) -> None:
    """Before hours of measuring, not after."""
    if Path(file).suffix != FORMAT:
        raise NotThereError(f"--plot must end in {FORMAT}, got {file!r}")


def write(records: Iterable[Record], file: str) -> None:
    records = list(records)
    draw = drawn if any(r.share_of_copy is not None for r in records) else plane.drawn
    Path(file).write_text(draw(records), encoding="utf-8")


def drawn(records: Iterable[Record]) -> str:
    """A line of panels for each op, dtype and level, and each number of rows where row lengths come with several."""
    chosen = [r for r in records if r.share_of_copy is not None]
    lines: dict[Panel, list[Record]] = {}
    apart = _with_several_rows(chosen)
    for r in chosen:
        lines.setdefault((*_group(r), _rows(r) if _group(r) in apart else ""), []).append(r)
    names = sorted({r.implementation for r in chosen}, key=place)
    parts = _legend(names)
    for k, (panel, line) in enumerate(lines.items()):
        top = max([1.0, *(r.share_of_copy or 0 for r in line)])
        for j, direction in enumerate(DIRECTIONS):
            shown = [r for r in line if r.direction == direction]
            title = ", ".join(filter(None, (f"{panel[0]} {direction}", *panel[1:])))
            parts.append(f'<g transform="translate({j * _WIDTH},{_LEGEND + k * _HEIGHT})">')
            parts += [*_panel(title, shown, names, math.ceil(top / _STEP) * _STEP), "</g>"]
    return picture(_WIDTH * len(DIRECTIONS), _LEGEND + _HEIGHT * len(lines), parts)


def _group(r: Record) -> tuple[str, str, str]:
    return r.op, r.dtype, r.level


def _rows(r: Record) -> str:
    rows, *features = r.sizes[:-1]
    return f"{rows} rows" + "".join(f" of {n} features" for n in features)


def _with_several_rows(records: Sequence[Record]) -> set[tuple[str, str, str]]:
    found: dict[tuple[tuple[str, str, str], int], set[str]] = {}
    for r in records:
        found.setdefault((_group(r), r.sizes[-1]), set()).add(_rows(r))
    return {group for (group, _), rows in found.items() if len(rows) > 1}


def _legend(names: Sequence[str]) -> list[str]:
    parts = []
    for k, name in enumerate(names):
        x = _LEFT + 90 * k
        parts.append(f'<path d="M{x} 15h20" stroke="{colour(name)}"/>')
        parts.append(text(x + 25, 19, name, "start"))
    return parts


def _panel(title: str, records: Sequence[Record], names: Sequence[str], top: float) -> list[str]:
    lengths = sorted({r.sizes[-1] for r in records})
    first, last = (math.log2(lengths[0]), math.log2(lengths[-1])) if lengths else (0.0, 0.0)
    inner, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(length: int) -> float:
        return _LEFT + (inner * (math.log2(length) - first) / (last - first) if last > first else inner / 2)

    def y(share: float) -> float:
        return _TOP + tall * (1 - share / top)

    parts = [text(_LEFT + inner / 2, 16, title)]
    for k in range(round(top / _STEP) + 1):
        at = y(k * _STEP)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}h{inner}"/>')
        parts.append(text(_LEFT - 5, at + 4, f"{k * _STEP:g}", "end"))
    parts += [text(x(n), _HEIGHT - 30, _spelled(n)) for n in lengths]
    parts.append(text(_LEFT + inner / 2, _HEIGHT - 12, "row length; up: share of the copy bandwidth"))
    for name in reversed(names):  # the first on top
        points = sorted((r.sizes[-1], r.share_of_copy or 0) for r in records if r.implementation == name)
        if not points:
            continue
        places = [f"{x(n):.1f} {y(share):.1f}" for n, share in points]
        parts.append(f'<path d="M{"L".join(places)}" stroke="{colour(name)}"/>')
        dots = "".join(f'<circle cx="{a}" cy="{b}" r="3"/>' for a, b in (place.split() for place in places))
        parts.append(f'<g fill="{colour(name)}">{dots}</g>')
    return parts


def _spelled(length: int) -> str:
    return str(length) if length % 1024 else f"{length // 1024}k"  # what is longer overlaps its neighbours
