"""How far the norms are from float64 on the CPU, beside PyTorch: python benchmarks/norm_accuracy.py [--columns 768]

For each level of the CPU kernels, each dtype, each norm and each kind of rows: the largest and the root mean square
error of the output and of the input's gradient, in ulps (fastops.selftest.accuracy says of what), ours and PyTorch's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from fastops import _C
from fastops.cases import CASES, DTYPES, Case
from fastops.cases.norms import torch_add_layer_norm, torch_add_rms_norm
from fastops.selftest.accuracy import evaluate, truth_of, ulps

ROWS: dict[str, Callable[[Tensor], object]] = {
    "random": lambda x: x,
    "first four 1.4": lambda x: x[:, :4].fill_(1.4),
    "first four 30": lambda x: x[:, :4].fill_(30),
    "first 64 1.4": lambda x: x[:, :64].fill_(1.4),
    "first half 0.7": lambda x: x[:, : x.shape[1] // 2].fill_(0.7),
    "+-1000 by turns": lambda x: x[:, ::2].add_(1000) is x[:, 1::2].sub_(1000),
    "10000 more": lambda x: x.add_(1e4),
}
TORCHS = {
    "layer_norm": torch.nn.functional.layer_norm,
    "rms_norm": torch.nn.functional.rms_norm,
    "add_layer_norm": torch_add_layer_norm,
    "add_rms_norm": torch_add_rms_norm,
}


def inputs(case: Case, kind: str, rows: int, n: int, dtype: torch.dtype) -> tuple[object, ...]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, n, generator=generator, dtype=torch.float64)
    ROWS[kind](x)
    x = x.to(dtype)
    residual = (torch.zeros_like(x),) * case.name.startswith("add_")  # the sum needs no rounding then
    parameters = [torch.randn(n, generator=generator).to(dtype) for _ in range(1 + case.name.endswith("layer_norm"))]
    return (x, *residual, (n,), *parameters, 1e-5)


def rms(out: Tensor, truth: Tensor) -> float:
    scale = truth.square().mean().sqrt() * torch.finfo(out.dtype).eps
    return ((out.double() - truth) / scale).square().mean().sqrt().item()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--columns", type=int, default=768)
    p.add_argument("--rows", type=int, default=1000)
    a = p.parse_args()
    cases = [case for case in CASES if case.name in TORCHS]
    print("largest / rms error in ulps, ours and (PyTorch's): output, input's gradient")
    for level in (level for level, missing in _C.cpu()["missing"].items() if not missing):
        _C.set_isa(level)
        for dtype in DTYPES:
            for kind in ROWS:
                for case in cases:
                    args = inputs(case, kind, a.rows, a.columns, dtype)
                    ours, theirs = evaluate(case.function, args), evaluate(TORCHS[case.name], args)
                    truth = truth_of(case, args, ours.outputs)
                    cells = []
                    for which in ("outputs", "gradients"):
                        mine, other, true = (getattr(e, which)[0] for e in (ours, theirs, truth))
                        cells.append(f"{ulps(mine, true):.3g} / {rms(mine, true):.2g}")
                        cells.append(f"({ulps(other, true):.3g} / {rms(other, true):.2g})")
                    name = str(dtype).removeprefix("torch.")
                    print(f"{level:7} {name:9} {kind:16} {case.name:15}", "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
