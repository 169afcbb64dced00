"""Host time of calls on 16 numbers, where kernels take no time, beside PyTorch's.

Run as ``python benchmarks/host_time.py [cuda]``.

Rounds are interleaved and the best of each is kept, so that the ratios hold on a busy machine.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable
from functools import partial

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


def gradient(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, grad: torch.Tensor) -> object:
    return torch.autograd.grad(function(x), x, grad)


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.set_num_threads(1)
    x = torch.randn(16, device=device)
    leaf, weight, grad = x.clone().requires_grad_(), torch.ones_like(x), torch.ones_like(x)
    pairs = {
        "relu": (torch.relu, fastops.relu),
        "layer_norm": tuple(
            partial(f, normalized_shape=(16,), weight=weight) for f in (F.layer_norm, fastops.layer_norm)
        ),
    }
    print(f"host time in us, {device}, torch {torch.__version__}   torch  fastops  ratio")
    for name, functions in pairs.items():
        with torch.no_grad():
            a, b = microseconds(*(partial(f, x) for f in functions))
        print(f"{name + ', no gradient':45} {a:8.2f} {b:8.2f} {b / a:6.2f}")
        a, b = microseconds(*(partial(gradient, f, leaf, grad) for f in functions))
        print(f"{name + ', forward and backward':45} {a:8.2f} {b:8.2f} {b / a:6.2f}")


if __name__ == "__main__":
    main()
