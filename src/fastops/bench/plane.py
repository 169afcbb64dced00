"""A picture of time (to the right) and peak memory (up): a panel for each problem, a point for each implementation.

What has a time and no memory is a floor of the time, and a line.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

from .records import Record
from .svg import colour, picture, text

_WIDTH, _HEIGHT = 430, 270  # of a panel
_LEFT, _TOP, _RIGHT, _BOTTOM = 50, 26, 14, 46  # its margins, where its text is
_INNER, _TALL = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_IN_A_ROW = 2
_TICKS = [factor * 10.0**power for power in range(-6, 9) for factor in (1, 2, 5)]
_STEPS = 5  # at least so many of the time in a panel
_CHARACTER, _LINE = 6.0, 11.0  # of a label, about
_SHIFTS = (0, -1, 1, -2, 2, -3, 3)  # of a label that would cover another, in lines

Panel = tuple[str, ...]  # op, direction, dtype, level, shape
Box = tuple[float, float, float, float]  # left, top, right, bottom


def drawn(records: Iterable[Record], measure: str = "call", memory: str = "peak memory beyond the inputs, MB") -> str:
    panels: dict[Panel, list[Record]] = {}
    for r in records:
        if r.measure == measure:
            panels.setdefault((r.op, r.direction, r.dtype, r.level, r.shape), []).append(r)
    panels = {panel: found for panel, found in panels.items() if any(r.peak_mb for r in found)}
    peaks = _around([r.peak_mb for found in panels.values() for r in found if r.peak_mb])
    parts = []
    for k, panel in enumerate(sorted(panels, key=lambda panel: (panel[:-1], panels[panel][0].sizes))):
        row, column = divmod(k, _IN_A_ROW)
        parts.append(f'<g transform="translate({column * _WIDTH},{row * _HEIGHT})">')
        parts += [*_panel(_title(panel), panels[panel], peaks, memory), "</g>"]
    return picture(_WIDTH * _IN_A_ROW, _HEIGHT * -(-len(panels) // _IN_A_ROW), parts)


def _title(panel: Panel) -> str:
    op, direction, dtype, _, shape = panel
    return f"{op} {direction}, {dtype}, {shape.replace('x', '×')}"


def _around(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten, from one below all values to one above."""
    if not values:
        return []
    return _TICKS[bisect_right(_TICKS, min(values)) - 1 : bisect_left(_TICKS, max(values)) + 1]


def _panel(title: str, records: Sequence[Record], peaks: Sequence[float], memory: str) -> list[str]:
    most = max(r.us for r in records) / 1e3
    step = _TICKS[bisect_right(_TICKS, most / _STEPS) - 1]
    steps = math.ceil(most / step)
    first, last = math.log(peaks[0]), math.log(peaks[-1])

    def x(us: float) -> float:
        return _LEFT + _INNER * us / 1e3 / (steps * step)

    def y(peak: float) -> float:
        return _TOP + _TALL * (1 - (math.log(peak) - first) / (last - first or 1))

    parts = [text(_LEFT + _INNER / 2, 16, title)]
    for peak in peaks:
        parts.append(f'<path class="grid" d="M{_LEFT} {y(peak):.1f}h{_INNER}"/>')
        parts.append(text(_LEFT - 5, y(peak) + 4, f"{peak:g}", "end"))
    parts += [text(x(k * step * 1e3), _HEIGHT - 30, f"{k * step:g}") for k in range(steps + 1)]
    parts.append(text(_LEFT + _INNER / 2, _HEIGHT - 12, f"time, ms; up: {memory}"))
    return [*parts, *_floors(records, x), *_points(records, x, y)]


def _floors(records: Sequence[Record], x: Callable[[float], float]) -> list[str]:
    parts = []
    for r in records:
        if not r.peak_mb:
            line = f'd="M{x(r.us):.1f} {_TOP}v{_TALL}" stroke="{colour(r.implementation)}" stroke-dasharray="4"'
            parts += [f"<path {line}/>", text(x(r.us) - 4, _TOP + 10, r.implementation, "end")]
    return parts


def _points(records: Sequence[Record], x: Callable[[float], float], y: Callable[[float], float]) -> list[str]:
    found = sorted((x(r.us), y(r.peak_mb), r.implementation) for r in records if r.peak_mb)
    taken: list[Box] = [(a - 4, b - 4, a + 4, b + 4) for a, b, _ in found]
    parts = []
    for a, b, name in found:
        at, anchor, box = _label(a, b, name, taken)
        taken.append(box)
        label = text(a + (8 if anchor == "start" else -8), at, name, anchor)
        parts.append(f'<g fill="{colour(name)}"><circle cx="{a:.1f}" cy="{b:.1f}" r="4"/>{label}</g>')
    return parts


def _label(x: float, y: float, name: str, taken: Sequence[Box]) -> tuple[float, str, Box]:
    """The nearest place beside a point where the label covers nothing, or else the first."""
    wide = _CHARACTER * len(name)
    places = []
    for shift in _SHIFTS:
        at = y + 4 + shift * _LINE
        for anchor, left in (("start", x + 8), ("end", x - 8 - wide)):
            places.append((at, anchor, (left, at - _LINE + 2, left + wide, at + 2)))
    free = (one for one in places if _inside(one[2]) and not any(_meet(one[2], other) for other in taken))
    return next(free, places[0])


def _inside(box: Box) -> bool:
    left, top, right, bottom = box
    return left >= _LEFT and right <= _WIDTH and top >= _TOP and bottom <= _TOP + _TALL


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
