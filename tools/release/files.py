"""``python tools/release/files.py FOLDER``: FOLDER has every file of this version's release, and no other.

Prints their SHA-256 and moves them into ``FOLDER/<distribution>``, as they are uploaded. Needs nothing installed.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from tag import version

DISTRIBUTIONS = ("fastops", "fastops-cu12", "fastops-cu13")
TAGS = tuple(f"cp310-abi3-manylinux_2_28_{machine}" for machine in ("x86_64", "aarch64"))


def expected(release: str) -> dict[str, str]:
    """The distribution that each file is of. CUDA's have no source archive: fastops' own builds them too."""
    wheels = {f"{dist.replace('-', '_')}-{release}-{tag}.whl": dist for dist in DISTRIBUTIONS for tag in TAGS}
    return wheels | {f"fastops-{release}.tar.gz": "fastops"}


def main(folder: Path) -> int:
    wanted, found = expected(version()), {path.name for path in folder.iterdir()}
    if found != wanted.keys():
        extra, missing = sorted(found - wanted.keys()), sorted(wanted.keys() - found)
        print(f"{folder}: not expected: {extra}; missing: {missing}", file=sys.stderr)
        return 1
    for name, distribution in sorted(wanted.items()):
        print(hashlib.sha256((folder / name).read_bytes()).hexdigest(), name)
        (folder / distribution).mkdir(exist_ok=True)
        (folder / name).rename(folder / distribution / name)
    print(f"{len(wanted)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
