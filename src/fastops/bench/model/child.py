"""One implementation of one model, in a process of its own.

    step = forward, loss, backward, AdamW, gradients set to None

The clock of the first step starts when the model is there and ends with that step: the import of the implementation,
what it does to the model and what it compiles. The first steps' losses are kept; they are the warm-up too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .. import memory
from ..timing import Statistics, repeated
from ..work import said
from .architectures import ARCHITECTURES, batch_of, build
from .implementations import IMPLEMENTATIONS, is_ours

ROUNDS = 7
AT_LEAST = {"cuda": 0.5, "cpu": 0.05}  # seconds of a round
RATE = 3e-4


def child(text: str, fastops_import_seconds: float) -> None:
    """Answers in one line of JSON."""
    request = json.loads(text)
    try:
        found = _measured(request, fastops_import_seconds)
    except Exception as error:  # whatever an implementation raises is its refusal
        found = {"refused": said(error)}
    print("\n" + json.dumps(found))


def _measured(request: dict[str, Any], fastops_import_seconds: float) -> dict[str, Any]:
    arch, name, device = request["arch"], request["implementation"], torch.device(request["device"])
    size, dtype = ARCHITECTURES[arch].sizes[request["size"]], getattr(torch, request["dtype"])
    import transformers  # noqa: F401 - not counted, and the same for all

    if device.type == "cuda":
        torch.cuda.set_device(device)

    before = memory.resident_peak()
    model = build(arch, size, device, dtype)
    batch = batch_of(arch, size, device, dtype)
    clock = partial(_clock, device)
    start = clock()
    made = IMPLEMENTATIONS[name](model, ARCHITECTURES[arch])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=device.type == "cuda")

    def step() -> torch.Tensor:
        loss: torch.Tensor = made.call(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    losses = [step().item()]
    first = clock() - start + (fastops_import_seconds if is_ours(name) else 0.0)
    losses += [step().item() for _ in range(request["steps"] - 1)]
    step_times, step_peak = _timed(step, device, clock)
    if device.type == "cpu":
        after = memory.resident_peak()
        step_peak = None if after is None or before is None else after - before
    optimizer.state.clear()
    model.eval()
    inputs = {key: value for key, value in batch.items() if key != "labels"}

    @torch.no_grad()
    def forward() -> torch.Tensor:
        logits: torch.Tensor = made.call(**inputs).logits
        return logits

    forward_times, forward_peak = _timed(forward, device, clock)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "first_seconds": first,
        "losses": losses,
        "swapped": made.swapped,
        "left": made.left,
        "step": _of(step_times, step_peak),
        "forward": _of(forward_times, forward_peak),
    }


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _timed(
    call: Callable[[], object], device: torch.device, clock: Callable[[], float]
) -> tuple[Statistics, int | None]:
    """Seconds of one call, and the most bytes of torch's CUDA allocator meanwhile, model and all; None on the CPU."""
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    sample = repeated(call, AT_LEAST[device.type], clock)
    times = Statistics.of([sample() for _ in range(ROUNDS)])
    return times, torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def _of(times: Statistics, peak: int | None) -> dict[str, Any]:
    return {"microseconds": times.median * 1e6, "low": times.low * 1e6, "high": times.high * 1e6, "peak_bytes": peak}
