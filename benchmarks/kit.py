"""What the kit's ops cost, beside a copy, fastops' own ops and plain PyTorch; see README.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import fastops
from fastops import kit
from fastops.bench.cuda_graph import Replay
from fastops.bench.memory import recycled
from fastops.bench.problems import LEAST_BYTES, sets_that_overflow
from fastops.bench.timing import Sampler, interleaved, repeated
from fastops.selftest.report import environment

SWISH = ("swish(x, *, beta=1.0)", "x / (1 + exp(-beta * x))")
PROCESSES = 2  # of each kind, for the time to the first result: the better one counts

# import, definition and first call, beyond torch's own import, the GPU's context and torch's first kernel there.
FIRST = """
import sys, time
import torch
x = torch.ones(8, 1024, device=sys.argv[1])
x.add(1).sum().item()
start = time.perf_counter()
from fastops import kit
imported = time.perf_counter()
kit.elementwise(sys.argv[2], sys.argv[3])(x)
if x.is_cuda:
    torch.cuda.synchronize()
print(imported - start, time.perf_counter() - imported)
"""

Calls = Callable[[], list[Callable[[], object]]]  # one for each input set


def sampler(calls: Calls, device: torch.device) -> Sampler:
    """Of one call: on a GPU of its kernels, on the CPU of the whole."""
    if device.type == "cpu":
        return repeated(calls()[0], 2e-3)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):  # autograd runs a node where its forward ran
        made = calls()
    return Replay(made, stream)


def sets(size: int, device: torch.device) -> int:
    """How many inputs of so many bytes overflow a GPU's cache."""
    if device.type == "cpu":
        return 1
    cache: int = torch.cuda.get_device_properties(device).L2_cache_size
    return sets_that_overflow(size, max(LEAST_BYTES, 3 * cache))[0]


def copies(size: int, device: torch.device) -> list[Callable[[], object]]:
    """Copies that read and write ``size`` bytes in all, by a kernel, not by the copy engine."""
    sources = [torch.randn(size // 8, device=device) for _ in range(sets(size, device))]
    return [partial(torch.mul, x, 1.0, out=torch.empty_like(x)) for x in sources]


def forwards(op: Callable[[Tensor], Tensor], x: Callable[[], Tensor], count: int) -> list[Callable[[], object]]:
    return [partial(torch.no_grad()(op), x()) for _ in range(count)]


def backwards(op: Callable[[Tensor], Tensor], x: Callable[[], Tensor], count: int) -> list[Callable[[], object]]:
    leaves = [x().requires_grad_() for _ in range(count)]
    return [partial(torch.autograd.grad, op(leaf), leaf, x(), retain_graph=True) for leaf in leaves]


def bandwidth(device: torch.device) -> Iterator[dict[str, Any]]:
    """Contiguous swish over a copy of as many bytes; forward moves x and y, backward x, dy and dx."""
    swish = kit.elementwise(*SWISH)
    for dtype in (torch.float32, torch.bfloat16):
        for megabytes in (8, 64, 256, 512) if device.type == "cuda" else (8, 64):
            size = megabytes * 10**6
            x = partial(torch.randn, size // dtype.itemsize, dtype=dtype, device=device)
            for direction, make, moved in (("forward", forwards, 2 * size), ("backward", backwards, 3 * size)):
                count = sets(moved, device)
                ours = sampler(partial(make, swish, x, count), device)
                copy = sampler(partial(copies, moved, device), device)
                times = interleaved({"kit": ours, "copy": copy})
                yield {
                    "dtype": str(dtype),
                    "megabytes": megabytes,
                    "direction": direction,
                    "microseconds": times["kit"].median * 1e6,
                    "spread": times["kit"].spread,
                    "gigabytes_per_second": moved / times["kit"].median / 1e9,
                    "copy_gigabytes_per_second": moved / times["copy"].median / 1e9,
                    "of_copy": times["copy"].median / times["kit"].median,
                }
                del ours, copy


def host(device: torch.device) -> Iterator[dict[str, Any]]:
    """One thread, 16 numbers: x·x by the kit, by fastops and by torch; kernels are started and awaited after."""
    ops = {"kit": kit.elementwise("square(x)", "x * x"), "fastops": fastops.square, "torch": torch.square}
    x = torch.randn(16, device=device, requires_grad=True)
    after = partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for direction in ("forward", "forward+backward"):
        with torch.set_grad_enabled(direction != "forward"):
            calls = {
                name: partial(op, x) if direction == "forward" else partial(step, op, x) for name, op in ops.items()
            }
            times = interleaved({name: repeated(call, 5e-3, after=after) for name, call in calls.items()})
        found = {f"{name}_microseconds": t.best * 1e6 for name, t in times.items()}
        yield {"direction": direction, **found, "over_fastops": times["kit"].best / times["fastops"].best}
    torch.set_num_threads(threads)


def step(op: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(op(*inputs), inputs, inputs[0].detach())  # a gradient that takes no kernel


def first(device: torch.device) -> Iterator[dict[str, Any]]:
    """From definition to the first result in a fresh process: with an empty cache, and with what that one left."""
    seconds: dict[str, list[tuple[float, ...]]] = {"empty": [], "filled": []}
    for _ in range(PROCESSES):
        with tempfile.TemporaryDirectory() as folder:
            for found in seconds.values():
                command = [sys.executable, "-c", FIRST, str(device), *SWISH]
                variables = os.environ | {"FASTOPS_CACHE_DIR": folder}
                done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
                found.append(tuple(map(float, done.stdout.split())))
    for cache, found in seconds.items():
        imported, called = map(min, zip(*found, strict=True))
        yield {"cache": cache, "import_seconds": imported, "seconds": called}


def compiled(device: torch.device) -> Iterator[dict[str, Any]]:
    """A chain of three under torch.compile: of the kit's ops, and of torch's."""
    scale, swish, relu = (
        kit.elementwise(*op) for op in (("scale(x, y)", "x * y"), SWISH, ("relu(x)", "x > 0 ? x : 0"))
    )
    chains: dict[str, Callable[..., Tensor]] = {
        "kit": lambda x, y: relu(swish(scale(x, y))),
        "torch": lambda x, y: torch.relu(x * y / (1 + torch.exp(-(x * y)))),
    }
    size = 64 * 10**6 if device.type == "cuda" else 4 * 10**6
    for direction, times_read in (("forward", 3), ("forward+backward", 8)):
        samplers = {}
        for name, chain in chains.items():
            made = torch.compile(chain, fullgraph=True, dynamic=False)
            run = partial(step, made) if direction != "forward" else torch.no_grad()(made)

            def calls(run: Callable[..., Any] = run, moved: int = times_read * size) -> list[Callable[[], object]]:
                needed = sets(moved, device)
                inputs = [torch.randn(2, size // 4, device=device).unbind() for _ in range(needed)]
                return [partial(run, *(x.clone().requires_grad_() for x in pair)) for pair in inputs]

            samplers[name] = sampler(calls, device)
        times = interleaved(samplers)
        found = {f"{name}_microseconds": t.median * 1e6 for name, t in times.items()}
        yield {"direction": direction, **found, "over_torch": times["kit"].median / times["torch"].median}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the environment and every result")
    options = parser.parse_args()
    device = torch.device(options.device)
    start = time.perf_counter()
    content: dict[str, Any] = {"environment": environment(), "device": str(device)}
    with recycled():
        for measure in (bandwidth, host, first, compiled):
            content[measure.__name__] = []
            for result in measure(device):
                content[measure.__name__].append(result)
                print(measure.__name__, *(f"{k} {v:.4g}" if isinstance(v, float) else v for k, v in result.items()))
    content["seconds"] = round(time.perf_counter() - start, 1)
    if options.json:
        options.json.write_text(json.dumps(content, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
