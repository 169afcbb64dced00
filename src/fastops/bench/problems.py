"""The inputs that are timed: shapes, as many sets of random tensors as a cache cannot hold, incoming gradients."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..cases import Case, Make
from ..selftest.accuracy import tensors_of
from ..selftest.target import NotThereError
from .traffic import distinct_bytes

Shape = tuple[int, ...]  # rows, columns; of some ops rows, in_features, columns

SHAPES: dict[str, tuple[Shape, ...]] = {
    "cuda": ((32768, 256), (16384, 1024), (8192, 4096), (4096, 16384), (1024, 65536), (512, 131072)),
    "cpu": ((4096, 256), (1024, 1024), (256, 4096), (64, 16384)),
}
QUICK: dict[str, tuple[Shape, ...]] = {"cuda": ((16384, 1024), (4096, 16384)), "cpu": ((1024, 256), (256, 1024))}

# Whose time is matrix products'. Theirs are shapes of language models' heads: tokens, features, classes.
LINEAR_LOSSES = ("linear_cross_entropy", "linear_log_prob")
HEADS: dict[str, tuple[Shape, ...]] = {
    "cuda": ((8192, 2048, 128256), (8192, 4096, 128256), (16384, 1024, 151936), (4096, 4096, 32000)),
    "cpu": ((512, 256, 8192), (1024, 512, 32000)),
}
QUICK_HEADS: dict[str, tuple[Shape, ...]] = {
    "cuda": ((2048, 2048, 128256), (4096, 1024, 32000)),
    "cpu": ((128, 128, 2048), (64, 64, 8192)),
}

# Between the layers of language models' feed-forward blocks: tokens and features, of training and of generation.
GATED_UNITS = ("swiglu", "geglu", "reglu", "glu")
BLOCKS: dict[str, tuple[Shape, ...]] = {
    "cuda": ((8192, 2816), (8192, 11008), (8192, 14336), (1, 14336), (16, 14336), (64, 14336)),
    "cpu": ((512, 2816), (64, 11008)),
}
QUICK_BLOCKS: dict[str, tuple[Shape, ...]] = {"cuda": ((8192, 11008), (16, 14336)), "cpu": ((128, 2816), (16, 11008))}

# Of attention: tokens, heads of the queries, and their size; of training and of generation.
ROTARY = ("rope", "qk_norm_rope")
ATTENTION: dict[str, tuple[Shape, ...]] = {
    "cuda": ((16384, 32, 128), (8192, 64, 128), (1, 32, 128), (16, 32, 128), (64, 32, 128)),
    "cpu": ((512, 32, 128), (2048, 8, 64)),
}
QUICK_ATTENTION: dict[str, tuple[Shape, ...]] = {
    "cuda": ((16384, 32, 128), (16, 32, 128)),
    "cpu": ((128, 32, 128), (512, 8, 64)),
}

# Of operators that have their own, all and those of a quick run.
OF_OPS = {
    **dict.fromkeys(LINEAR_LOSSES, (HEADS, QUICK_HEADS)),
    **dict.fromkeys(GATED_UNITS, (BLOCKS, QUICK_BLOCKS)),
    **dict.fromkeys(ROTARY, (ATTENTION, QUICK_ATTENTION)),
}

LEAST_BYTES = 300_000_000
MOST_SETS = 256


class DeviceMake(Make):
    """Random numbers made where they are used: hundreds of megabytes, whose values need not be those of the tests."""

    def _random(self, shape: tuple[int, ...], scale: float, shift: float, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype).mul_(scale).add_(shift)


@dataclass(frozen=True)
class InputSet:
    """Arguments of the public function and one incoming gradient for each of its outputs."""

    args: tuple[Any, ...]
    incoming: tuple[Tensor, ...]
    constants: tuple[int, ...] = ()  # arguments that have no gradient


def parse_shapes(text: str) -> list[Shape]:
    """``32768x256,16x32x128``."""
    shapes = []
    for word in text.split(","):
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", word.strip()):
            raise NotThereError(
                "shapes must be <rows>x<columns> or <rows>x<in_features>x<columns>, joined by commas, such as "
                f"8192x4096, got {word!r}"
            )
        shapes.append(tuple(map(int, word.split("x"))))
    return shapes


def check_shapes(case: Case, shapes: Iterable[Shape]) -> None:
    for shape in shapes:
        if len(shape) == 3 and not case.in_features:
            raise NotThereError(
                f"{case.name} has no in_features: its shapes are <rows>x<columns>, got {spelled(shape)}"
            )


def default_shapes(case: Case, device: torch.device, quick: bool) -> list[Shape]:
    """The op's own, or those of the device's list whose parameters are no larger than the data: not 131072 squared.

    Where none is: the first one's numbers in more and shorter rows.
    """
    if case.name in OF_OPS:
        return list(OF_OPS[case.name][quick][device.type])
    shapes = (QUICK if quick else SHAPES)[device.type]
    rows, n = shapes[0]
    fitting: list[Shape] = [(rows, n) for rows, n in shapes if _largest(case, (rows, n)) <= rows * n]
    return fitting or [(4 * rows, n // 4)]


def _largest(case: Case, shape: Shape) -> int:
    return max(t.numel() for t in _sizes(case, shape))


def sets_needed(case: Case, dtype: torch.dtype, device: torch.device, shape: Shape) -> tuple[int, bool]:
    """How many input sets together overflow a GPU's cache, and whether the most that are made do.

    On the CPU it is one set, and never cold.
    """
    if device.type != "cuda":
        return 1, False
    wanted = max(LEAST_BYTES, 3 * torch.cuda.get_device_properties(device).L2_cache_size)
    return sets_that_overflow(distinct_bytes(_sizes(case, shape, dtype)), wanted)


def sets_that_overflow(set_bytes: int, wanted: int) -> tuple[int, bool]:
    needed = max(2, -(-wanted // set_bytes))
    return min(needed, MOST_SETS), needed <= MOST_SETS


def make_sets(case: Case, dtype: torch.dtype, device: torch.device, shape: Shape, sets: int) -> list[InputSet]:
    make = DeviceMake(device, dtype)
    found: list[InputSet] = []
    for _ in range(sets):
        args = case.problem(make, *shape)
        if not found:
            with torch.no_grad():
                outputs = [(out.shape, out.dtype) for out in as_tuple(case.function(*args))]
        found.append(InputSet(args, tuple(_incoming(make, *output) for output in outputs), case.constants))
    return found


def _incoming(make: Make, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Random; of a single loss 1, as of ``loss.backward()``, for which some peers leave work out."""
    return make(*shape, dtype=dtype) if shape else torch.ones((), dtype=dtype, device=make.device)


def as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def spelled(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _sizes(case: Case, shape: Shape, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """The tensor arguments without memory."""
    return tensors_of(case.problem(DeviceMake("meta", dtype), *shape))
