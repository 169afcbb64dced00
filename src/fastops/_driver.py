"""What the NVIDIA driver says of itself and its GPUs, asked without PyTorch and without making a CUDA context."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*


@dataclass(frozen=True)
class Driver:
    """``version`` of the kernel module, newest ``cuda`` it runs, ``gpus`` as (name, compute capability), ``error``."""

    version: str = ""
    cuda: str = ""
    gpus: tuple[tuple[str, str], ...] = ()
    error: str = ""

    def __str__(self) -> str:
        if not self.cuda:
            return self.version or "none"
        return f"{self.version or 'of unknown version'}, for CUDA {self.cuda} and older"


def probe() -> Driver:
    version = _kernel_module()
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return Driver(version, error=f"no NVIDIA driver: {error}")
    try:
        number = ctypes.c_int()
        _call(library, "cuDriverGetVersion", ctypes.byref(number))
        cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    except (AttributeError, RuntimeError) as error:
        return Driver(version, error=str(error))
    try:
        return Driver(version, cuda, _gpus(library))
    except (AttributeError, RuntimeError) as error:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        return Driver(version, cuda, error=f"{error}{hint}")


def _gpus(library: ctypes.CDLL) -> tuple[tuple[str, str], ...]:
    count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    _call(library, "cuInit", 0)
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    found = []
    for index in range(count.value):
        _call(library, "cuDeviceGet", ctypes.byref(device), index)
        _call(library, "cuDeviceGetName", name, len(name), device)
        capability = []
        for attribute in (_MAJOR, _MINOR):
            _call(library, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
            capability.append(str(value.value))
        found.append((name.value.decode(errors="replace"), ".".join(capability)))
    return tuple(found)


def _call(library: ctypes.CDLL, function: str, *args: object) -> None:
    status = getattr(library, function)(*args)
    if status == 0:
        return
    text = ctypes.c_char_p()
    library.cuGetErrorString(status, ctypes.byref(text))
    raise RuntimeError(f"{function}: {(text.value or b'unknown error').decode()} ({status})")


def _kernel_module() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else ""
