"""Which ops run, forward and backward, what a call keeps from the one for the other, and what it copies."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..cases import row_slice
from ..families import slices
from .accuracy import incoming_gradients, is_learnable, learnable, tensors_of
from .checks import Outcome
from .dispatched import Calls
from .forms import Form, few
from .slicing import in_slices, narrow_slices
from .target import CHOSEN, Target, levels_here

_ROWS, _COLUMNS, _CLASSES = 16, 96, 640
_OF_A_ROW = 80  # bytes: in float64 what layer_norm keeps of a row's statistics, and a bias that is not read


class Kept(torch.autograd.graph.saved_tensors_hooks):
    """What is kept for a backward of the calls meanwhile, each storage once."""

    def __init__(self) -> None:
        self._alive: dict[int, torch.UntypedStorage] = {}
        super().__init__(self._pack, lambda x: x)

    def _pack(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        self._alive[storage.data_ptr()] = storage
        return x

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._alive.values())


def kernels_run(t: Target) -> Iterator[Outcome]:
    """Ops of ours in the forward and in the backward; behind each raw op is a kernel of the device."""
    key = t.path.device.type.upper()
    names = dict.fromkeys(f"fastops::{call.op}" for call in t.raw(3, 5))
    without = [name for name in names if not torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]
    wrong = [f"{name} has no kernel for {key}" for name in without]
    _, ours = _both_ways(t)
    wrong += [
        f"no op of ours in the {way}" for way, found in zip(("forward", "backward"), ours, strict=True) if not found
    ]
    if t.path.kind == "cpu" and not os.environ.get("FASTOPS_CPU_ISA"):
        best = levels_here()[-1]
        wrong += [f"level {CHOSEN} was chosen, not {best}"] if best != CHOSEN else []
    yield Outcome("kernels run", not wrong, detail="; ".join(wrong))


def kept(t: Target) -> Iterator[Outcome]:
    """For the backward no more than the table says that any must read, and statistics of the rows."""
    if t.case.rounds_between and not in_slices(t.case):  # a product in between is kept too
        return
    with (found := Kept()):
        (args, outputs), _ = _both_ways(t, **({"save": "none"} if in_slices(t.case) else {}))
    reads = t.case.gradient_reads(args, outputs) if t.case.gradient_reads else tensors_of(args)
    constants = (x for k, x in enumerate(args) if k in t.case.constants)
    given = _bytes([*reads, *constants])
    limit = given + _OF_A_ROW * _ROWS
    right, detail = found.bytes <= limit, f"{found.bytes} bytes, at most {limit}"
    if in_slices(t.case):
        with narrow_slices(), (found := Kept()):
            _both_ways(t)
            right &= found.bytes <= limit + slices.MOST_KEPT
        detail += f"; {found.bytes} by itself"
        with torch.no_grad(), Calls() as calls:
            t.function(*args)
        most = max(x.numel() for call in calls.all for x in call.results if isinstance(x, Tensor))
        right &= most < _ROWS * _CLASSES
        detail += f"; {most} numbers at a time where nothing learns, of {_ROWS * _CLASSES} logits"
    yield Outcome("kept for the backward", right, detail=detail)


def copies(t: Target) -> Iterator[Outcome]:
    """None of rows whose numbers lie side by side, in the last dimension or in the middle.

    How rows lie is found by host code that is the same for GPUs.
    """
    if t.path.kind != "cpu":
        return
    from torch.autograd import profiler_legacy  # which torch may drop, but not with the other checks

    copied: dict[str, str] = {}
    for call in (call for call in t.raw(_ROWS, _COLUMNS) if call.op not in _DENSE):
        call = call.with_args(tuple(_apart(x) if isinstance(x, Tensor) else x for x in call.args))
        with profiler_legacy.profile(record_shapes=True) as profile:
            outputs = call()
        events = profile.function_events or ()
        if not any(event.name == f"fastops::{call.op}" for event in events):
            raise RuntimeError(f"torch's profiler shows nothing of {call.op}")
        # Results in the middle that torch has contiguous are written as rows, and then copied.
        results = [list(y.shape) for y in outputs if _is_in_the_middle(y) and y.is_contiguous()]
        for shape in (event.input_shapes[0] for event in events if event.name == "aten::copy_"):
            if math.prod(shape) >= _ROWS * _COLUMNS and shape not in results:
                copied[call.op] = f"{call.op} copies {shape}"
    yield Outcome("copies", not copied, detail="; ".join(copied.values()))


# They read a product of torch's, or write bits in the order of memory.
_DENSE = [name + way for name in ("linear_epilogue", "lltm_cell", "relu_mask") for way in ("", "_backward")]


def _is_in_the_middle(x: Tensor) -> bool:
    return x.dim() > 2 and x.shape[1] == _COLUMNS


def _apart(x: Tensor) -> Tensor:
    """Rows farther apart than they are long, the numbers of each side by side."""
    if _is_in_the_middle(x):
        return row_slice(x.mT).mT
    return row_slice(x) if x.dim() > 1 and x.shape[-1] >= _COLUMNS else x


def products(t: Target) -> Iterator[Outcome]:
    """Where a matrix of weights learns nothing, a product less for each."""
    if not t.first or not t.case.rounds_between:
        return
    form = next(iter(few(t)))
    every, wrong = _products(form, form.learnable), []
    for k in form.learnable:
        if "weight" in form.names[k] and form.args[k].dim() == 2:
            without = _products(form, [n for n in form.learnable if n != k])
            wrong += [] if without < every or not every else [f"{without} where {form.names[k]} does not learn"]
    yield Outcome("products", not wrong, detail="; ".join([f"{every}", *wrong]))


def _products(form: Form, learn: list[int]) -> int:
    args = [x.detach().requires_grad_(k in learn) for k, x in enumerate(form.args)]
    with Calls() as calls:
        outputs = [y for y in form.ours(*args) if y.requires_grad]
        torch.autograd.grad([y.sum() for y in outputs], [args[k] for k in learn])
    return len(calls.of("aten::mm", "aten::addmm"))


def _both_ways(t: Target, **options: Any) -> Any:
    """Arguments and outputs of a problem, and whether ops of ours run each way."""
    sizes = (_ROWS, _COLUMNS, _CLASSES) if in_slices(t.case) else (_ROWS, _COLUMNS)
    given = t.case.problem(t.make(), *sizes)
    args = tuple(x.requires_grad_(k not in t.case.constants) if is_learnable(x) else x for k, x in enumerate(given))
    with Calls() as forward:
        found = t.function(*args, **options)
    outputs = found if isinstance(found, tuple) else (found,)
    grads = incoming_gradients(outputs)
    with Calls() as backward:
        torch.autograd.grad(outputs, [x for x in learnable(args) if x.requires_grad], grads)
    return (args, outputs), (bool(forward.ours), bool(backward.ours))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)
