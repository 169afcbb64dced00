"""A walk over slices of a linear layer's classes, forward and back, for linear_cross_entropy and linear_log_prob.

torch multiplies, and between its products run the kernels of cross_entropy and log_prob, on a slice of the logits each.
Sums that meet are added in float32, of float64 in it: lse by parts, the input's gradient slice by slice. The weight's
gradient is one product over all rows for each slice, and is rounded once. The operands have the input's dtype, or
autocast's; half types that a CPU has no instructions for are multiplied in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._autocast import enabled
from .linear_operands import Needs, matrix, operand_dtype
from .linear_sums import Scale, Sums


def composed(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that calls torch's ops: it says itself what is rounded to what, and nothing of it is differentiated."""

    @functools.wraps(kernel)
    def run(*inputs: Any, **options: Any) -> Any:
        with torch.no_grad():
            device = inputs[0].device.type
            if not enabled(device):
                return kernel(*inputs, **options)
            with torch.autocast(device, enabled=False):
                return kernel(*inputs, **options)

    return run


class Linear(NamedTuple):
    """z = x Wᵀ + b, a slice of z's columns at a time."""

    x: Tensor  # [rows, features], as it is multiplied
    weight: Tensor  # [classes, features]
    bias: Tensor | None  # [classes]
    width: int  # of a slice

    @staticmethod
    def of(input: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype | None, width: int) -> Linear:
        return Linear(matrix(input).to(operand_dtype(input, product)), weight, bias, width)

    @property
    def classes(self) -> int:
        return self.weight.shape[0]

    def room(self, columns: int) -> Tensor:
        """For the logits of so many classes: their rows, and on a GPU what lies behind them to the next 16 bytes."""
        return room_for(self.x, self.x.shape[0], columns)

    def slices(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        for first in range(begin, end, self.width):
            yield first, min(first + self.width, end)

    def part(self, parameter: Tensor, begin: int, end: int) -> Tensor:
        return parameter[begin:end].to(self.x.dtype)

    def multiply(self, begin: int, end: int, out: Tensor) -> Tensor:
        w = self.part(self.weight, begin, end).t()
        if self.bias is None:
            return torch.mm(self.x, w, out=out)
        return torch.addmm(self.part(self.bias, begin, end), self.x, w, out=out)


def room_for(like: Tensor, rows: int, columns: int) -> Tensor:
    """Rows that begin at multiples of 16 bytes are multiplied faster. The CPU's kernels write dense ones alone."""
    of_vector = 16 // like.element_size() if like.is_cuda else 1
    return like.new_empty(rows, (columns + of_vector - 1) // of_vector * of_vector)[:, :columns]


def _columns(room: Tensor, columns: int) -> Tensor:
    """The first of them; as dense rows on the CPU."""
    if room.is_cuda:
        return room[:, :columns]
    return room.view(-1)[: room.shape[0] * columns].view(-1, columns)


def parts_of(linear: Linear, kept: int, numbers: Callable[[Tensor, int], Tensor]) -> tuple[Tensor, Tensor]:
    """``numbers`` of logits and the class where they begin, stacked, and the logits of the first ``kept`` classes.

    These are multiplied at once, the others a slice at a time in one place.
    """
    logits = linear.room(kept)
    parts = [numbers(linear.multiply(0, kept, logits), 0)] if kept else []
    spare = linear.room(min(linear.width, linear.classes - kept))
    for begin, end in linear.slices(kept, linear.classes):
        parts.append(numbers(linear.multiply(begin, end, _columns(spare, end - begin)), begin))
    return torch.stack(parts), logits


def gradients(
    input: Tensor,
    linear: Linear,
    logits: Tensor,
    overwrite: bool,
    needs: Needs,
    write: Callable[[Tensor, int, Tensor], None],
    scale: Scale | None,
    input_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of input, weight and bias; what is not needed is empty.

    ``logits``: those that were kept. ``overwrite``: their gradients may take their place, and are multiplied at once.
    ``write(z, begin, out)`` writes the gradients of logits, which begin at this class, to ``out``, which may be ``z``.
    ``scale`` is what it left out of them.
    """
    classes, kept = linear.classes, logits.shape[1]
    sums = Sums(input, linear, needs, scale, input_dtype or input.dtype)
    if overwrite and kept:
        write(logits, 0, logits)
        sums.add(logits, 0, whole=kept == classes)
    else:
        _add_slices(linear, 0, kept, lambda begin, end, _: logits[:, begin:end], write, sums)
    _add_slices(linear, kept, classes, linear.multiply, write, sums)
    return sums.gradients()


def _add_slices(
    linear: Linear,
    begin: int,
    end: int,
    logits: Callable[[int, int, Tensor], Tensor],
    write: Callable[[Tensor, int, Tensor], None],
    sums: Sums,
) -> None:
    """A slice at a time in one place, which is free again when this returns."""
    room = linear.room(min(linear.width, end - begin))
    for first, last in linear.slices(begin, end):
        d = _columns(room, last - first)
        write(logits(first, last, d), first, d)
        sums.add(d, first)
