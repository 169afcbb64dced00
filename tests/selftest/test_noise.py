"""The kernel that runs beside others, on a GPU."""

from __future__ import annotations

import pytest
import torch
from conftest import ON_CUDA

from fastops.kit import NoCompiler, cuda_kernel
from fastops.selftest import noise

DEVICE = torch.device("cuda", 0)
on_a_gpu = pytest.mark.parametrize("device", [pytest.param(DEVICE, marks=ON_CUDA)])


@on_a_gpu
def test_it_runs_beside_others(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_CYCLES", 2_000_000_000)  # a second
    launch = noise.noise_on.__wrapped__(device)
    own = torch.ones(1, device=device).mul_(2)  # what is used for the first time may wait for all kernels
    launch()
    assert own.mul_(2).item() == 4
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda.synchronize()
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) > 100  # it went on behind what was computed beside it


@on_a_gpu
def test_without_a_compiler(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NoCompiler("there is none")

    monkeypatch.setattr(cuda_kernel, "prepare", refuse)
    noise.noise_on.__wrapped__(device)()
