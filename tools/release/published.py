"""``python tools/release/published.py FOLDER``: the index serves exactly the files of FOLDER, byte for byte.

Asks through pip, so that it is the index that users are given; tries again for ten minutes, since a new file takes a
while to be seen everywhere.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from packaging.utils import parse_sdist_filename, parse_wheel_filename

ATTEMPTS, PAUSE = 20, 30  # seconds


def main(folder: str) -> int:
    missing = sorted(path for path in Path(folder).rglob("*") if path.suffix in (".whl", ".gz"))
    if not missing:
        print(f"{folder} has no files to look for", file=sys.stderr)
        return 1
    for attempt in range(ATTEMPTS):
        missing = [path for path in missing if not served(path)]
        if not missing:
            return 0
        if attempt < ATTEMPTS - 1:
            time.sleep(PAUSE)
    print("the index does not serve:", *(path.name for path in missing), file=sys.stderr)
    return 1


def served(local: Path) -> bool:
    """Whether pip, told to take this very kind of file, is given the same bytes."""
    if local.suffix == ".whl":
        name, version, _, tags = parse_wheel_filename(local.name)
        kind = ["--only-binary=:all:", "--python-version=3.10", "--implementation=cp", "--abi=abi3"]
        kind += [f"--platform={tag.platform}" for tag in tags]
    else:
        name, version = parse_sdist_filename(local.name)
        kind = ["--no-binary=:all:", "--no-build-isolation"]
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", folder]
        result = subprocess.run([*pip, *kind, f"{name}=={version}"], capture_output=True, text=True)
        if result.returncode:
            print(f"{local.name}: {(result.stderr.strip().splitlines() or ['nothing'])[-1]}")
            return False
        (remote,) = Path(folder).iterdir()
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (local, remote)]
        if remote.name != local.name or len(set(digests)) > 1:
            print(f"{local.name}: the index gave {remote.name} with sha256 {digests[1]}, here it has {digests[0]}")
            return False
    print(f"{local.name}: served, sha256 {digests[0]}")
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
