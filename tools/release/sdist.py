"""``python tools/release/sdist.py FILE``: what users of the sdist do: unpack it, build it, check the operators.

Metadata must come without torch, since pip asks for it before it has installed any.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
METADATA = """
import sys
sys.modules["torch"] = None  # cannot be imported
sys.path.insert(0, "tools/backend")
import fastops_backend as backend
print("requires for a wheel:", backend.get_requires_for_build_wheel())
backend.prepare_metadata_for_build_wheel(sys.argv[1])
"""


def check_contents(names: set[str]) -> None:
    """What git has, but for CI's own files: no file that lay about."""
    git = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {name for name in git.splitlines() if not name.startswith((".ci/", ".github/"))} | {"PKG-INFO"}
    if names != expected:
        extra, missing = sorted(names - expected), sorted(expected - names)
        raise SystemExit(f"the sdist is not what git has; not expected: {extra}; missing: {missing}")


def main(file: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(file) as archive:
            check_contents({name.partition("/")[2] for name in archive.getnames()})
            archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        (tree,) = folder.glob("fastops-*")
        site = folder / "site"

        def run(*arguments: str, **environment: str) -> None:
            command = [sys.executable, *arguments]
            subprocess.run(command, cwd=tree, env=os.environ | {"FASTOPS_CUDA": "none"} | environment, check=True)

        run("-c", METADATA, str(folder / "metadata"))
        pip = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        run(*pip, "--no-build-isolation", "--no-deps", "--target", str(site), ".")
        # -S: the finder of an editable installation would come before the path.
        path = os.pathsep.join([str(site), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        run("-S", "-c", "import fastops; print(fastops.__path__)", PYTHONPATH=path)
        run("-S", "-m", "fastops.selftest", "--quick", "--device", "cpu", PYTHONPATH=path)


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
