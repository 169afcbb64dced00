"""Host time of a call on 16 numbers beside PyTorch's own, where the kernel takes no time: python benchmarks/host_time.py

Rounds are interleaved and the best of each is kept, so that the ratios hold on a busy machine. Needs nothing but fastops.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable

import torch
import torch.nn.functional as F

import fastops

ROUNDS, CALLS = 15, 4000


def microseconds(*functions: Callable[[], object]) -> list[float]:
    best = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for k, function in enumerate(functions):
            best[k] = min(best[k], timeit.timeit(function, number=CALLS) / CALLS * 1e6)
    return best


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.set_num_threads(1)
    x = torch.randn(16, device=device)
    leaf, weight, grad = x.clone().requires_grad_(), torch.ones_like(x), torch.ones_like(x)
    pairs = {
        "relu": (torch.relu, fastops.relu),
        "layer_norm": (
            lambda x: F.layer_norm(x, (16,), weight, weight),
            lambda x: fastops.layer_norm(x, (16,), weight, weight),
        ),
    }
    print(f"host time in us, {device}, torch {torch.__version__}   torch  fastops  ratio")
    for name, (theirs, ours) in pairs.items():
        with torch.no_grad():
            a, b = microseconds(lambda: theirs(x), lambda: ours(x))
        print(f"{name + ', no gradient':45} {a:8.2f} {b:8.2f} {b / a:6.2f}")
        a, b = microseconds(
            lambda: torch.autograd.grad(theirs(leaf), leaf, grad), lambda: torch.autograd.grad(ours(leaf), leaf, grad)
        )
        print(f"{name + ', forward and backward':45} {a:8.2f} {b:8.2f} {b / a:6.2f}")


if __name__ == "__main__":
    main()
