"""What of the case table is asked for on a command line, by --op and --dtype."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch

from ..cases import DTYPES, Case, by_name
from .runner import name_of
from .target import NotThereError


def add_arguments(parser: argparse.ArgumentParser, dtype_default: str = "") -> None:
    parser.add_argument("--op", action="append", metavar="NAME", help=f"one of {', '.join(by_name())}; repeatable")
    dtypes = f"{', '.join(map(name_of, DTYPES))}; repeatable{dtype_default}"
    parser.add_argument("--dtype", action="append", help=dtypes)


def chosen_cases(names: Iterable[str] | None) -> list[Case]:
    known = by_name()
    for name in names or ():
        if name not in known:
            raise NotThereError(f"op must be one of {', '.join(known)}, got {name!r}")
    return [known[name] for name in names or known]


def chosen_dtypes(names: Iterable[str] | None) -> list[torch.dtype]:
    known = {name_of(dtype): dtype for dtype in DTYPES}
    aliases = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    for name in names or ():
        if name not in known | aliases:
            raise NotThereError(f"dtype must be one of {', '.join(known)}, got {name!r}")
    return [(known | aliases)[name] for name in names or known]
