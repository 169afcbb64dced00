"""Inputs of the norms, and their formulas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import RawCall, Sample
from .inputs import LAYOUTS, LONG_SLICES, SIZES, Layout, Make, expanded, laid_out, misaligned, shortened, stepped

Shape = tuple[int, ...]


def layer_norm(
    input: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    weight_offset: float = 0.0,
) -> Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(dims, keepdim=True)
    centred = centred - centred.mean(dims, keepdim=True)  # the first mean is rounded, which shows in float64 itself
    out = centred / torch.sqrt((centred * centred).mean(dims, keepdim=True) + eps)
    if weight is not None:
        out = out * (weight + weight_offset)
    return out if bias is None else out + bias


def rms_norm(
    input: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    weight_offset: float = 0.0,
) -> Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    out = input / torch.sqrt((input * input).mean(dims, keepdim=True) + eps)
    return out if weight is None else out * (weight + weight_offset)


def add_layer_norm(input: Tensor, residual: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return layer_norm(input + residual, *args, **options), input + residual


def add_rms_norm(input: Tensor, residual: Tensor, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return rms_norm(input + residual, *args, **options), input + residual


def torch_add_layer_norm(input: Tensor, residual: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    added = input + residual
    return F.layer_norm(added, *args), added


def torch_add_rms_norm(input: Tensor, residual: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    added = input + residual
    return F.rms_norm(added, *args), added


def halves(total: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors whose sum is exactly this one, so that the truth of an op that rounds the sum needs no rounding."""
    part = torch.where(total.abs() > 1, total / 2, -total)  # exact, and so is the rest
    even = torch.arange(total.shape[-1], device=total.device) % 2 == 0
    return torch.where(even, part, total - part), torch.where(even, total - part, part)


_FAR = 100.0
_LARGE = 2.0**54  # the squares of what is _FAR times as large overflow in a sum, those of distances from it do not


@dataclass(frozen=True)
class Norm:
    name: str
    layer: bool  # has a mean and a bias
    residual: bool

    def samples(self) -> tuple[Sample, ...]:
        return tuple(self._samples())

    def _sample(
        self,
        name: str,
        leading: Shape,
        shape: Shape,
        affine: str = "own own",
        x: Layout | None = None,
        r: Layout | None = None,
        w: Layout | None = None,
        eps: float = 1e-5,
        scale: float = 1.0,
        shift: float = 0.0,
        **flags: bool,
    ) -> Sample:
        def build(make: Make) -> tuple[Any, ...]:
            rows = self._rows(make(*leading, *shape, scale=scale, shift=shift, layout=x or r), x, r)
            dtypes = {"own": make.dtype, "f32": make.parameter_dtype}
            weight_dtype, bias_dtype = (dtypes.get(which) for which in affine.split())
            weight = make(*shape, scale=0.5, shift=1.0, dtype=weight_dtype, layout=w) if weight_dtype else None
            bias = make(*shape, dtype=bias_dtype) if bias_dtype else None
            return *rows, shape, weight, *([bias] if self.layer else []), eps

        # aten's CUDA kernels take parameters of the input's dtype alone; beside others torch composes an rms norm.
        wide = "f32" in affine
        own = {"unlike_torch_on_cuda": wide, "composed_by_torch": wide and not self.layer}
        return Sample(name, build, **(own | flags))

    def _far_first(self, name: str, n: int, count: int) -> Sample:
        """Every third row begins with numbers far from the rest, which no mean of first elements is near."""

        def build(make: Make) -> tuple[Any, ...]:
            total = make(37, n)
            total[::3, :count] += 1000
            return *self._rows(total), (n,), make(n, scale=0.5, shift=1.0), *([make(n)] if self.layer else [])

        return Sample(name, build, unlike_torch_on_cuda=self.layer)

    def _rows(self, total: Tensor, x: Layout | None = None, r: Layout | None = None) -> tuple[Tensor, ...]:
        """What is normalised, or the two tensors that it is the sum of."""
        if not self.residual:
            return (total,)
        first, second = halves(total)
        return laid_out(first, x), laid_out(second, r)

    def _samples(self) -> Iterator[Sample]:
        sample = self._sample
        # Two columns, or one without a mean: eps as large as the variance, or the input gradient is nothing but the
        # difference of equal terms.
        few = (2,) if self.layer else (1, 2)
        for n in few:
            yield sample(f"n{n}", (5,), (n,), eps=0.5)
        if self.layer:
            yield sample("one_column", (5,), (1,))  # whose gradient is 0
        for n in SIZES[1:]:
            if n not in few:
                yield sample(f"n{n}", (5,), (n,))
        for n in (192, 668, 768, 769, 1128, 4096, 5504, 12288):
            yield sample(f"n{n}", (3,), (n,))
        yield sample("n65536", (2,), (65536,), large=True)
        yield sample("n131072", (2,), (131072,), "f32 f32", large=True)
        # Of such rows aten's mean, one number, is too coarse for gradients.
        yield sample("mean1000", (7,), (769,), scale=1e-2, shift=1000.0, unlike_torch_on_cuda=self.layer)
        yield sample("mean10000", (7,), (768,), shift=1e4, unlike_torch_on_cuda=self.layer)
        for n in (8192, 20480):
            yield sample(f"mean10000_of_{n}", (3,), (n,), shift=1e4, unlike_torch_on_cuda=self.layer)
        for mean in (200, -200) if self.layer else (200,):
            yield sample(f"mean{mean}", (7,), (768,), shift=mean, unlike_torch_on_cuda=self.layer)
        yield self._far_first("far_first", 4096, 32)
        yield self._far_first("far_first_short", 1024, 64)
        yield sample("constant_rows", (7,), (257,), scale=0.0, shift=3.0)
        yield sample("tiny_spread", (7,), (257,), scale=1e-4)
        yield sample("values_near_6e4", (7,), (257,), scale=1e3, shift=6e4, unlike_torch_on_cuda=self.layer)
        yield sample("small", (4,), (5,), small=True)
        yield sample("small_multi", (2,), (2, 3), small=True)
        yield sample("small_plain", (3,), (4,), "none none", small=True)
        yield sample("multi", (4,), (3, 5))
        yield sample("multi3", (2, 3), (2, 3, 4))
        yield sample("vectors3d", (3, 5), (64,))
        yield sample(LONG_SLICES, (2, 2), (16411,), x=shortened)
        yield sample("whole_input", (), (6, 7))
        yield sample("vector", (), (33,))
        yield sample("one_row", (1,), (127,))
        yield sample("no_rows", (0,), (16,))
        yield sample("no_rows_inside", (3, 0, 2), (16,))
        yield sample("no_columns", (3,), (0,))
        yield sample("rows4099", (4099,), (61,), large=True)
        yield sample("rows65537", (65537,), (8,), "f32 f32", large=True)
        yield sample("f32_parameters", (37,), (129,), "f32 f32")
        yield sample("no_parameters", (37,), (129,), "none none")
        if self.layer:
            yield sample("weight_only", (37,), (129,), "own none")
            yield sample("weight_only8192", (3,), (8192,), "own none")
            yield sample("bias_only", (37,), (129,), "none own")
            yield sample("mixed_parameters", (37,), (129,), "f32 own", unlike_torch=True)  # torch's are of one dtype
            yield sample("mixed_parameters2", (37,), (129,), "own f32", unlike_torch=True)
        yield sample("large_eps", (37,), (129,), eps=0.5)
        yield Sample("defaults", lambda make: (*self._rows(make(3, 4, scale=100.0)), (4,)))
        for layout in LAYOUTS:
            yield sample(layout.__name__, (37,), (67,), x=layout)
            yield sample(f"{layout.__name__}_multi", (3, 5), (4, 7), x=layout)
            if self.residual:
                yield sample(f"{layout.__name__}_residual", (37,), (67,), r=layout)
        yield sample("misaligned_weight", (37,), (67,), w=misaligned)
        yield sample("stepped_weight", (37,), (67,), w=stepped)
        yield sample("expanded_weight", (37,), (67,), w=expanded)

    def raw(self, make: Make, rows: int, n: int) -> list[RawCall]:
        """With parameters of either dtype and an offset; without parameters, nor a gradient of the sum; with the weight
        alone; of the first the gradients of the parameters alone, and those without the weight's.

        The mean of every fourth row of a layer norm is far from 0. Without parameters all are, and in float32 and
        bfloat16 so large that the sum of 105 squares or more overflows.
        """
        calls = []
        for parameter, offset, bias in (
            (make.dtype, 0.0, True),
            (make.parameter_dtype, 1.0, True),
            (None, 0.0, True),
            (make.dtype, 0.75, False),
        ):
            total = make(rows, n)
            overflows = self.layer and parameter is None and make.dtype in (torch.float32, torch.bfloat16)
            large = _LARGE if overflows else 1.0
            if self.layer:  # an rms norm's gradient is then the difference of equal numbers
                total[slice(None) if overflows else slice(1, None, 4)] += _FAR
            small = self._rows(total)
            tensors = tuple(x * large for x in small)
            affine = tuple(
                make(n, dtype=parameter) if parameter is not None and there else None
                for there in (True, bias)[: 1 + self.layer]
            )
            numbers = (1e-5 * large**2, offset)
            lead = len(tensors)
            shared = tuple(range(lead, lead + len(affine)))
            args = (*tensors, *affine, 1, *numbers)
            forward = RawCall(f"{self.name}_forward", args, shared, tuple(range(lead + 1)))
            outputs = RawCall(self.name, args, shared, tuple(range(lead)))
            # Of rows that do not overflow: the reference's own squares would.
            saved = forward.with_args((*small, *args[lead:-2], 1e-5, offset)).reference()
            x, statistics = saved[1] if self.residual else total, saved[-1]
            if large > 1:
                x, statistics = x * large, statistics * statistics.new_tensor([large, large, 1 / large])
            grads = (make(rows, n), make(rows, n) if affine[0] is not None else None)[: 1 + self.residual]
            needs = (True, *(p is not None for p in affine))
            at = len(grads) + 2
            args = (*grads, x, statistics, *affine, *needs, *numbers)
            backward = RawCall(f"{self.name}_backward", args, shared=tuple(range(at, at + len(affine))))
            calls += [outputs, forward, backward]
        first = calls[2]
        at = len(first.args) - len(needs) - 2

        def without(k: int, row_outputs: tuple[int, ...]) -> RawCall:
            return replace(
                first, args=(*first.args[: at + k], False, *first.args[at + k + 1 :]), row_outputs=row_outputs
            )

        return [*calls, without(0, ()), *([without(1, first.row_outputs)] if self.layer else [])]

    def problem(self, make: Make, rows: int, n: int) -> tuple[Any, ...]:
        tensors = tuple(make(rows, n) for _ in range(1 + self.residual))
        weight = make(n, scale=0.5, shift=1.0)
        return (*tensors, (n,), weight, make(n), 1e-5) if self.layer else (*tensors, (n,), weight, 1e-6)

    def gradient_reads(self, args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What was normalised, and the weight."""
        return (outputs[1], args[3]) if self.residual else (args[0], args[2])


LAYER_NORM = Norm("layer_norm", layer=True, residual=False)
RMS_NORM = Norm("rms_norm", layer=False, residual=False)
ADD_LAYER_NORM = Norm("add_layer_norm", layer=True, residual=True)
ADD_RMS_NORM = Norm("add_rms_norm", layer=False, residual=True)
