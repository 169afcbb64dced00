"""``python -m fastops.kit cache [--clear]``: where compiled kernels lie, and how many bytes they are."""

from __future__ import annotations

import argparse
import sys

from .._console import print_anything
from . import cache


def main(arguments: list[str] | None = None) -> int:
    print_anything()
    parser = argparse.ArgumentParser(prog="python -m fastops.kit", description="What the kit keeps on this machine.")
    commands = parser.add_subparsers(required=True, metavar="cache")
    of_cache = commands.add_parser("cache", help="the compiled kernels on disk")
    of_cache.add_argument("--clear", action="store_true", help="remove them")
    clear = parser.parse_args(arguments).clear
    folder = cache.directory()
    if folder is None:
        print("no cache: there is no home directory, or not the one that FASTOPS_CACHE_DIR names")
    elif clear:
        print(f"{folder}: removed {_files(cache.clear())}")
        if left := cache.entries():
            print(f"{_files(len(left))} could not be removed", file=sys.stderr)
            return 1
    else:
        found = cache.entries()
        size = sum(path.lstat().st_size for path in found)
        why = cache.refused()
        note = f"; {why}, so that every process compiles anew" if why else ""
        print(f"{folder}: {_files(len(found))}, {size} bytes{note}")
    return 0


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


if __name__ == "__main__":
    sys.exit(main())
