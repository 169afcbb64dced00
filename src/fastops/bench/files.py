"""The JSON files: written, read, put together, parts of them. A line a result, to be read and compared."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..selftest.choices import chosen_cases, chosen_dtypes
from ..selftest.runner import name_of
from ..selftest.target import NotThereError
from .peers import OURS

FORMAT = "fastops.bench 1"
RESULTS = ("results", "host", "first")
_OF_A_MACHINE = ("environment", "peers", "rounds", "host_rounds", "most_sets")

Content = dict[str, Any]


def check_folders(*names: str | None) -> None:
    """NotThereError for the first file whose folder is not there, before anything is measured for it."""
    for name in filter(None, names):
        if not Path(name).parent.is_dir():
            raise NotThereError(f"{name}: there is no folder {Path(name).parent}")


def write(content: Content, file: str | None) -> None:
    if not file:
        return

    def spelled(value: Any) -> str:
        if isinstance(value, list):
            return "[\n" + ",\n".join(f"  {spelled(one)}" for one in value) + "\n ]" if value else "[]"
        return json.dumps(value, default=str, allow_nan=False)

    lines = (f" {json.dumps(key)}: {spelled(value)}" for key, value in content.items())
    Path(file).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def load(file: str, wanted: str, command: str) -> Content:
    """NotThereError for what is not of the wanted format, which this command writes."""
    try:
        content: Content = json.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise NotThereError(f"--from {file}: {error}") from None
    if not isinstance(content, dict) or content.get("format") != wanted:
        raise NotThereError(f"--from {file}: not a file of `{command}` of this version")
    return content


def read(file: str) -> Content:
    content = load(file, FORMAT, "python -m fastops.bench --json")
    for result in content["results"]:
        result.setdefault("in_features", None)  # which earlier files do not have
    _to_medians(content["host"])
    return content


def _to_medians(hosts: Sequence[dict[str, Any]]) -> None:
    """Earlier files have the best of 15 rounds where the median is now, and the ratio of those."""
    ours = None
    for r in hosts:
        if "median" not in r:
            continue
        r["best"], r["microseconds"] = r["microseconds"], r.pop("median")
        if r["implementation"] == OURS:
            ours = r["microseconds"]
        r["times_fastops"] = r["microseconds"] / ours if ours and r["microseconds"] else None


def merged(
    contents: Sequence[Content], same: Collection[str] = _OF_A_MACHINE, results: Collection[str] = RESULTS
) -> Content:
    """Runs of one machine, such as one an op, as if they had been one."""
    whole = dict(contents[0])
    for other in contents[1:]:
        for key in same:
            if other.get(key) != whole.get(key):
                raise NotThereError(f"--from takes runs of one environment; {key} differs")
        whole["seconds"] = round(whole["seconds"] + other["seconds"], 1)
        for key in results:
            whole[key] = whole[key] + other[key]
    return whole


def part_of(content: Content, ops: Collection[str] | None, dtypes: Collection[str] | None) -> Content:
    """The results of these ops and dtypes; None: of all."""
    wanted: dict[str, set[str]] = {}
    if ops:
        wanted["op"] = {case.name for case in chosen_cases(ops)}
    if dtypes:
        wanted["dtype"] = {name_of(dtype) for dtype in chosen_dtypes(dtypes)}
    return with_fields(content, wanted)


def with_fields(content: Content, wanted: Mapping[str, Collection[str]], results: Collection[str] = RESULTS) -> Content:
    """The results whose fields are among the wanted ones."""
    parts = {name: [r for r in content[name] if all(r[key] in wanted[key] for key in wanted)] for name in results}
    if wanted and not any(parts.values()):
        raise NotThereError(f"--from has nothing of {', '.join(sorted(set().union(*wanted.values())))}")
    return content | parts
