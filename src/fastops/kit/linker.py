"""nvJitLink: intermediate code of several compilers to machine code, with calls between them inlined. Needs no GPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import cache, cuda_libraries
from .errors import CompileError, NoCompiler

_ANY_INPUT = 10  # it reads what each one is


def link(images: Sequence[bytes], *, name: str, arch: str) -> bytes:
    """Machine code of ``images``, which were compiled for link-time optimisation, for ``arch`` (``"sm_90"``)."""
    path = _found()
    if path is None:
        raise NoCompiler(f"[{name}] nvJitLink is missing, which links CUDA code. pip install nvidia-nvjitlink")
    return cache.lookup(
        ["nvjitlink", cache.file_identity(path), arch, *images], lambda: _link(path, images, name, arch)
    )


@functools.cache
def _found() -> str | None:
    """torch's own wheels: every CUDA build of torch brings it."""
    files = (
        Path(folder, f"libnvJitLink.so.{major}")
        for major in cuda_libraries.majors()
        for folder in cuda_libraries.wheel_folders("nvjitlink", major)
    )
    return next((str(file) for file in files if file.is_file()), None)


def _link(path: str, images: Sequence[bytes], name: str, arch: str) -> bytes:
    library = ctypes.CDLL(path)
    handle = ctypes.c_void_p()

    def call(function: str, *arguments: Any) -> None:
        if status := getattr(library, function)(*arguments):
            raise CompileError(f"[{name}] {function} failed with status {status}: {log()}")

    def log() -> str:
        size = ctypes.c_size_t()
        if not handle or library.nvJitLinkGetErrorLogSize(handle, ctypes.byref(size)) or not size.value:
            return "it says nothing more"
        text = ctypes.create_string_buffer(size.value)
        library.nvJitLinkGetErrorLog(handle, text)
        return text.value.decode(errors="replace").strip()

    options = (ctypes.c_char_p * 2)(b"-lto", f"-arch={arch}".encode())
    call("nvJitLinkCreate", ctypes.byref(handle), ctypes.c_uint32(len(options)), options)
    try:
        for k, image in enumerate(images):
            label = ctypes.c_char_p(f"{name}.{k}".encode())
            call("nvJitLinkAddData", handle, _ANY_INPUT, ctypes.c_char_p(image), ctypes.c_size_t(len(image)), label)
        call("nvJitLinkComplete", handle)
        size = ctypes.c_size_t()
        call("nvJitLinkGetLinkedCubinSize", handle, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        call("nvJitLinkGetLinkedCubin", handle, cubin)
        return cubin.raw
    finally:
        library.nvJitLinkDestroy(ctypes.byref(handle))
