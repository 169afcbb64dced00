"""What the benchmark prints: tables made of the same content that its JSON file has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .peers import OURS, is_peer
from .problems import spelled

Row = dict[str, Any]
SHAPE = ("rows", "in_features", "columns")
NOTHING = "-"
AHEAD = 0.03  # of fastops' time: less is noise


def text(content: dict[str, Any]) -> str:
    """The tables, then what is missing from them and why."""
    blocks = [*_times(content["results"]), *_peaks(content["results"]), *_hosts(content["host"])]
    blocks += [*_firsts(content["first"]), *_ahead(content["results"])]
    return "\n\n".join([_heading(content), *blocks, _notes(content)])


def progress(results: Sequence[Row]) -> str:
    """``layer_norm bf16 8192x4096 forward: fastops 31.2 us, eager 2.1x, quack refused``."""
    parts = []
    for r in results:
        if r["refused"]:
            parts.append(f"{r['implementation']} refused")
        elif r["implementation"] == OURS:
            parts.append(f"fastops {r['microseconds']:.2f} us")
        else:
            parts.append(f"{r['implementation']} " + _ratio(r["times_fastops"]))
    return ", ".join(parts)


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x"


def _heading(content: dict[str, Any]) -> str:
    environment = content["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    gpus = ", ".join(environment["gpus"]) or "none"
    lines = [versions, f"CPU {environment['cpu']}, {environment['threads']} threads; GPU {gpus}"]
    for device, path in content["paths"].items():
        if path == "reference":
            lines.append(f"On {device} fastops has no kernels and runs plain PyTorch.")
    return "\n".join(lines)


def _times(results: Sequence[Row]) -> list[str]:
    blocks = []
    for (op, dtype, device), rows in _grouped(results, "op", "dtype", "device").items():
        peers = _names(rows)[1:]
        on_cpu = any(r["fresh_microseconds"] is not None for r in rows)
        head = [
            "shape",
            "direction",
            "fastops us",
            "spread",
            *(["fresh us"] if on_cpu else []),
            "GB/s",
            "of copy",
            *peers,
        ]
        lines = []
        for (*_, direction), cells in _grouped(rows, *SHAPE, "direction").items():
            by = {r["implementation"]: r for r in cells}
            lines.append([_shape(cells[0]), direction, *_ours(by["fastops"], on_cpu)])
            lines[-1] += [_ratio(by[name]["times_fastops"]) if name in by else NOTHING for name in peers]
        title = f"{op}, {dtype}, {device}{_copy(rows)}; peers: their time over fastops'"
        blocks.append(table(title, head, lines))
    return blocks


def _ours(r: Row, on_cpu: bool) -> list[str]:
    if r["refused"]:
        return ["FAILED", *[NOTHING] * (4 if on_cpu else 3)]
    spread = (r["high"] - r["low"]) / r["microseconds"]
    fresh = [_number(r["fresh_microseconds"])] if on_cpu else []
    warm = "" if r["cold"] or on_cpu else "*"
    return [
        _number(r["microseconds"]) + warm,
        f"{spread:.0%}",
        *fresh,
        _rate(r["gigabytes_per_second"]),
        NOTHING if r["share_of_copy"] is None else f"{r['share_of_copy']:.2f}",
    ]


def _copy(rows: Sequence[Row]) -> str:
    rates = [r["copy_gigabytes_per_second"] for r in rows if r["copy_gigabytes_per_second"]]
    if not rates:
        return ""
    least, most = _rate(min(rates)), _rate(max(rates))
    return f", copy {least if least == most else f'{least} to {most}'} GB/s"


def _peaks(results: Sequence[Row]) -> list[str]:
    """Of the largest problem of each op, since the others are like it."""
    rows: list[Row] = []
    for group in _grouped((r for r in results if r["peak_bytes"] is not None), "op", "dtype", "device").values():
        most = max(r["rows"] * r["columns"] for r in group)
        shape = next(_shape(r) for r in group if r["rows"] * r["columns"] == most)
        rows += [r for r in group if _shape(r) == shape]
    title = "Peak memory of a call beyond its inputs, MiB"
    return [_by_implementation(title, rows, _case_key, _peak)] if rows else []


def _case_key(r: Row) -> tuple[str, ...]:
    return r["op"], r["dtype"], r["device"], _shape(r), r["direction"]


def _shape(r: Row) -> str:
    return spelled(r[key] for key in SHAPE if r[key] is not None)


def _peak(r: Row) -> str:
    return f"{r['peak_bytes'] / 2**20:.1f}"


def _hosts(results: Sequence[Row]) -> list[str]:
    if not results:
        return []
    title = "Host time of a call on 16 numbers a tensor, us; peers: their time over fastops'"
    return [_by_implementation(title, results, lambda r: (r["op"], r["dtype"], r["device"], r["direction"]), _host)]


def _host(r: Row) -> str:
    if r["refused"]:
        return NOTHING
    return f"{r['microseconds']:.2f}" if r["implementation"] == OURS else _ratio(r["times_fastops"])


def _firsts(results: Sequence[Row]) -> list[str]:
    if not results:
        return []
    title = "Time to the first result in a fresh process beyond PyTorch's import, s; again: with what that left on disk"
    named = [r | {"implementation": r["implementation"] + " again" * (r["caches"] == "filled")} for r in results]
    return [_by_implementation(title, named, lambda r: (r["op"], r["dtype"], r["device"]), _first)]


def _first(r: Row) -> str:
    return NOTHING if r["refused"] else f"{r['seconds']:.3f}"


def _ahead(results: Sequence[Row]) -> list[str]:
    """So that nobody has to look for them in the tables."""
    of_peers = (r for r in results if r["times_fastops"] is not None and is_peer(r["implementation"]))
    rows = [r for r in of_peers if r["times_fastops"] < 1 - AHEAD]
    if not rows:
        return []
    rows.sort(key=lambda r: r["times_fastops"])
    lines = [[*_case_key(r), r["implementation"], _ratio(r["times_fastops"])] for r in rows]
    head = ["op", "dtype", "device", "shape", "direction", "peer", "its time"]
    return [table(f"Where a peer is ahead by more than {AHEAD:.0%}; its time over fastops'", head, lines, left=6)]


def _by_implementation(
    title: str, rows: Sequence[Row], key: Callable[[Row], tuple[str, ...]], cell: Callable[[Row], str]
) -> str:
    names = _names(rows)
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for r in rows:
        lines.setdefault(key(r), {})[r["implementation"]] = cell(r)
    width = len(next(iter(lines)))
    body = [[*which, *(cells.get(name, NOTHING) for name in names)] for which, cells in lines.items()]
    return table(title, [*[""] * width, *names], body, left=width)


def _notes(content: dict[str, Any]) -> str:
    lines = [f"{name} is absent: {found['absent']}" for name, found in content["peers"].items() if "absent" in found]
    every = (*content["results"], *content["host"], *content["first"])
    lines += _refusals([r for r in every if "absent" not in content["peers"].get(r["implementation"], {})])
    if any(r["cold"] is False and r["peak_bytes"] is not None for r in content["results"]):
        lines.append("* the input sets together fit in the GPU's cache")
    if any(r["fresh_microseconds"] is not None for r in content["results"]) and not content["memory_recycled"]:
        lines.append("The C library is not glibc: whether memory is recycled or fresh is not known.")
    faults = sum(4096 * (r["page_faults"] or 0) > (r["bytes"] or 0) / 10 for r in content["results"])
    if faults:
        lines.append(f"{faults} times with recycled memory have page faults in them all the same, see the JSON file.")
    lines.append(f"{sum(not r['refused'] for r in every)} measurements in {content['seconds']:.0f} s")
    return "\n".join(lines)


def _refusals(every: Sequence[Row]) -> list[str]:
    """A line for each reason; an op, or a direction of it, stands for its cases where all of them were refused."""
    found: dict[tuple[str, str], list[str]] = {}
    for (name, op, dtype), rows in _grouped(every, "implementation", "op", "dtype").items():
        for (reason,), refused in _grouped((r for r in rows if r["refused"]), "refused").items():
            where = found.setdefault((name, reason), [])
            if len(refused) == len(rows):
                where.append(f"{op} {dtype}")
                continue
            for part, cases in _parts(refused).items():
                whole = len(cases) == len(_parts(rows)[part])
                where += [f"{op} {dtype} {part}"] if whole else [f"{op} {dtype} {_shape(r)} {part}" for r in cases]
    return [
        f"{name} {'failed' if name == 'fastops' else 'refused'} {', '.join(where)}: {reason}"
        for (name, reason), where in found.items()
    ]


def _parts(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """By what was measured: a direction on large inputs, its host time, the first result."""
    parts: dict[str, list[Row]] = {}
    for r in rows:
        part = r["direction"] if "rows" in r else f"host {r['direction']}" if "direction" in r else "first result"
        parts.setdefault(part, []).append(r)
    return parts


def _grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for r in rows:
        groups.setdefault(tuple(r[key] for key in keys), []).append(r)
    return groups


def _names(rows: Iterable[Row]) -> list[str]:
    """The implementations that gave something anywhere, in order; fastops always."""
    return list(
        dict.fromkeys(r["implementation"] for r in rows if not r["refused"] or r["implementation"] == "fastops")
    )


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def table(title: str, head: Sequence[str], lines: Sequence[Sequence[str]], left: int = 2) -> str:
    """Columns as wide as their widest cell, the first ``left`` of them aligned to the left."""
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            c.ljust(w) if k < left else c.rjust(w) for k, (c, w) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()

    return "\n".join([title, line(head), *map(line, lines)])
