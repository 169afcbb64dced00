"""The gradients of input, weight and bias, while those of a linear layer's outputs come in by slices of the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .linear_operands import Needs, like_operands
from .row import HALVES

if TYPE_CHECKING:
    from .linear_walk import Linear

_aten = torch.ops.aten


class Scale(NamedTuple):
    """What was left out of the gradients of logits, because float16 has no room for it, such as 1 / rows."""

    rows: Tensor  # of each row; of ignored ones 0
    factor: Tensor  # one number: the largest of these
    even: bool  # whether all that are not 0 are the factor

    @staticmethod
    def of(rows: Tensor) -> Scale:
        return Scale(rows, rows.amax() if rows.numel() else rows.sum(), False)

    def apart(self, x: Tensor, needed: bool) -> tuple[Tensor, Tensor]:
        """The rows times their scale, and 1 in their place, both over the factor."""
        if self.even:  # gradients of ignored rows are 0 anyway
            return x, x.new_ones(x.shape[0], 1)
        ratio = (self.rows / torch.where(self.factor == 0, 1, self.factor)).unsqueeze(1)
        return (x * ratio).to(x.dtype) if needed else x, ratio.to(x.dtype)


class Sums:
    """The three gradients while those of the logits come in."""

    def __init__(
        self, input: Tensor, linear: Linear, needs: Needs, scale: Scale | None, input_dtype: torch.dtype
    ) -> None:
        self.input, self.linear, self.needs, self.scale = input, linear, needs, scale
        self.input_dtype = input_dtype
        x, weight, bias, _ = linear
        self.dtype = torch.float32 if x.dtype in HALVES else x.dtype
        self.of_input: Tensor | None = None
        _, self.of_weight, self.of_bias = like_operands(input, weight, bias, needs._replace(input=False))
        self.rows: Tensor = x
        self.ones: Tensor | None = None
        if scale is not None:
            self.rows, self.ones = scale.apart(x, needs.weight)

    def add(self, d: Tensor, begin: int, whole: bool = False) -> None:
        """``d``: of all classes if ``whole``, else some of them."""
        end = begin + d.shape[1]
        if self.needs.input:
            self._add_input(d, self.linear.part(self.linear.weight, begin, end), whole)
        if self.needs.weight:
            self._product_into(self.of_weight[begin:end], d, self.rows)
        if self.needs.bias:
            if self.ones is None:
                self.of_bias[begin:end] = d.sum(0, dtype=self.dtype)
            else:
                self._product_into(self.of_bias[begin:end].unsqueeze(1), d, self.ones)

    def _add_input(self, d: Tensor, w: Tensor, whole: bool) -> None:
        half = d.dtype in HALVES
        if whole and half and self.scale is None and self.input_dtype == d.dtype:
            self.of_input = torch.mm(d, w)
        elif self.of_input is None:
            self.of_input = _wide_product(d, w)
        elif half and d.is_cuda:
            _aten.addmm.dtype_out(self.of_input, d, w, self.dtype, out=self.of_input)
        else:
            self.of_input.addmm_(d.to(self.dtype), w.to(self.dtype))

    def _product_into(self, out: Tensor, d: Tensor, rows: Tensor) -> None:
        """dᵀ times rows and the factor, rounded once."""
        if self.scale is None and out.dtype == d.dtype:
            torch.mm(d.t(), rows, out=out)
        elif self.scale is None and d.is_cuda and d.dtype in HALVES and out.dtype == torch.float32:
            _aten.mm.dtype_out(d.t(), rows, torch.float32, out=out)
        else:  # by way of a wide product, of some rows of out at a time
            for begin, end in self.linear.slices(0, d.shape[1]):
                product = _wide_product(d[:, begin:end].t(), rows)
                out[begin:end] = product if self.scale is None else product * self.scale.factor

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        found = self.input.new_empty(0, dtype=self.input_dtype)
        if self.of_input is not None:
            found = self.of_input if self.scale is None else self.of_input * self.scale.rows.unsqueeze(1)
            found = found.to(self.input_dtype).view(self.input.shape)
        return found, self.of_weight, self.of_bias


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    """In float32 of half types."""
    if a.dtype not in HALVES:
        return torch.mm(a, b)
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.mm(a.float(), b.float())
