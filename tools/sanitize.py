"""Runs every kernel on the GPU over sizes and dtypes, and little else, for compute-sanitizer: ``make sanitize``.

Names of ops behind it choose them; ``kit`` stands for what NVRTC compiles for a formula and a reduction. ``make``
has torch's kernels watched by initcheck alone, which has to know what they write. In the norms' backward over long
rows racecheck reports reads beside bulk copies of a cluster, whose order comes from sums that blocks send each other
(st.async), and sums of teams that a __syncthreads() parts: it follows neither those messages nor, it seems, named
barriers beside that one.

Under memcheck, where each tensor has memory of its own, the card's fills up: 36 to 45 GB in the first 100 s of an
operator. So name operators, and run no two beside each other.

Values are the selftest's affair.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import torch

from fastops import kit
from fastops.cases import CASES, Make, RawCall, misaligned
from fastops.selftest.margins import raw_calls, results

# Rows shared by a block's warps, blocks that walk over several rows; columns below and above each kernel's reach,
# of whole words and not.
SIZES = (
    (1, 1),
    (3, 7),
    (5, 64),
    (1100, 40),
    (130, 300),
    (130, 1024),
    (130, 1500),
    (150, 12288),
    (150, 40000),
    (1100, 12288),
    (1100, 16384),
    (1100, 20480),
    (1100, 32768),
    (37, 769),
    (9, 1024),
    (2000, 136),
    (3001, 512),
    (3001, 1024),
    (5, 4097),
    (3, 8192),
    (41, 61),
    (9, 101),
    (7, 203),
    (5, 403),
    (5, 701),
    (5, 1500),
    (5, 1501),
    (5000, 61),
    (3001, 201),
    (2200, 769),
    (3, 16392),
    (3, 16396),
    (3, 16391),
    (300, 5000),
    (70, 40000),
    (20, 131072),
    (3, 131080),
)


# Of the kit: whole vectors and not, more dimensions than one; reduced along dimensions with many numbers, and with few.
SHAPES = ((1,), (8,), (1001,), (37, 769), (1100, 40), (3, 5, 7, 11))
REDUCED = (((300, 33), 1), ((40, 4099), -1), ((3, 200001), 1), ((5000, 70), 0), ((9, 65, 130), (0, 2)))


class OnTheCard(Make):
    """Numbers that the card draws: 10^7 of the CPU's take a second, and under a sanitizer many."""

    def _random(self, shape: tuple[int, ...], scale: float, shift: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=self.device) * scale + shift


def asked_for(name: str) -> bool:
    return name in sys.argv[1:] or len(sys.argv) == 1


def of_kernels() -> Iterator[RawCall]:
    for case in (case for case in CASES if asked_for(case.name)):
        for dtype in case.dtypes:
            yield from (call for call, _ in raw_calls(case, OnTheCard("cuda", dtype), quick=False))
            for rows, n in SIZES:
                for call in case.raw(OnTheCard("cuda", dtype), rows, n):
                    yield call
                    yield call.with_args(tuple(misaligned(x) if isinstance(x, torch.Tensor) else x for x in call.args))


def of_the_kit() -> Iterator[Callable[[], object]]:
    if not asked_for("kit"):
        return

    def with_gradients(op: Callable[..., torch.Tensor], *tensors: torch.Tensor, **options: object) -> None:
        torch.autograd.grad(op(*(x.requires_grad_() for x in tensors), **options).sum(), tensors)

    gate = kit.elementwise("gate(x, y, *, beta=1.0)", "x / (1 + exp(-beta * y))")
    norm = kit.reduction("norm(x)", map="x * x", post="sqrt(a)")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        make = OnTheCard("cuda", dtype)
        for shape in SHAPES:
            x, y = make(*shape), make(*shape)
            for pair in (
                (x, y),
                (misaligned(x), y),
                (x, make(1)),
                (make(*shape[::-1]).permute(*range(x.dim())[::-1]), y),
            ):
                yield partial(with_gradients, gate, *pair)
        for shape, dim in REDUCED:
            for tensor in (make(*shape), misaligned(make(*shape)), make(*shape)[..., ::2]):
                yield partial(with_gradients, norm, tensor, dim=dim)


def main() -> int:
    if not torch.cuda.is_available():
        print("needs a CUDA GPU", file=sys.stderr)
        return 2
    if unknown := {*sys.argv[1:]} - {case.name for case in CASES} - {"kit"}:
        print(f"there is no {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    calls = 0
    for call in chain((partial(results, call) for call in of_kernels()), of_the_kit()):
        call()
        calls += 1
    torch.cuda.synchronize()
    print(f"{calls} calls on {torch.cuda.get_device_name()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
