"""Numba and its compiler for CUDA, which are extras; where they are missing, the error that names the command."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C
from .errors import NoCompiler


def numba(name: str) -> Any:
    try:
        import numba  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise _missing(name, error, "numba") from None
    return numba


def numba_cuda(name: str) -> Any:
    try:
        # With it numba.cuda is this one, not Numba's old.
        import numba_cuda  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: F401
        from numba import cuda
    except ImportError as error:
        raise _missing(name, error, f"numba-cu{(torch.version.cuda or '13').partition('.')[0]}") from None
    return cuda


def _missing(name: str, error: ImportError, extra: str) -> NoCompiler:
    return NoCompiler(f'[{name}] Numba is missing ({error}). pip install "{_C.build_info()["distribution"]}[{extra}]"')
