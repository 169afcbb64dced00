"""``python -m fastops.kit cache [--clear]``: where compiled kernels lie, and how many bytes they are."""

from __future__ import annotations

import argparse
import sys

from . import cache


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fastops.kit", description="What the kit keeps on this machine.")
    commands = parser.add_subparsers(required=True)
    of_cache = commands.add_parser("cache", help="the compiled kernels on disk")
    of_cache.add_argument("--clear", action="store_true", help="remove them")
    clear = parser.parse_args(arguments).clear
    folder = cache.directory()
    if folder is None:
        print("no cache: there is no home directory, and FASTOPS_CACHE_DIR is not set")
    elif clear:
        print(f"{folder}: removed {cache.clear()} files")
    else:
        found = cache.entries()
        print(f"{folder}: {len(found)} files, {sum(path.stat().st_size for path in found)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
