"""CUDA C++ to machine code at run time, by NVRTC. It asks neither a driver nor a GPU.

NVRTC is called through ctypes: its interface is a dozen C functions that have been the same since CUDA 11.1, and the
library is the one that a CUDA build of torch brings. cuda-bindings, which newer builds bring too, would be one more
thing to be missing under an older torch or conda, and one more import.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._load import by_conda
from .._remedy import TEGRA
from . import cache, cuda_libraries, includes
from .diagnostics import compile_error
from .errors import CompileError, NoCompiler

# Files that differ in every release of the runtime's headers, of CUB and of libcu++.
_MARKERS = ("cuda_fp16.h", "cuda_runtime_api.h", "cub/version.cuh", "cuda/std/__cccl/version.h", "cuda/std/version")
_INCLUDES = re.compile(r"(?m)^\s*(?:#|%:)\s*include|__has_include")


class Image(NamedTuple):
    """Machine code, and for each kernel that was asked for its name there."""

    cubin: bytes
    names: dict[str, str]


def compile(source: str, *, name: str, arch: str, options: Sequence[str] = (), kernels: Sequence[str] = ()) -> Image:
    """Compiles ``source``, or takes it from the cache.

    Args:
        name: of the op, for messages.
        arch: ``"sm_90"``; ``arch_of`` gives a device's.
        options: further ones of NVRTC's. Relative paths in them and in the source start from the current directory.
        kernels: name expressions, such as ``shift<float>``; an ``extern "C"`` kernel needs none.

    Raises:
        CompileError: with NVRTC's log, in which ``#line`` keeps the numbers of the user's own lines.
        NoCompiler: NVRTC is not installed.
    """
    path = _path(name)
    # Functions that a kernel calls need no __device__.
    given = ["--std=c++17", "--device-as-default-execution-space", *options]
    if not any(option.startswith(("--gpu-architecture", "-arch")) for option in options):
        given.insert(0, f"--gpu-architecture={arch}")
    parts = ["nvrtc", _identity(path), name, source, *given, "kernels", *kernels]
    if _INCLUDES.search(source) or any("include" in option for option in options):
        folders = include_folders()
        given += [f"--include-path={folder}" for folder in folders]
        parts += ["CUDA's headers", *_versions(folders)]
    before = includes.read(source, options)
    parts += ["files", *before.files]
    if before.all and (kept := _kept(parts)):
        return kept
    image = Image(*_open(path).compile(source, name, arch, given, kernels))
    if before.all and includes.read(source, options) == before:  # nothing was edited meanwhile
        cache.put(parts, json.dumps(image.names).encode() + b"\n" + image.cubin)
    return image


def _kept(parts: Sequence[str]) -> Image | None:
    names, _, cubin = (cache.get(parts) or b"").partition(b"\n")
    try:
        return Image(cubin, json.loads(names))
    except ValueError:  # there is no entry, or another text in place of the names
        return None


@functools.cache
def arch_of(device: torch.device | int | None = None) -> str:
    """What to compile for a CUDA device: its own architecture, or an older one of its family that NVRTC knows."""
    major, minor = torch.cuda.get_device_capability(device)
    return best_arch(10 * major + minor)


def best_arch(capability: int) -> str:
    """The same for a compute capability, 10 * major + minor."""
    known = supported_archs()
    family = [arch for arch in known if arch // 10 == capability // 10 and arch < capability and arch not in TEGRA]
    if capability in known:
        return f"sm_{capability}"
    if family and capability not in TEGRA:
        return f"sm_{max(family)}"
    raise CompileError(
        f"[kit] {_path('kit')} cannot compile for compute capability {capability // 10}.{capability % 10}, only for "
        + ", ".join(f"sm_{arch}" for arch in known)
    )


def supported_archs() -> list[int]:
    """The compute capabilities that this NVRTC compiles for."""
    path = _path("kit")
    return list(cache.lookup(["nvrtc archs", _identity(path)], lambda: bytes(_open(path).archs())))


def available() -> str | None:
    """The path of NVRTC, or None where it is not installed."""
    try:
        return _path("kit")
    except NoCompiler:
        return None


def include_folders() -> list[str]:
    """The folders of CUDA's own headers beside NVRTC: ``cuda_fp16.h``, cooperative groups, CUB, libcu++."""
    path = Path(_path("kit"))
    if not path.is_absolute():
        return []
    root, wheels = path.parents[1], path.parents[2]
    # Of CUDA 13's wheels and a toolkit, of conda, of CUDA 12's wheels; CUDA 13 has CUB and libcu++ in a folder within.
    roots = [root, *sorted(root.glob("targets/*")), *(wheels / part for part in ("cuda_runtime", "cuda_cccl"))]
    folders = [folder for each in roots for folder in (each / "include", each / "include" / "cccl")]
    return [str(folder) for folder in folders if any((folder / file).is_file() for file in _MARKERS)]


def _versions(folders: Sequence[str]) -> list[str]:
    """What tells one release of CUDA's headers from another."""
    files = (os.path.join(folder, file) for folder in folders for file in _MARKERS)
    return [cache.file_identity(file) for file in files if os.path.isfile(file)]


class _Nvrtc:
    def __init__(self, path: str):
        # NVRTC opens this one by its name alone and finds it in the process.
        for builtins in Path(path).parent.glob("libnvrtc-builtins.so.*") if os.path.isabs(path) else ():
            ctypes.CDLL(str(builtins))
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def archs(self) -> list[int]:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", archs)
        return list(archs)

    def compile(
        self, source: str, name: str, arch: str, options: Sequence[str], kernels: Sequence[str]
    ) -> tuple[bytes, dict[str, str]]:
        program = ctypes.c_void_p()
        text = ctypes.c_char_p(source.encode(errors="surrogatepass"))
        self._call("nvrtcCreateProgram", ctypes.byref(program), text, ctypes.c_char_p(name.encode()), 0, None, None)
        try:
            for kernel in kernels:
                self._call("nvrtcAddNameExpression", program, ctypes.c_char_p(kernel.encode()))
            given = (ctypes.c_char_p * len(options))(*(os.fsencode(option) for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), given)
            if status:
                said = self._bytes("nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace").strip()
                raise compile_error(name, f"for {arch} (NVRTC {self.version})", said or self._text(status), source)
            image = "nvrtcGetLTOIR" if "-dlto" in options else "nvrtcGetCUBIN"
            return self._bytes(image, program), {kernel: self._lowered(program, kernel) for kernel in kernels}
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _lowered(self, program: ctypes.c_void_p, kernel: str) -> str:
        found = ctypes.c_char_p()
        self._call("nvrtcGetLoweredName", program, ctypes.c_char_p(kernel.encode()), ctypes.byref(found))
        return (found.value or b"").decode()

    def _bytes(self, function: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"{function}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(function, program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status:
            raise CompileError(f"[kit] {function}: {self._text(status)}")

    def _text(self, status: int) -> str:
        return str(self._library.nvrtcGetErrorString(status).decode())


def _path(name: str) -> str:
    """The file of NVRTC, or the name by which the loader finds it."""
    majors = cuda_libraries.majors()
    if path := _found(majors):
        return path
    package = "nvidia-cuda-nvrtc" if majors[0] >= 13 else f"nvidia-cuda-nvrtc-cu{majors[0]}"
    pin = f"=={torch.version.cuda}.*" if torch.version.cuda else ""
    command = f'conda install "cuda-nvrtc{pin}"' if by_conda() else f'pip install "{package}{pin}"'
    raise NoCompiler(f"[{name}] NVRTC is missing, the compiler of CUDA kernels. {command}")


@functools.cache
def _found(majors: Sequence[int]) -> str | None:
    """Torch's own wheels first, then conda, a toolkit, the loader's paths."""
    toolkits = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for major in majors:
        folders = [*cuda_libraries.wheel_folders("cuda_nvrtc", major), f"{sys.prefix}/lib"]
        folders += [f"{toolkit}/lib64" for toolkit in toolkits if toolkit]
        file = f"libnvrtc.so.{major}"
        for path in (os.path.join(folder, file) for folder in folders):
            if os.path.isfile(path):
                return os.path.abspath(path)
        with contextlib.suppress(NoCompiler):
            _open(file)
            return file
    return None


@functools.cache
def _open(path: str) -> _Nvrtc:
    try:
        return _Nvrtc(path)
    except OSError as error:
        raise NoCompiler(f"[kit] NVRTC, the compiler of CUDA kernels, does not open: {error}") from error


def _identity(path: str) -> str:
    """What tells one NVRTC from another; of a file without opening it, which takes longer than the cache does."""
    return cache.file_identity(path) if os.path.isabs(path) else _open(path).version
