"""The one table of ops, which tests, selftest and benchmark read: a row per public function.

A row is data: the function, what it must equal, the inputs to try, the errors allowed and the inputs to time. Adding an
op adds a row; the files beside this one have the inputs, family by family.
Inputs are rounded to the dtype first; the truth is ``plain`` on float64 copies of those very numbers.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from .. import ops, reference
from . import elementwise, linear, lltm, norms
from .case import Bound, Case, RawCall, Sample, bounds
from .inputs import (
    DTYPES,
    LAYOUTS,
    Layout,
    Make,
    channels_last,
    expanded,
    misaligned,
    row_slice,
    stepped,
    transposed,
)

__all__ = [
    "CASES",
    "DTYPES",
    "LAYOUTS",
    "Bound",
    "Case",
    "Layout",
    "Make",
    "RawCall",
    "Sample",
    "by_name",
    "channels_last",
    "expanded",
    "misaligned",
    "row_slice",
    "stepped",
    "transposed",
]

# The bounds are the largest errors measured over all samples, ISA levels and paths, rounded up by a quarter to a half.
# Those of gradients are far above those of kernels where the inputs are hard: sigmoid's saved output next to 1, rows of
# layer_norm with hardly any spread. Those of the norms' kernels in float64 come from a GPU, over 50021 rows of 7. GEMM
# libraries add in orders of their own, so that linear and lltm are measured on several and have more room; linear's
# kernels' own bounds do not. Kernels that return float32 beside half-precision inputs are counted in its ulps.
CASES: tuple[Case, ...] = (
    Case(
        name="square",
        function=ops.square,
        reference=reference.square,
        plain=lambda x: x * x,
        torch_op=torch.square,
        samples=elementwise.samples(scale=2.0),
        raw=elementwise.unary("square", saves_output=False),
        problem=elementwise.one_tensor,
        bounds=bounds(f16=(0.51, 0.51, 0.51), bf16=(0.51, 0.51, 0.51), f32=(0.51, 0.51, 0.51), f64=(0.51, 0.51, 0.51)),
        formula="x²",
        gradient="2·x·g",
        relative=True,
        relative_gradient=True,
    ),
    Case(
        name="relu",
        function=ops.relu,
        reference=reference.relu,
        plain=lambda x: torch.where(x <= 0, 0, x),
        torch_op=F.relu,
        samples=elementwise.samples(scale=2.0),
        raw=elementwise.relu_raw,
        problem=elementwise.one_tensor,
        bounds=bounds(f16=(0, 0, 0), bf16=(0, 0, 0), f32=(0, 0, 0), f64=(0, 0, 0)),
        formula="max(x, 0)",
        gradient="0 where x ≤ 0, else g",
        gradient_reads=elementwise.relu_gradient_reads,
        relative=True,
        relative_gradient=True,
    ),
    Case(
        name="sigmoid",
        function=ops.sigmoid,
        reference=reference.sigmoid,
        plain=torch.sigmoid,
        torch_op=torch.sigmoid,
        samples=elementwise.samples(scale=4.0),
        raw=elementwise.unary("sigmoid", saves_output=True),
        problem=elementwise.one_tensor,
        bounds=bounds(f16=(0.51, 9, 0.51), bf16=(0.51, 9, 0.51), f32=(2, 24, 2), f64=(2.5, 20, 2)),
        formula="1 / (1 + e^-x)",
        gradient="y·(1 - y)·g",
        relative=True,
    ),
    Case(
        name="axpby",
        function=ops.axpby,
        reference=reference.axpby,
        plain=lambda x, y, alpha=1.0, beta=1.0: alpha * x + beta * y,
        torch_op=lambda x, y, alpha=1.0, beta=1.0: alpha * x + beta * y,
        samples=elementwise.axpby_samples(),
        raw=elementwise.axpby_raw,
        problem=lambda make, rows, n: (make(rows, n), make(rows, n), 3.0, -1.0),
        bounds=bounds(f16=(0.51, 1, 0.51), bf16=(0.51, 1, 0.51), f32=(1.5, 2.5, 1.5), f64=(2, 6, 2)),
        formula="alpha·x + beta·y",
        gradient="alpha·g, beta·g",
        gradient_reads=lambda args, outputs: (),
    ),
    Case(
        name="linear",
        function=ops.linear,
        reference=reference.linear,
        plain=linear.plain,
        torch_op=linear.torch_op,
        samples=tuple(linear.samples()),
        raw=linear.raw,
        problem=linear.problem,
        in_features=True,
        bounds=bounds(f16=(3, 6, 18), bf16=(3, 6, 18), f32=(16, 24, 18), f64=(24, 24, 22)),
        formula="activation(x·Wᵀ + b)",
        gradient="of activation and bias in one pass",
        rounds_between=True,
        products=(0, 1),
    ),
    Case(
        name="layer_norm",
        function=ops.layer_norm,
        reference=reference.layer_norm,
        plain=norms.layer_norm,
        torch_op=F.layer_norm,
        samples=norms.LAYER_NORM.samples(),
        raw=norms.LAYER_NORM.raw,
        problem=norms.LAYER_NORM.problem,
        bounds=bounds(f16=(0.51, 10, 10), bf16=(0.51, 10, 11), f32=(10, 24, 28), f64=(9, 55, 32)),
        formula="(x - mean) / sqrt(var + eps)·w + b",
        gradient="for x, w and b, only those asked for",
        gradient_reads=norms.LAYER_NORM.gradient_reads,
    ),
    Case(
        name="rms_norm",
        function=ops.rms_norm,
        reference=reference.rms_norm,
        plain=norms.rms_norm,
        torch_op=F.rms_norm,
        samples=norms.RMS_NORM.samples(),
        raw=norms.RMS_NORM.raw,
        problem=norms.RMS_NORM.problem,
        bounds=bounds(f16=(0.51, 6, 5), bf16=(0.51, 7, 7), f32=(3, 14, 12), f64=(4.5, 24, 28)),
        formula="x / sqrt(mean(x²) + eps)·(w + offset)",
        gradient="for x and w, only those asked for",
        gradient_reads=norms.RMS_NORM.gradient_reads,
    ),
    Case(
        name="add_layer_norm",
        function=ops.add_layer_norm,
        reference=reference.add_layer_norm,
        plain=norms.add_layer_norm,
        torch_op=norms.torch_add_layer_norm,
        samples=norms.ADD_LAYER_NORM.samples(),
        raw=norms.ADD_LAYER_NORM.raw,
        problem=norms.ADD_LAYER_NORM.problem,
        bounds=bounds(f16=(0.51, 10, 10), bf16=(0.51, 10, 11), f32=(10, 24, 28), f64=(9, 55, 32)),
        formula="(layer_norm(x + r), x + r)",
        gradient="of both outputs in one pass",
        gradient_reads=norms.ADD_LAYER_NORM.gradient_reads,
    ),
    Case(
        name="add_rms_norm",
        function=ops.add_rms_norm,
        reference=reference.add_rms_norm,
        plain=norms.add_rms_norm,
        torch_op=norms.torch_add_rms_norm,
        samples=norms.ADD_RMS_NORM.samples(),
        raw=norms.ADD_RMS_NORM.raw,
        problem=norms.ADD_RMS_NORM.problem,
        bounds=bounds(f16=(0.51, 6, 5), bf16=(0.51, 7, 7), f32=(3, 14, 12), f64=(4.5, 24, 28)),
        formula="(rms_norm(x + r), x + r)",
        gradient="of both outputs in one pass",
        gradient_reads=norms.ADD_RMS_NORM.gradient_reads,
    ),
    Case(
        name="lltm",
        function=ops.lltm,
        reference=reference.lltm,
        plain=lltm.plain,
        torch_op=None,
        samples=tuple(lltm.samples()),
        raw=lltm.raw,
        problem=lltm.problem,
        in_features=True,
        bounds=bounds(f16=(4, 8, 0.6), bf16=(4, 8, 0.6), f32=(24, 48, 22), f64=(30, 80, 18)),
        formula="(h', c') from cat(h, x)·Wᵀ + b",
        gradient="the cell's and the bias's in one kernel, GEMMs by torch; few rows: all in one",
        rounds_between=True,
    ),
)


@functools.cache
def by_name() -> dict[str, Case]:
    return {case.name: case for case in CASES}
