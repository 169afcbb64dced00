"""What the benchmark's tests share: a quick run, and the content of a file as of a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastops.bench import files, first, host, kernel, work
from fastops.selftest.report import environment

QUICK = ["--device", "cpu", "--op", "relu", "--quick", "--peers", "eager,liger", "--measure", "call,host"]


def content(**changes: Any) -> dict[str, Any]:
    """Of two implementations, and a third that refuses backward, as the benchmark writes it."""
    results = []
    for columns in (256, 1024):
        for direction in work.DIRECTIONS:
            for k, name in enumerate(("fastops", "eager", "quack")):
                where = ("layer_norm", "bf16", "cuda:0", 4096, columns, direction, name)
                if name == "quack" and direction != "forward":
                    results.append(kernel.Result(*where, refused="its layer_norm has no gradient"))
                    continue
                results.append(
                    kernel.Result(
                        *where,
                        microseconds=10.0 * (k + 1),
                        low=9.0 * (k + 1),
                        high=11.0 * (k + 1),
                        bytes=40_000_000,
                        gigabytes_per_second=4000 / (k + 1),
                        copy_gigabytes_per_second=4280.0,
                        share_of_copy=4000 / (k + 1) / 4280,
                        times_fastops=float(k + 1),
                        peak_bytes=2**20 * (k + 1),
                        sets=8,
                        cold=True,
                    )
                )
    hosts = [
        host.HostResult("layer_norm", "bf16", "cuda:0", direction, name, "", 8.0 * ratio, 7.5, ratio)
        for direction in host.DIRECTIONS
        for name, ratio in (("fastops", 1.0), ("eager", 1.25))
    ]
    firsts = [
        first.FirstResult("layer_norm", "bf16", "cuda:0", "fastops", "empty", "", 0.125, 0.1, 0.025),
        first.FirstResult("layer_norm", "bf16", "cuda:0", "compile", "empty", "", 9.5, 0.5, 9.0),
        first.FirstResult("layer_norm", "bf16", "cuda:0", "compile", "filled", "", 2.5, 0.5, 2.0),
    ]
    return {
        "format": files.FORMAT,
        "environment": environment(),
        "paths": {"cuda:0": "cuda"},
        "peers": {"eager": {"version": "torch"}, "quack": {"version": "1"}, "apex": {"absent": "not installed: how"}},
        "memory_recycled": True,
        "seconds": 12.0,
        "results": [dataclasses.asdict(r) for r in results],
        "host": [dataclasses.asdict(r) for r in hosts],
        "first": [dataclasses.asdict(r) for r in firsts],
    } | changes
