"""What a GPU is waited for once for: tensors with their values, whatever their dtypes and strides, and flags."""

from __future__ import annotations

import torch

from fastops.selftest.together import first_set, on_cpu


def test_values_shapes_and_dtypes(device: torch.device) -> None:
    whole = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    dtypes = (torch.bool, torch.bfloat16, torch.float64, torch.uint8, torch.complex128, torch.float32, torch.int64)
    expected = [whole.to(dtype)[:, k % 3 :] for k, dtype in enumerate(dtypes)]
    expected += [whole[0, 0], whole[:0], whole.mT, whole[:1].expand(3, 5)]
    found = on_cpu(x.to(device) for x in expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.is_cpu
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b)
    assert on_cpu([]) == ()
    assert not on_cpu([whole.to(device).requires_grad_()])[0].requires_grad


def test_the_first_flags_that_are_set(device: torch.device) -> None:
    yes, no = (torch.tensor(value, device=device) for value in (True, False))
    flags = [("a", "first", no), ("a", "second", yes), ("a", "third", yes), ("b", "fourth", no)]
    assert first_set(flags) == {"a": "second"}
    assert first_set([]) == {}
