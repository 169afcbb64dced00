"""Opens the extension, or says in one error why it does not open and what to do."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from importlib import metadata

TORCH_FLOOR = (2, 10)
_FLOOR = ".".join(map(str, TORCH_FLOOR))
LIBRARY = "libfastops.so"  # beside the extension
DISTRIBUTIONS = ("fastops", "fastops-cu12", "fastops-cu13")

# What went wrong, kept for `python -m fastops.info`.
failure: BaseException | None = None


def open_extension() -> None:
    import torch  # its libraries must be in the process before the extension looks for them

    check_torch(torch.__version__)
    check_alone()
    # importlib, because `from . import` would blame a circular import for a missing file.
    importlib.import_module("._C", __package__)
    owners = installed()
    if len(owners) > 1:
        warnings.warn(_several(owners), stacklevel=3)


def check_alone() -> None:
    """Before the extension is opened: a second copy would define the operators again, which ends the process."""
    import torch

    spec = importlib.util.find_spec("._C", __package__)
    here = os.path.realpath(spec.origin) if spec and spec.origin else ""
    before = getattr(torch.ops.fastops, "extension", "")
    opened = {os.path.realpath(path) for path in torch.ops.loaded_libraries}
    if not before and os.path.join(os.path.dirname(here), LIBRARY) in opened:
        before = here  # its operators came by torch.ops.load_library
    if here and torch._C._jit_get_schemas_for_operator("fastops::square") and before != here:
        raise ImportError(
            f"[fastops] a process can hold one copy: {before or 'another'} is loaded, and {here} asked for"
        )
    if here:
        torch.ops.fastops.extension = here  # type: ignore[attr-defined]


def _install_torch() -> str:
    return f'conda install "pytorch>={_FLOOR}"' if by_conda() else f'pip install -U "torch>={_FLOOR}"'


def check_torch(version: str) -> None:
    """Before the extension is opened: under an older PyTorch it would die of an undefined symbol."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < TORCH_FLOOR:
        raise ImportError(f"[fastops] PyTorch is too old: found {version}, needs >= {_FLOOR}. {_install_torch()}")


def failed(error: BaseException) -> None:
    """Raise the diagnosis, except for `python -m fastops.info`, which imports this package before it can report."""
    global failure
    failure = error
    # While runpy looks for the module, sys.argv[0] is "-m" and orig_argv still has the module's name.
    asked = sys.orig_argv[-len(sys.argv) :][:1] if sys.argv[:1] == ["-m"] else []
    if asked in (["fastops.info"], ["-mfastops.info"]):
        return
    raise ImportError(diagnose(error), name="fastops") from error


def installed(folders: Iterable[str] | None = None) -> dict[str, str]:
    """Name and version of the distributions that own this package: those recorded beside its folder."""
    return {name: distribution.version for name, distribution in _owners(folders)}


def by_conda() -> bool:
    """Whether conda installed this package, whose records pip must not touch."""
    return any((distribution.read_text("INSTALLER") or "").strip() == "conda" for _, distribution in _owners())


def _owners(folders: Iterable[str] | None = None) -> Iterator[tuple[str, metadata.Distribution]]:
    beside = [os.path.dirname(folder) for folder in (package_folders() if folders is None else folders)]
    for name in DISTRIBUTIONS:
        for distribution in metadata.distributions(name=name, path=beside):
            yield name, distribution


def diagnose(error: BaseException) -> str:
    """What kept the extension from loading, and the command that mends it."""
    text = str(error)
    if text.startswith("[fastops]"):
        return text
    if getattr(error, "name", None) == "torch" and isinstance(error, ModuleNotFoundError):
        return f"[fastops] PyTorch is not installed. {_install_torch()}"
    if "torch" not in sys.modules:
        return f"[fastops] PyTorch itself does not import: {_said(error)}"
    if match := re.search(r"version `(GLIBC|GLIBCXX|CXXABI)_([\d.]+)' not found", text):
        return _library_too_old(match[1], match[2])
    # The loader's own errors carry the file's path, whose folders may well be called so.
    if "nanobind" in text and getattr(error, "path", None) not in extension_files():
        return _nanobind(error)
    owners = installed()
    if len(owners) > 1:
        return f"{_several(owners)}\nWhat failed: {_said(error)}"
    return _file(error, *next(iter(owners.items()), ("fastops", "")))


def _library_too_old(name: str, needed: str) -> str:
    library = "glibc" if name == "GLIBC" else "libstdc++"
    here = f" (here: {' '.join(platform.libc_ver())})" if name == "GLIBC" else ""
    version = next(iter(installed().values()), "")
    return (
        f"[fastops] {library} is too old: the extension needs {name}_{needed}{here}. "
        + ("Use a newer system, or build" if name == "GLIBC" else "Update it (conda: libstdcxx-ng), or build")
        + f" from source: pip install --no-cache-dir --no-binary fastops {_exactly('fastops', version)}"
    )


def _nanobind(error: BaseException) -> str:
    if "is not installed" in str(error):
        command = "conda install nanobind-backend" if by_conda() else "pip install nanobind-backend"
        return f"[fastops] nanobind-backend is missing, through which the extension loads. {command}"
    command = "conda install" if by_conda() else "pip install -U"
    return (
        f"[fastops] nanobind-backend, through which the extension loads, does not work: {_said(error)}\n"
        f"{command} --force-reinstall nanobind-backend"
    )


def _file(error: BaseException, distribution: str, version: str) -> str:
    """The extension's file is missing, foreign, damaged, or not of these Python files."""
    text, files = str(error), extension_files()
    again = f"pip install --force-reinstall --no-deps {_exactly(distribution, version)}"
    if by_conda():
        again = "conda install --force-reinstall fastops"
    here = f"{platform.python_implementation()} {platform.python_version()} on {_platform()}"
    if match := re.search(r"undefined symbol: (\S+)", text):
        torch = sys.modules["torch"]
        return (
            f"[fastops] PyTorch {torch.__version__} lacks the symbol {match[1]}, which the extension uses. "
            f"Is it complete, and not a build of its own? {_install_torch()}\n{again}"
        )
    if match := re.search(r"'_OpNamespace' 'fastops' object has no attribute '(\w+)'", text):
        return (
            f"[fastops] the extension has no operator {match[1]!r}: it was built from other sources than these Python "
            f"files. {again}, or in a source tree build it again"
        )
    if isinstance(error, ModuleNotFoundError) and error.name == "fastops._C":
        if not files:
            folders = ", ".join(package_folders())
            return f"[fastops] there is no extension file _C in {folders}. {again}, or build the source tree"
        endings = ", ".join(importlib.machinery.EXTENSION_SUFFIXES)
        listed = ", ".join(f"{os.path.basename(file)} ({made_for(file)})" for file in files)
        return f"[fastops] no extension file for {here}, which opens {endings}. There is: {listed}. {again}"
    libraries = [os.path.join(os.path.dirname(file), LIBRARY) for file in files]
    if path := next((path for path in (*files, *filter(os.path.exists, libraries)) if f"{path}: " in text), None):
        name, made = os.path.basename(path), made_for(path)
        if made != _platform():
            return f"[fastops] {name} is a file for another platform: {made}, not {here}. {again}"
        return f"[fastops] {name} is damaged: {_said(error)}. {again}"
    if match := re.search(r"(\S+\.so[.\d]*): cannot open shared object file", text):
        return f"[fastops] the library {match[1]} is missing, which the extension needs: {_said(error)}. {again}"
    return f"[fastops] the package does not import: {_said(error)}"


def _several(owners: dict[str, str]) -> str:
    torch = sys.modules.get("torch")
    cuda = str(getattr(getattr(torch, "version", None), "cuda", None) or "").split(".")[0]
    keep = next((name for name in (f"fastops-cu{cuda}", "fastops") if name in owners), list(owners)[-1])
    listed = ", ".join(f"{name} {version}" for name, version in owners.items())
    return (
        f"[fastops] {len(owners)} distributions own this package, each installed over the other: {listed}. Keep one:\n"
        f"  pip uninstall -y {' '.join(owners)}\n"
        f"  pip install {_exactly(keep, owners[keep])}"
    )


def _exactly(distribution: str, version: str) -> str:
    """For pip: the name alone may have another owner."""
    return f"{distribution}=={version}" if version else distribution


def made_for(path: str) -> str:
    """The platform that a shared library is for, by its header."""
    with open(path, "rb") as file:
        head = file.read(20)
    if head[:4] == b"\x7fELF" and len(head) == 20:
        machine = int.from_bytes(head[18:], "little")
        return "Linux " + {3: "i386", 62: "x86_64", 183: "aarch64"}.get(machine, f"(ELF machine {machine})")
    if head[:4] in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"):
        return "macOS"
    return "Windows" if head[:2] == b"MZ" else "not a shared library"


def _platform() -> str:
    return f"{platform.system()} {platform.machine()}"


def package_folders() -> list[str]:
    return list(sys.modules[__package__].__path__)


def extension_files() -> list[str]:
    files = []
    for folder in filter(os.path.isdir, package_folders()):
        names = sorted(n for n in os.listdir(folder) if re.fullmatch(r"_C\b.*\.(so|pyd|dylib|dll)", n))
        files += [os.path.join(folder, name) for name in names]
    return files


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
