"""What is shown of models: a table each, then what was refused and why; the picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import plane
from ..records import Record
from ..report import NOTHING, table
from .architectures import ARCHITECTURES
from .results import STEADY, Row, off, tokens_a_second

HEAD = ("", "tokens/s", "of the best", "spread", "peak GB", "first step s", "forward tokens/s", "its peak GB")


def text(content: Mapping[str, Any]) -> str:
    environment = content["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    gpus = ", ".join(environment["gpus"]) or "none"
    lines = [versions, f"CPU {environment['cpu']}, {environment['threads']} threads; GPU {gpus}"]
    blocks = ["\n".join(lines)]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for r in content["results"]:
        groups.setdefault((r["arch"], r["size"], r["dtype"], r["device"]), []).append(r)
    blocks += [_table(rows) for rows in groups.values() if any(not r.get("refused") for r in rows)]
    refused = [r for r in content["results"] if r.get("refused")]
    blocks += ["\n".join(f"{r['implementation']} refused {r['arch']}: {r['refused']}" for r in refused)]
    return "\n\n".join(filter(None, blocks))


def progress(r: Row) -> str:
    """``llama 8layers bf16 cuda:0 eager: 75950 tokens/s``."""
    said = f"refused: {r['refused']}" if r.get("refused") else f"{tokens_a_second(r, 'step'):.0f} tokens/s"
    return f"{r['arch']} {r['size']} {r['dtype']} {r['device']} {r['implementation']}: {said}"


def picture(records: Iterable[Record]) -> str:
    """Peak memory over the time of a pass."""
    return plane.drawn(records, STEADY, "peak memory, MB")


def _table(rows: Sequence[Row]) -> str:
    rows = [r for r in rows if not r.get("refused")]
    reference = rows[0]
    best = max(tokens_a_second(r, "step") for r in rows)
    lines = []
    for r in rows:
        rate, step = tokens_a_second(r, "step"), r["step"]
        lines.append(
            [
                r["implementation"],
                f"{rate:.0f}",
                f"{rate / best:.2f}",
                f"{(step['high'] - step['low']) / step['microseconds']:.0%}",
                _gigabytes(step["peak_bytes"]),
                f"{r['first_seconds']:.2f}",
                f"{tokens_a_second(r, 'forward'):.0f}",
                _gigabytes(r["forward"]["peak_bytes"]),
                f"{r['losses'][0]:.4f}",
                f"{r['losses'][-1]:.4f}",
                NOTHING if r is reference else f"{off(r, reference):.1e}",
            ]
        )
    steps = len(reference["losses"])
    head = [*HEAD, "first loss", f"loss {steps}", f"off {reference['implementation']}'s"]
    return table(_title(reference), head, lines, left=1)


def _title(r: Row) -> str:
    size = ARCHITECTURES[r["arch"]].sizes[r["size"]]
    return (
        f"{r['arch']} {r['size']}, {r['dtype']}, {r['device']}: {size.layers} layers of {size.hidden}, vocabulary "
        f"{size.vocabulary}, {r['parameters'] / 1e6:.1f} M parameters, batch {size.batch} x {size.tokens} tokens"
    )


def _gigabytes(peak: int | None) -> str:
    return NOTHING if peak is None else f"{peak / 1e9:.2f}"
