"""Strides of elementwise results: those of torch's own ops, for real and for fake tensors."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import fastops
from fastops import kit

Layout = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides


def random_layout(choose: random.Random, shape: list[int]) -> Layout:
    """Permuted, sliced, expanded, with any strides along dimensions of one element, or channels-last."""
    n = len(shape)
    order = choose.sample(range(n), n)
    t = torch.empty([shape[d] for d in order]).permute([order.index(d) for d in range(n)])
    d = choose.randrange(n) if n else 0
    kind = choose.choice(["permuted", "sliced", "expanded", "odd", "channels last"])
    if kind == "sliced" and n and shape[d]:
        t = torch.empty([2 * s if k == d else s for k, s in enumerate(shape)]).narrow(d, 0, shape[d])
    elif kind == "expanded" and n and shape[d]:
        t = t.narrow(d, 0, 1).expand(shape)
    elif kind == "odd":
        strides = [choose.choice([1, 2, 7, 77]) if s == 1 else k for s, k in zip(t.shape, t.stride(), strict=True)]
        return tuple(t.shape), tuple(strides)
    elif kind == "channels last" and n == 4:
        t = torch.empty(shape, memory_format=torch.channels_last)
    return tuple(t.shape), t.stride()


def layouts(seed: int) -> tuple[Layout, Layout, Layout]:
    """The first and the last of one shape, the second of one that broadcasts to it."""
    choose = random.Random(seed)
    sizes = [1, 1, 2, 3, 4] + ([0] if seed % 10 == 0 else [])
    shape = [choose.choice(sizes) for _ in range(choose.choice([0, 1, 2, 3, 4, 4, 5]))]
    smaller = [s if choose.random() < 0.7 else 1 for s in shape]
    if choose.random() < 0.3:
        smaller = smaller[choose.randrange(len(shape) + 1) :]
    return random_layout(choose, shape), random_layout(choose, smaller), random_layout(choose, shape)


KNOWN: list[tuple[Layout, ...]] = [
    (((1,), (2,)),) * 3,
    (((4, 1), (1, 7)),) * 3,
    (((2, 3, 4), (1, 8, 2)), ((3, 1), (1, 3)), ((2, 3, 4), (12, 4, 1))),
    (((4, 1, 3), (1, 4, 4)), ((1, 5, 3), (15, 1, 5)), ((4, 5, 3), (15, 3, 1))),
]

affine = kit.elementwise("affine(x)", "x + 1")
product = kit.elementwise("product(x, y)", "x * y + 1")
fused = kit.elementwise("fused(x, y, z)", "x + y * z")
PAIRS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], Callable[..., tuple[Any, ...]]]] = {
    "relu": (fastops.relu, torch.relu, lambda x, y, z: (x,)),
    "relu that keeps a mask": (lambda x: fastops.relu(x.requires_grad_()), torch.relu, lambda x, y, z: (x,)),
    "sigmoid": (fastops.sigmoid, torch.sigmoid, lambda x, y, z: (x,)),
    "square": (fastops.square, torch.square, lambda x, y, z: (x,)),
    "axpby": (fastops.axpby, torch.add, lambda x, y, z: (x, y)),
    "axpby, broadcast first": (fastops.axpby, torch.add, lambda x, y, z: (y, x)),
    "swiglu": (fastops.swiglu, torch.add, lambda x, y, z: (z, x.expand(z.shape))),
    "glu": (lambda x, z: fastops.glu(x, gate=z), torch.add, lambda x, y, z: (x.expand(z.shape), z)),
    "kit, one": (affine, torch.sigmoid, lambda x, y, z: (x,)),
    "kit, two": (product, torch.add, lambda x, y, z: (x, y)),
    "kit, three": (fused, torch.addcmul, lambda x, y, z: (x, y, z)),
}


def tensor(layout: Layout, device: torch.device) -> Tensor:
    return torch.empty_strided(*layout, device=device).fill_(0.5)


@pytest.mark.parametrize("name", PAIRS)
def test_strides_are_torchs(name: str, device: torch.device) -> None:
    ours, torchs, arguments = PAIRS[name]
    for example in [*KNOWN, *map(layouts, range(400))]:
        inputs = arguments(*(tensor(layout, device) for layout in example))
        constants = [x.detach() for x in inputs]
        expected = torchs(*constants).stride()
        assert ours(*inputs).stride() == expected, example
        with FakeTensorMode() as mode:
            fakes = [mode.from_tensor(x) for x in constants]
            of_torch = torchs(*fakes).stride()  # which differ from the real ones at some dimensions of one element
            assert ours(*fakes).stride() in (of_torch, expected), example


def test_more_dimensions_than_kernels_take(device: torch.device) -> None:
    for rank in (64, 65, 200):
        x = torch.randn(2, *[1] * (rank - 1), device=device)
        y = x.flatten()
        assert torch.allclose(product(x, x[0]).flatten(), y * y[0] + 1)
        assert torch.equal(fastops.axpby(x, x[0]).flatten(), y + y[0])
        assert fastops.relu(x).dim() == rank
