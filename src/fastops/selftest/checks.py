"""The checks of one op on one path. Each yields outcomes; an exception is a failure of that check alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..cases import LAYOUTS, OVER_ONE_ROUNDING, OVER_TWO_ROUNDINGS, RawCall, Sample, expanded, transposed
from ..cases.inputs import HALVES, misaligned, odd_rows, windows
from .accuracy import Evaluation, errors, evaluate, is_learnable, tensors_of, truth_of, ulps, wide_copies
from .bits import all_same, other_bits
from .poison import NotPoisonedError, unwritten
from .slicing import narrow_slices
from .target import Target
from .together import Flag, first_set, on_cpu


@dataclass(frozen=True)
class Outcome:
    check: str
    ok: bool
    error: float | None = None  # ulps
    bound: float | None = None
    detail: str = ""


Check = Callable[[Target], Iterator[Outcome]]

ONE_ROUNDING = "error over one rounding's"  # its outcome's detail has the numbers
NOT_CHECKED = "not checked:"  # how the detail of an outcome begins that says nothing
MAIN_DTYPES = (torch.float32, torch.bfloat16)
ROWS, COLUMNS = 37, 67  # not multiples of anything that a kernel works in
OF_VECTORS = 61, 72  # rows of whole vectors, more than 4096 numbers


def samples_of(t: Target) -> Iterator[Sample]:
    """Large ones of the best level. Of a lower level's float16 and float64, and of a quick run's references and
    other dtypes, a third.
    """
    found = [s for s in t.case.samples if not s.large or (t.path.best and not t.quick)]
    all_of_them = (
        t.main and (t.dtype in MAIN_DTYPES or not t.path.lower) and not (t.quick and t.path.kind == "reference")
    )
    return iter(found if all_of_them else found[::3])


def same_results(a: Evaluation, b: Evaluation) -> bool:
    """The bits of outputs and of gradients."""
    return all_same(a.outputs + a.gradients, b.outputs + b.gradients)


def values(t: Target) -> Iterator[Outcome]:
    """Outputs and gradients of every sample against float64; the inputs are left as they were."""
    worst = {"forward": (0.0, ""), "gradient": (0.0, "")}
    changed, not_zero = [], []
    for sample in samples_of(t):
        args = sample.args(t.path.device, t.dtype)
        before = [x.clone() for x in tensors_of(args)]
        try:
            result = evaluate(t.function, args)
            truth = truth_of(t.case, args, result.outputs)
            for kind, error in errors(t.case, args, result, truth):
                if not error <= worst[kind][0]:
                    worst[kind] = (error, sample.name)
        except Exception as problem:
            raise RuntimeError(f"sample {sample.name}: {problem}") from problem
        if not all_same(tensors_of(args), before):
            changed.append(sample.name)
        if not any(out.numel() for out in result.outputs) and any(g.count_nonzero() for g in result.gradients):
            not_zero.append(sample.name)
    bound = t.bound()
    for kind, limit in (("forward", bound.forward), ("gradient", bound.gradient)):
        error, name = worst[kind]
        yield Outcome(kind, error <= limit, error, limit, f"worst at sample {name}" if name else "")
    yield Outcome("inputs unmodified", not changed, detail=", ".join(changed))
    yield Outcome("empty gives zero gradients", not not_zero, detail=", ".join(not_zero))


def rounded_once(t: Target) -> Iterator[Outcome]:
    """Of many rows, whose mean's gradients have no room in float16, the error that a rounding alone would have."""
    if t.case.rounded_once is None or t.dtype not in HALVES:
        return
    found: dict[str, float] = {}
    for name, result, truth in t.case.rounded_once(t.function, t.make()):
        ratio = _over_one_rounding(result, truth)
        if not ratio <= found.get(name, 0.0):
            found[name] = ratio
    text = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items())
    yield Outcome(ONE_ROUNDING, all(ratio <= OVER_ONE_ROUNDING for ratio in found.values()), detail=text)


def rounds(t: Target) -> Iterator[Outcome]:
    """All numbers of a half type together are as near to the truth as they can be, or nearly so.

    A bound in ulps, of the worst of them, has room for another rounding, or for a gradient that was rounded in between.
    """
    if t.dtype not in HALVES:
        return
    args = t.case.problem(t.make(), 64, 96)
    with narrow_slices():
        found = evaluate(t.function, args)
    truth = truth_of(t.case, args, found.outputs)
    wrong = []
    for k, pair in enumerate(zip(found.outputs + found.gradients, truth.outputs + truth.gradients, strict=True)):
        if pair[0].dtype == t.dtype and pair[0].numel() >= _MANY_ROUNDINGS:
            ratio = _over_one_rounding(*pair)
            twice = t.case.rounds_between or k in t.case.rounds_again
            limit = OVER_TWO_ROUNDINGS if twice else OVER_ONE_ROUNDING
            wrong += [f"result {k}: {ratio:.2f}"] if not ratio <= limit else []
    yield Outcome("roundings", not wrong, detail=", ".join(wrong))


_MANY_ROUNDINGS = 64  # whose mean says something


def _over_one_rounding(found: Tensor, truth: Tensor) -> float:
    """Its error over that of the truth rounded to its dtype; 1 where neither has one."""
    error, least = _norm(found.cpu().double() - truth), _norm(truth.to(found.dtype).double() - truth)
    return error / least if least else torch.inf if error else 1.0


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def kernels(t: Target) -> Iterator[Outcome]:
    """Each raw op by itself against its reference in float64, parameter gradients over many rows among them.

    A result of a finer dtype that is counted in coarse ulps is off by few of its own.
    """
    worst, worst_at = (0.0, torch.inf), ""
    bound = t.bound()
    many = 50021 if t.path.best and not t.quick and t.dtype in MAIN_DTYPES else 4099
    for rows, columns in ((ROWS, COLUMNS), (5, 3), (many, 7)):
        for call in t.raw(rows, columns):
            truth = call.reference.with_args(wide_copies(call.args))()
            for k, (out, expected) in enumerate(zip(on_cpu(call()), truth, strict=True)):
                coarse = call.args[0].dtype if k in call.coarse else out.dtype
                error = ulps(out, expected, dtype=coarse)
                limit = bound.kernel if coarse == out.dtype else min(bound.forward, OF_FINER)
                if not error - limit <= worst[0] - worst[1]:  # some limits are 0
                    worst, worst_at = (error, limit), f"output {k} of {call.op}, {rows} rows of {columns}"
    yield Outcome("kernels", worst[0] <= worst[1], *worst, worst_at)


OF_FINER = 0.02  # coarse ulps: the digits of float32, or of CUDA's functions for half types


def finite_differences(t: Target) -> Iterator[Outcome]:
    """A quick run, and one of a lower level, tries one direction instead of each number."""
    if t.dtype != torch.float64:
        return
    for name, check in (("gradcheck", torch.autograd.gradcheck), ("gradgradcheck", torch.autograd.gradgradcheck)):
        failures = []
        for sample in t.case.small_samples:
            args = tuple(
                a.detach().requires_grad_() if is_learnable(a) else a for a in sample.args(t.path.device, t.dtype)
            )
            try:
                check(t.function, args, fast_mode=t.quick or t.path.lower)
            except Exception as error:
                failures.append(f"{sample.name}: {error}")
        yield Outcome(name, not failures, detail="; ".join(failures))


def opcheck(t: Target) -> Iterator[Outcome]:
    """torch's own check of a custom op: schema, fake, and tracing, which takes long, of one call, dtype and level."""
    if t.path.lower or t.quick:
        return
    failures = []
    calls = t.raw(3, 5)
    last = {call.op: k for k, call in enumerate(calls)}
    for k, call in enumerate(calls):
        tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
        if t.first and last[call.op] == k:
            tests.append("test_aot_dispatch_dynamic")
        found: dict[str, Any] = torch.library.opcheck(
            getattr(torch.ops.fastops, call.op).default, call.args, test_utils=tests, raise_exception=False
        )
        failures += [f"{call.op} {test}: {result}" for test, result in found.items() if result != "SUCCESS"]
    yield Outcome("opcheck", not failures, detail="; ".join(failures))


def poisoned_outputs(t: Target) -> Iterator[Outcome]:
    found, reason = {}, ""
    # Of what has no numbers a sum over them, a parameter's gradient or a row's, is 0.
    of_none = (0, COLUMNS), *(((3, 0),) if t.case.elementwise else ())
    for rows, columns in ((ROWS, COLUMNS), (2, 1024), *of_none, *(() if t.quick else ((5, 3),))):
        for call in t.raw(rows, columns):
            try:
                count = unwritten(call)
            except NotPoisonedError as why:
                reason = f"{NOT_CHECKED} {why}"
                continue
            if count:
                found[call.op] = f"{call.op}: {count} elements unwritten for {rows} rows of {columns}"
    yield Outcome("every element written", not found, detail="; ".join(found.values()) or reason)


def layouts(t: Target) -> Iterator[Outcome]:
    """Each tensor of each raw op in each layout: the bits of the contiguous one.

    On a GPU also rows of whole vectors that begin at any element, so many that they would be read by vectors, and all
    tensors of one shape alike.
    """
    differs: list[Flag[Any]] = []
    calls = [(call, (*LAYOUTS, windows)) for call in t.raw(ROWS, COLUMNS)]
    if t.path.kind == "cuda":
        of_vectors = t.raw(*OF_VECTORS)
        calls += [(call, (misaligned, odd_rows)) for call in of_vectors]
        differs += [flag for call in of_vectors for flag in _laid_out_alike(call)]
    for call, of_call in calls:
        for k, x in enumerate(call.args):
            if not isinstance(x, Tensor) or is_statistic(call, k):
                continue
            for layout in of_call:
                if x.dim() < 2 and (layout in (transposed, windows, odd_rows) or not x.dim()):
                    continue
                laid_out = layout(x)
                dense = laid_out.contiguous() if layout in (expanded, windows) else x
                one, other = (call.with_tensors({k: v})() for v in (laid_out, dense))
                how = f"{call.op} with argument {k} {layout.__name__}"
                differs.append(((call.op, k, layout), how, other_bits_of(call.op, one, other)))
    wrong = first_set(differs)
    yield Outcome("any strides", not wrong, detail="; ".join(wrong.values()))


def _laid_out_alike(call: RawCall) -> Iterator[Flag[Any]]:
    """Of each set of tensors of one shape whether, with odd rows, they have other results than contiguous ones."""
    shapes: dict[torch.Size, list[int]] = {}
    for k, x in enumerate(call.args):
        if isinstance(x, Tensor) and x.dim() > 1 and not is_statistic(call, k):
            shapes.setdefault(x.shape, []).append(k)
    alone = call()
    for alike in (of for of in shapes.values() if len(of) > 1):
        odd = call.with_tensors({k: odd_rows(call.args[k]) for k in alike})()
        yield (call.op, *alike), f"{call.op} with odd rows of {alike}", other_bits_of(call.op, odd, alone)


def other_bits_of(op: str, one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> Tensor:
    """Whether any of an op's results has other bits, but for those in the order of memory."""
    pairs = [pair for j, pair in enumerate(zip(one, other, strict=True)) if (op, j) not in _IN_MEMORY_ORDER]
    return other_bits(*zip(*pairs, strict=True))


_IN_MEMORY_ORDER = {("relu_mask", 1)}  # results whose bits follow the layout


def is_statistic(call: RawCall, k: int) -> bool:
    """What a forward made for its backward is always contiguous."""
    return argument_name(call.op, k) in ("statistics", "rstd", "lse", "total", "entropy")


def is_refusal(error: Exception | None, op: str) -> bool:
    """An error in the operator's own words, and not in core/cuda.cpp's of a kernel that could not be launched."""
    return str(error).startswith(f"[{op}] ") and not is_of_a_kernel(error)


def is_of_a_kernel(error: Exception | None) -> bool:
    """An error of what ran on a GPU, which ours and PyTorch's RuntimeErrors name so."""
    return "CUDA error" in str(error)


@functools.cache
def argument_name(op: str, k: int) -> str:
    name: str = getattr(torch.ops.fastops, op).default._schema.arguments[k].name
    return name


@contextlib.contextmanager
def _set_to(read: Callable[[], Any], write: Callable[[Any], object], value: Any) -> Iterator[None]:
    """A setting of torch's has a value for the time of a block."""
    own = read()
    write(value)
    try:
        yield
    finally:
        write(own)


threads = functools.partial(_set_to, torch.get_num_threads, torch.set_num_threads)
default_dtype = functools.partial(_set_to, torch.get_default_dtype, torch.set_default_dtype)


def repeatable(t: Target) -> Iterator[Outcome]:
    """The same bits from run to run, on the CPU by any number of threads: of few rows, of many and of long ones."""
    differs: list[Flag[str]] = []
    own = torch.get_num_threads()
    long = ((1, 70001),) * t.first if t.quick else ((3, 16411), (1, 70001))
    many = ((2053, 29),) if t.dtype in MAIN_DTYPES else ()
    if t.first and not t.path.lower:  # so many numbers that threads share them, in one segment a row; and many chunks
        many += ((16, 4096), *(() if t.quick else ((8195, 40),)))
    for rows, columns in ((ROWS, COLUMNS), *many, *(() if t.path.lower else long)):
        for call in t.raw(rows, columns):
            first = call()
            for count in (1, 2, 3, 7) if t.path.kind == "cpu" else (own, own):
                with threads(count):
                    again = call()
                differs.append((call.op, call.op, other_bits(first, again)))
    wrong = first_set(differs)
    yield Outcome("same bits every run", not wrong, detail=", ".join(sorted(wrong)))


def rows_alone(t: Target) -> Iterator[Outcome]:
    """A row by itself gives the bits that it gives in the batch."""
    differs: list[Flag[str]] = []
    for rows, columns in ((ROWS, COLUMNS), (9, 257), (130, 8)):
        for call in t.raw(rows, columns):
            if not call.row_outputs:
                continue
            batch = call()
            for begin, end in ((0, 1), (5, 6), (rows - 1, rows), (1, 4)):
                alone = call.rows(begin, end)()
                where = f"{call.op}: rows {begin} to {end} of {rows}, {columns} columns"
                found, expected = [alone[k] for k in call.row_outputs], [batch[k][begin:end] for k in call.row_outputs]
                differs.append((call.op, where, other_bits(found, expected)))
    wrong = first_set(differs)
    yield Outcome("row alone as in the batch", not wrong, detail="; ".join(wrong.values()))


KERNEL_CHECKS: tuple[Check, ...] = (
    values,
    rounded_once,
    rounds,
    kernels,
    finite_differences,
    opcheck,
    poisoned_outputs,
    layouts,
    repeatable,
    rows_alone,
)
