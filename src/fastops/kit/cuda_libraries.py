"""Where CUDA's run-time compilers lie: first of all in torch's own wheels."""

from __future__ import annotations

import functools
import importlib.util

import torch


def majors() -> tuple[int, ...]:
    """The major versions of CUDA that will do: torch's; of a torch without CUDA any, the newest first."""
    cuda = torch.version.cuda
    return (int(cuda.split(".")[0]),) if cuda else (13, 12)


@functools.cache
def wheel_folders(package: str, major: int) -> list[str]:
    """The folders of libraries in NVIDIA's wheels, which name them by version since CUDA 13, by package before."""
    nvidia = importlib.util.find_spec("nvidia")
    wheels = list(nvidia.submodule_search_locations or ()) if nvidia else []
    return [f"{wheel}/{part}/lib" for wheel in wheels for part in (f"cu{major}", package)]
