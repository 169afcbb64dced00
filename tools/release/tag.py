"""``python tools/release/tag.py [TAG]``: the version, which pyproject.toml alone states, may be released as TAG.

The CHANGELOG must have its section, and TAG, if given, must be ``v`` and the version. Prints the version.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def version() -> str:
    (found,) = re.findall(r'(?m)^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return found


def main(arguments: list[str]) -> int:
    found = version()
    if arguments and arguments[0] != f"v{found}":
        print(f"the tag must be v{found}, which pyproject.toml has, got {arguments[0]}", file=sys.stderr)
        return 1
    sections = re.findall(r"(?m)^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if arguments and found not in sections:
        print(f"CHANGELOG.md must have a section [{found}], got {', '.join(sections)}", file=sys.stderr)
        return 1
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
