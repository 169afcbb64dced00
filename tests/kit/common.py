"""What the kit's tests share."""

from __future__ import annotations

import pytest
import torch

from fastops.kit import compiler, nvrtc

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
HALVES = DTYPES[:2]

needs_compiler = pytest.mark.skipif(compiler.available() is None, reason="there is no C++ compiler")
needs_nvrtc = pytest.mark.skipif(nvrtc.available() is None, reason="NVRTC is not installed")
