"""What linear_cross_entropy and linear_log_prob share: a walk over slices of the classes, forward and back.

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
import torch.nn.functional as F
from torch import Tensor

from .._arguments import check_tensors, type_error
from .._autocast import enabled
from .._operator import KERNEL_DTYPES, Operator, wide
from .likelihood import check_target_dtype
from .row import HALVES
from .slices import SAVES, Slices, multiplied_in, slices

_aten = torch.ops.aten
_compiling = torch.compiler.is_dynamo_compiling
_functorch_active = torch._C._are_functorch_transforms_active
_batched = torch._C._functorch.is_legacy_batchedtensor


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


def check_operands(op: str, input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> None:
    check_tensors(op, input=input, linear_weight=weight, target=target)
    if bias is not None and not isinstance(bias, Tensor):
        raise type_error(op, "linear_bias", "a Tensor or None", bias)
    if torch._C._get_tracing_state():  # sizes are tensors, and a question about one is a warning
        return
    if not input.is_floating_point():
        raise RuntimeError(f"[{op}] input must be floating point, got {input.dtype}")
    if weight.dim() != 2 or not weight.shape[0]:
        raise RuntimeError(
            f"[{op}] linear_weight must have shape [classes, features], classes not 0, got {list(weight.shape)}"
        )
    if not input.dim() or input.shape[-1] != weight.shape[1]:
        expected = f"linear_weight's features {weight.shape[1]}"
        raise RuntimeError(f"[{op}] input must end in {expected}, got shape {list(input.shape)}")
    if target.shape != input.shape[:-1]:
        raise RuntimeError(f"[{op}] target must have shape {list(input.shape[:-1])}, got {list(target.shape)}")
    check_target_dtype(op, target)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RuntimeError(f"[{op}] linear_bias must have shape {list(weight.shape[:1])}, got {list(bias.shape)}")


def check_devices(op: str, input: Tensor, **others: Tensor | None) -> None:
    for name, x in others.items():
        if x is not None and x.device != input.device:
            raise RuntimeError(f"[{op}] {name} must be on input's device {input.device}, got {x.device}")


def product_of(op: str, input: Tensor, weight: Tensor, bias: Tensor | None) -> torch.dtype | None:
    """Autocast's dtype, where it casts; else all have input's."""
    device = input.device.type
    if input.dtype != torch.float64 and weight.dtype != torch.float64 and enabled(device):
        return torch.get_autocast_dtype(device)
    if weight.dtype != input.dtype:
        raise RuntimeError(f"[{op}] linear_weight must have input's dtype {input.dtype}, got {weight.dtype}")
    if bias is not None and bias.dtype != input.dtype and (bias.dtype, input.dtype in HALVES) != (torch.float32, True):
        raise RuntimeError(f"[{op}] linear_bias must have input's dtype {input.dtype}, got {bias.dtype}")
    return None


def slices_of(input: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype | None, save: str) -> Slices:
    learns = torch.is_grad_enabled() and (
        input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    )
    rows = input.numel() // input.shape[-1] if input.shape[-1] else 0
    logit_bytes = operand_dtype(input, product).itemsize
    shapes = (rows, input.shape[-1], weight.shape[0], logit_bytes, input.element_size())
    return slices(save if learns else SAVES[-1], *shapes, input.device.type)


def operand_dtype(input: Tensor, product: torch.dtype | None) -> torch.dtype:
    return multiplied_in(product or input.dtype, input.device.type)


def statistics_of(input: Tensor, product: torch.dtype | None) -> torch.dtype:
    return torch.float64 if operand_dtype(input, product) == torch.float64 else torch.float32


def flat(target: Tensor) -> Tensor:
    return target.reshape(-1).long()


def whole_logits(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In plain PyTorch, and in float32 of the half types."""
    return F.linear(wide(input), wide(weight), None if bias is None else wide(bias))


class Needs(NamedTuple):
    input: bool
    weight: bool
    bias: bool


def of_linear(
    d: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    needs: Needs,
    input_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """In plain PyTorch the gradients by those of the whole logits."""
    empty = like_operands(input, weight, bias, Needs(False, False, False), input_dtype)
    d, x = d.reshape(-1, d.shape[-1]), wide(input).reshape(-1, input.shape[-1])
    return (
        (d @ wide(weight)).to(empty[0].dtype).view(input.shape) if needs.input else empty[0],
        (d.t() @ x).to(weight.dtype) if needs.weight else empty[1],
        d.sum(0).to(empty[2].dtype) if needs.bias else empty[2],
    )


def like_operands(
    input: Tensor, weight: Tensor, bias: Tensor | None, needs: Needs, input_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty gradients, of no element where they are not needed."""
    like = weight if bias is None else bias
    return (
        input.new_empty(input.shape if needs.input else 0, dtype=input_dtype),
        weight.new_empty(weight.shape if needs.weight else 0),
        like.new_empty(weight.shape[:1] if needs.bias else 0),
    )


class Linear(NamedTuple):
    """z = x Wᵀ + b, a slice of z's columns at a time."""

    x: Tensor  # [rows, features], as it is multiplied
    weight: Tensor  # [classes, features]
    bias: Tensor | None  # [classes]
    width: int  # of a slice

    @staticmethod
    def of(input: Tensor, weight: Tensor, bias: Tensor | None, product: torch.dtype | None, width: int) -> Linear:
        x = input.reshape(-1, input.shape[-1]).to(operand_dtype(input, product))
        return Linear(x, weight, bias, width)

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


def derivative(
    op: Operator, kernel: Callable[..., Any], arguments: tuple[Any, ...], logits: Tensor, hooked: bool
) -> Any:
    """The gradients, by the op, or by its kernel where that may overwrite the logits."""
    if not hooked and _may_overwrite(arguments[0], logits):
        return kernel(*arguments, overwrite=True)
    return op.call(*arguments)


def are_hooked() -> bool:
    """Whether somebody's hooks see what is saved now: they may keep it."""
    return _compiling() or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _may_overwrite(grad: Tensor, logits: Tensor) -> bool:
    """Whether nobody needs the kept logits after this backward: the graph is freed by it, and it is no transform's."""
    if type(grad) is not Tensor or type(logits) is not Tensor or not logits.numel():
        return False
    if (
        grad.dtype not in KERNEL_DTYPES
        or torch.is_grad_enabled()
        or _compiling()
        or _functorch_active()
        or _batched(grad)
    ):
        return False
    return not torch._C._autograd._get_current_graph_task_keep_graph()


def gradients(
    input: Tensor,
    linear: Linear,
    logits: Tensor,
    overwrite: bool,
    needs: Needs,
    write: Callable[[Tensor, int, Tensor], None],
    row_scale: Tensor | None,
    input_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of input, weight and bias; what is not needed is empty.

    ``logits``: those that were kept. ``overwrite``: their gradients may take their place, and are multiplied at once.
    ``write(z, begin, out)`` writes the gradients of logits, which begin at this class, to ``out``, which may be ``z``.
    ``row_scale``, one number or [rows], is what it left out: float16 has no room for it, because 1 / rows would make
    most of the gradient 0.
    """
    classes, kept = linear.classes, logits.shape[1]
    sums = _Sums(input, linear, needs, row_scale, input_dtype or input.dtype)
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
    sums: _Sums,
) -> None:
    """A slice at a time in one place, which is free again when this returns."""
    room = linear.room(min(linear.width, end - begin))
    for first, last in linear.slices(begin, end):
        d = _columns(room, last - first)
        write(logits(first, last, d), first, d)
        sums.add(d, first)


class _Sums:
    """The three gradients while those of the logits come in."""

    def __init__(
        self, input: Tensor, linear: Linear, needs: Needs, row_scale: Tensor | None, input_dtype: torch.dtype
    ) -> None:
        self.input, self.linear, self.needs, self.row_scale = input, linear, needs, row_scale
        self.input_dtype = input_dtype
        x, weight, bias, _ = linear
        self.dtype = torch.float32 if x.dtype in HALVES else x.dtype
        self.of_input: Tensor | None = None
        _, self.of_weight, self.of_bias = like_operands(input, weight, bias, needs._replace(input=False))
        self.rows, self.ones, self.factor = x, None, None
        if row_scale is not None:
            self.rows, self.ones, self.factor = _scaled(x, row_scale, needs.weight)

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
        if whole and half and self.row_scale is None and self.input_dtype == d.dtype:
            self.of_input = torch.mm(d, w)
        elif self.of_input is None:
            self.of_input = _wide_product(d, w)
        elif half and d.is_cuda:
            _aten.addmm.dtype_out(self.of_input, d, w, self.dtype, out=self.of_input)
        else:
            self.of_input.addmm_(d.to(self.dtype), w.to(self.dtype))

    def _product_into(self, out: Tensor, d: Tensor, rows: Tensor) -> None:
        """dᵀ times rows and the factor, rounded once."""
        if self.factor is None and out.dtype == d.dtype:
            torch.mm(d.t(), rows, out=out)
        elif self.factor is None and d.is_cuda and d.dtype in HALVES and out.dtype == torch.float32:
            _aten.mm.dtype_out(d.t(), rows, torch.float32, out=out)
        else:  # by way of a wide product, of some rows of out at a time
            for begin, end in self.linear.slices(0, d.shape[1]):
                product = _wide_product(d[:, begin:end].t(), rows)
                out[begin:end] = product if self.factor is None else product * self.factor

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        found = self.input.new_empty(0, dtype=self.input_dtype)
        if self.of_input is not None:
            found = self.of_input if self.row_scale is None else self.of_input * self.row_scale.unsqueeze(-1)
            found = found.to(self.input_dtype).view(self.input.shape)
        return found, self.of_weight, self.of_bias


def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    """In float32 of half types."""
    if a.dtype not in HALVES:
        return torch.mm(a, b)
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.mm(a.float(), b.float())


def _scaled(x: Tensor, row_scale: Tensor, needed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The rows times their scale and a one of each times it, both but for the third, which is multiplied last."""
    if row_scale.dim() == 0 or not x.shape[0]:
        return x, torch.ones_like(x[:, :1]), row_scale if row_scale.dim() == 0 else row_scale.sum()
    largest = row_scale.amax()
    ratio = (row_scale / torch.where(largest == 0, 1, largest)).unsqueeze(1)
    return (x * ratio).to(x.dtype) if needed else x, ratio.to(x.dtype), largest
