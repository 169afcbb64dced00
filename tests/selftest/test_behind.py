"""The kernel that writes a call's tensors late, and tells the next one to start before."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from fastops.cases import RawCall
from fastops.selftest import behind


def test_who_does_not_wait_reads_nan(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind, "_CYCLES", 1_000_000_000)  # half a second
    if behind.writer_on(cuda) is None:
        pytest.skip("NVRTC or the driver does not load the kernel")
    values = [torch.randn(n, device=cuda).to(dtype) for n in (1, 7, 70001) for dtype in (torch.float32, torch.bfloat16)]
    values += [torch.arange(1, 99, device=cuda), torch.randn(4, 5, device=cuda).T, torch.randn(9, device=cuda)[1:]]
    assert len(values) == behind._MOST
    stream, read = torch.cuda.Stream(cuda), [torch.empty_like(x.contiguous()) for x in values]

    def read_there(tensors: Iterable[Tensor]) -> None:
        with torch.cuda.stream(stream):
            for into, x in zip(read, tensors, strict=True):
                into.copy_(x)

    read_there(x.contiguous() for x in values)  # what is used for the first time may wait for all kernels
    torch.cuda.synchronize(cuda)
    late = behind.just_written(RawCall("", (*values, 1e-5))).args
    time.sleep(0.1)  # until the memory holds NaN
    read_there(late[:-1])  # without a wait
    for value, x, too_early in zip(values, late, read, strict=False):
        assert torch.equal(x, value)
        nothing = torch.full_like(value, torch.nan if value.is_floating_point() else 0)
        assert torch.equal(too_early.cpu().nan_to_num(7), nothing.cpu().nan_to_num(7))
    assert late[-1] == 1e-5
    assert not any(x.data_ptr() == value.data_ptr() for x, value in zip(late, values, strict=False))


def test_without_nvrtc_ours_write(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of more tensors than the kernel has room for; on the CPU there is nobody else."""
    monkeypatch.setattr(behind, "writer_on", lambda device: None)
    x, index = torch.randn(5, 7, device=device), torch.arange(5, device=device)
    found = behind.just_written(RawCall("", (x, index, 2)))
    assert torch.equal(found.args[0], x)
    assert torch.equal(found.args[1], index)
    assert found.args[0].data_ptr() != x.data_ptr()
