"""``python tools/gates [--release] WHEEL ...``: what a wheel must be before anybody may install it.

Prints what each gate saw. Exit status 1 if one failed. --release also holds the wheels to what is published: the
platform tag, the whole list of archs, sources without changes that no commit has.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from gates import GATES
from opened import Failed, Wheel


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/gates", description=__doc__)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("--release", action="store_true", help="hold them to what is published")
    arguments = parser.parse_args()
    for file in arguments.wheels:
        if not file.is_file():
            parser.error(f"there is no file {file}")
    failures = 0
    for file in arguments.wheels:
        print(file.name)
        with tempfile.TemporaryDirectory() as folder:
            wheel = Wheel.open(file.resolve(), Path(folder).resolve(), arguments.release)
            for gate in GATES:
                try:
                    mark, said = "ok    ", gate(wheel)
                except Exception as failure:  # a gate that cannot read the wheel must not hide the others
                    said = str(failure) if isinstance(failure, Failed) else f"{type(failure).__name__}: {failure}"
                    mark = "FAILED"
                    failures += 1
                print(f"  {mark} {gate.__name__.replace('_', ' '):11} {said}")
    print(f"{failures} gates failed" if failures else "every gate passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
