"""``python contents.py PACKAGE [NAME]``: fills $PREFIX. The build scripts of the channel's packages run it.

It is run by the Python of the environment that has torch, whose installed files it copies; no index is asked.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from machine import GXX, PYTHON_MINOR, output, torch_folder

PREFIX = Path(os.environ["PREFIX"])
SITE = PREFIX / f"lib/python{PYTHON_MINOR}/site-packages"
# conda-forge has these in libtorch, and links to them in pytorch.
HEADERS = ("ATen", "c10", "torch")


def python() -> None:
    """The Python below the environment: its binary, its library, its headers."""
    binary = PREFIX / f"bin/python{PYTHON_MINOR}"
    copy(Path(sys.executable).resolve(), binary)
    for name in ("python3", "python"):
        (PREFIX / "bin" / name).symlink_to(binary.name)
    ignored = shutil.ignore_patterns("site-packages", "dist-packages", "test", "__pycache__", "*.a")
    shutil.copytree(sysconfig.get_path("stdlib"), PREFIX / f"lib/python{PYTHON_MINOR}", ignore=ignored)
    shutil.copytree(sysconfig.get_path("include"), PREFIX / f"include/python{PYTHON_MINOR}")
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        library = sysconfig.get_config_var("INSTSONAME")
        copy(Path(sysconfig.get_config_var("LIBDIR"), library), PREFIX / "lib" / library)
    SITE.mkdir()


def distribution(name: str, keep: tuple[str, ...] = ()) -> None:
    """An installed distribution, file by file."""
    found = metadata.distribution(name)
    for file in found.files or []:
        source = Path(os.path.normpath(found.locate_file(file)))
        if source.suffix == ".pyc" or str(file).startswith(keep or "\0"):
            continue
        target = copy(source, PREFIX / source.relative_to(sys.prefix))
        if target.parent.name == "bin":
            target.write_bytes(target.read_bytes().replace(f"#!{sys.prefix}/".encode(), f"#!{PREFIX}/".encode(), 1))


def libtorch() -> None:
    torch = torch_folder()
    for library in (torch / "lib").glob("*.so*"):
        if library.name != "libtorch_python.so":
            copy(library, PREFIX / "lib" / library.name)
    copy(torch / "bin/torch_shm_manager", PREFIX / "bin/torch_shm_manager")
    for name in HEADERS:
        shutil.copytree(torch / "include" / name, PREFIX / "include" / name)


def pytorch() -> None:
    """All else of torch, and links to where libtorch has its part, as conda-forge's pytorch has them."""
    distribution("torch", keep=("torch/lib/", "torch/bin/", "torch/include/", "torch/test/"))
    copy(torch_folder() / "lib/libtorch_python.so", PREFIX / "lib/libtorch_python.so")
    libraries = [path for path in (PREFIX / "lib").glob("lib*.so*") if (torch_folder() / "lib" / path.name).exists()]
    for path in [*libraries, PREFIX / "bin/torch_shm_manager", *(PREFIX / "include" / name for name in HEADERS)]:
        link = SITE / "torch" / path.relative_to(PREFIX)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(path, link.parent))


def runtime(library: str) -> None:
    """One of the compiler's own libraries, under the name that binaries ask for."""
    copy(Path(output(GXX, f"-print-file-name={library}")).resolve(), PREFIX / "lib" / library)


def copy(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(source, target))


if __name__ == "__main__":
    package, *names = sys.argv[1:]
    {f.__name__: f for f in (python, distribution, libtorch, pytorch, runtime)}[package](*names)
