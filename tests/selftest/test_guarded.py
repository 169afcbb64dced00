"""What touches memory outside of its tensors is found: by pages that may not be touched, and by margins."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from conftest import ON_CUDA
from stand_in import case_of
from torch import Tensor

from fastops.cases import RawCall, by_name
from fastops.selftest import guarded, margins, poison
from fastops.selftest.checks import Outcome
from fastops.selftest.target import Path, Target

CPU = Path(torch.device("cpu"), "cpu", "base")
GPU = Path(torch.device("cuda", 0), "cuda")

# By operator and dtype; the output is relu's, whose memory our library allocates.
FAULTS = {
    ("square", "float32"): ("0", ""),
    ("square", "bfloat16"): ("read(x, x.numel())", "0 bytes behind input"),
    ("square", "float16"): ("read(x, x.numel() + 20)", "40 bytes behind input"),
    ("square", "float64"): ("read(x, -1)", "8 bytes before input"),
    ("sigmoid", "float32"): ("write(out, out.numel())", "0 bytes behind allocation of [2, 1]"),
    ("sigmoid", "bfloat16"): ("write(out, -2)", "4 bytes before allocation of [5, 1]"),
    ("sigmoid", "float16"): ("x.data_ptr() % 4096 or out.zero_()", "other bits"),
    ("sigmoid", "float64"): ("relu(beside(x, 0, x.numel() + 1))", "0 bytes behind input"),
}
ILLEGAL = "an illegal memory access was encountered: the process ended with 1"
# Whole vectors, which a kernel of ours reads and writes.
FAULTS_ON_A_GPU = {
    ("square", "float32"): ("0", ""),
    ("square", "bfloat16"): ("relu(beside(x, 0, x.numel() + 8))", ILLEGAL),
    ("square", "float16"): ("relu(beside(x, -8, 8))", ILLEGAL),
    ("sigmoid", "float32"): ("beside(out, out.numel(), 8).zero_()", ILLEGAL),
    ("sigmoid", "bfloat16"): ("x.data_ptr() % 512 or out.zero_()", "other bits"),
}


def stand_ins(key: str, faults: dict[tuple[str, str], tuple[str, str]]) -> str:
    return f"""
import ctypes, torch, fastops
from fastops.selftest import pages
relu = torch.ops.fastops.relu
def read(x, k):
    ctypes.string_at(x.data_ptr() + k * x.element_size(), 1)
def write(x, k):
    ctypes.memset(x.data_ptr() + k * x.element_size(), 0, 1)
def beside(x, first, count):
    place, size = x.data_ptr() + first * x.element_size(), count * x.element_size()
    if x.is_cpu:
        return torch.frombuffer((ctypes.c_char * size).from_address(place), dtype=x.dtype)
    there = torch._C._construct_storage_from_data_pointer(place, x.device, size)
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(there)
def stand_in(op, x):
    if op == "relu_mask":
        x.numel() or ctypes.memset(0, 0, 1)
        return torch.ops.fastops.relu_mask_reference(x)
    out = relu(x)
    out.copy_(x * x)
    if x.numel():
        {{
            {", ".join(f'("{op}", torch.{dtype}): lambda: {code}' for (op, dtype), (code, _) in faults.items())}
        }}[op, x.dtype]()
    return out
library = torch.library.Library("fastops", "IMPL", "{key}")
for op in ("square", "sigmoid", "relu_mask"):
    library.impl(op, lambda x, op=op: stand_in(op, x), allow_override=True)
pages.main()
"""


@pytest.fixture(scope="module")
def child() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarded, "_children", {})
        patch.setattr(guarded, "COMMAND", (sys.executable, "-W", "ignore", "-c", stand_ins("CPU", FAULTS)))
        yield
        guarded._child(CPU.device).end()


linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are guarded on Linux alone")


def found(op: str, dtype: torch.dtype = torch.float32, path: Path = CPU) -> Outcome:
    target = Target(by_name()[op], dtype, path, quick=False)
    assert not list(guarded.begun(target))
    (outcome,) = guarded.guarded(target)
    return outcome


@linux
@pytest.mark.parametrize(("op", "dtype"), FAULTS)
def test_outside_by_pages(op: str, dtype: str, child: None) -> None:
    outcome, expected = found(op, getattr(torch, dtype)), FAULTS[op, dtype][1]
    assert outcome.ok == (not expected)
    assert expected in outcome.detail
    assert bool(outcome.detail) == bool(expected)


@linux
def test_null_pointer(child: None) -> None:
    """Of one of relu's ops; the others are asked again."""
    outcome = found("relu")
    assert not outcome.ok
    assert outcome.detail == "relu_mask, 0 rows of 17: the process ended with SIGSEGV"
    assert found("square").ok


@linux
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=ON_CUDA)])
def test_outside_by_pages_on_a_gpu(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "_children", {})
    code = stand_ins("CUDA", FAULTS_ON_A_GPU)
    monkeypatch.setattr(guarded, "COMMAND", (sys.executable, "-W", "ignore", "-c", code))
    for (op, dtype), (_, expected) in FAULTS_ON_A_GPU.items():
        outcome = found(op, getattr(torch, dtype), GPU)
        assert outcome.ok == (not expected), outcome.detail
        assert expected in outcome.detail
        if expected is ILLEGAL:  # of the call that touches what is outside, found by the second process
            assert outcome.detail.startswith(f"{op}, ")
            assert "none that is waited for" not in outcome.detail
    guarded._child(GPU.device).end()


A_CALL, ANOTHER, AT_START = (f"{where}: the process ended with 1" for where in ("a, 1 row", "b, 2 rows", "its start"))
UNPLACED = f"{A_CALL}, by this call or an earlier one, but by none that is waited for"
ENDINGS: dict[str, tuple[tuple[str, ...], list[str] | str, str]] = {  # of processes, the last one's answer, detail
    "by no call alone": ((A_CALL,), [], UNPLACED),
    "by no call alone, and other bits": ((A_CALL,), ["other bits"], f"{UNPLACED}; other bits"),
    "without memory afterwards": ((A_CALL,), "no memory", f"{UNPLACED}; no memory"),
    "by one call": ((ANOTHER, A_CALL), [], A_CALL),
    "by two calls": ((ANOTHER, A_CALL, ANOTHER), [], f"{A_CALL}; {ANOTHER}"),
    "by a call that was left out": ((ANOTHER, A_CALL, A_CALL), [], f"{A_CALL}; {A_CALL}"),
    "at its start": ((AT_START,), [], AT_START),
    "at the second's start": ((A_CALL, AT_START), [], f"{UNPLACED}; {AT_START}"),
}


@linux
@pytest.mark.parametrize("how", ENDINGS)
def test_processes_that_end_on_a_gpu(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the first, of which it is not known how far it was, call by call; behind the others without an op."""
    endings, answer, detail = ENDINGS[how]
    left, asked = iter(endings), list[tuple[list[str], bool]]()

    class Child:
        def __init__(self, device: torch.device) -> None:
            self.ending = next(left, None)

        def ask(self, t: Target, without: list[str], apart: bool) -> None:
            asked.append(([*without], apart))

        def answer(self) -> list[str] | str | None:
            return None if self.ending else answer

        def epitaph(self) -> str:
            return self.ending or ""

    monkeypatch.setattr(guarded, "_children", {})
    monkeypatch.setattr(guarded, "_Child", Child)
    outcome = found("square", path=GPU)
    assert (outcome.ok, outcome.detail) == (False, detail)
    assert asked == [([], False), ([], True), (["a"], True), (["a", "b"], True)][: len(asked)]


@linux
def test_no_such_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from fastops.selftest import page_memory, pages; page_memory.SHIM = 'strlen'; pages.main()"
    monkeypatch.setattr(guarded, "_children", {})
    monkeypatch.setattr(guarded, "COMMAND", (sys.executable, "-c", code))
    outcome = found("square")
    assert outcome.ok
    assert outcome.detail == "not checked: strlen cannot be replaced"
    guarded._child(CPU.device).end()


@linux
def test_no_process(child: None, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded._children.pop(CPU.device, None)
    monkeypatch.setattr(guarded, "COMMAND", (sys.executable, "-c", "import sys; sys.exit(3)"))
    outcome = found("square")
    assert (outcome.ok, outcome.detail) == (False, "its start: the process ended with 3")
    monkeypatch.setattr(guarded, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(guarded, "SILENCE", 0.2)
    outcome = found("square")
    assert (outcome.ok, outcome.detail) == (False, "its start: no answer in 0.2 seconds")


def beside(x: Tensor, k: int) -> Tensor:
    """An element of the memory around x, or 0 where there is none."""
    at = x.storage_offset() + k
    there = 0 <= at < x.untyped_storage().nbytes() // x.element_size()
    return x.as_strided((1,), (1,), at) if there else x.new_zeros(1)


STAND_INS_BETWEEN: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "nothing": (lambda x: 0, ""),
    "a read behind": (lambda x: beside(x, x.numel()), "other bits between margins"),
    "a read before": (lambda x: beside(x, -1), "other bits between margins"),
    "a write behind": (lambda x: beside(x, x.numel()).zero_(), "writes to its arguments or beside them"),
    "a write far before": (lambda x: beside(x, -100).zero_(), "writes to its arguments or beside them"),
    "a write": (lambda x: x.add_(1), "writes to its arguments or beside them"),
}


@pytest.mark.parametrize("what", STAND_INS_BETWEEN)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64])
def test_outside_by_margins(
    what: str, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch, expected = STAND_INS_BETWEEN[what]
    monkeypatch.setattr(margins, "written_behind", lambda *_: False)
    case = case_of(lambda x: x + touch(x), dtype=dtype, scale=100.0)
    (outcome,) = margins.margins(Target(case, torch.float32, Path(device, device.type), quick=True))
    assert outcome.ok == (not expected)
    assert expected in outcome.detail


@pytest.mark.parametrize("launched", [True, False])
def test_a_failed_launch_is_no_refusal(launched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "expected an even length, got 1" if launched else "CUDA error on device 0: too many resources requested"

    def failing(x: Tensor) -> Tensor:
        raise RuntimeError(f"[square] {text}")

    monkeypatch.setattr(torch.ops.fastops, "square", failing)
    call = RawCall("square", (torch.ones(1),))
    with nullcontext() if launched else pytest.raises(RuntimeError, match="too many resources"):
        assert margins.results(call) == ()


@pytest.mark.parametrize("far", [0, 1, 100, 3000])
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=ON_CUDA)])
def test_behind_outputs_on_a_gpu(far: int, device: str) -> None:
    x = torch.ones(2, 65, device=device)
    zero = torch.zeros(1, dtype=torch.uint8, device=device)

    def call() -> tuple[Tensor, ...]:
        out = torch.ops.fastops.square(x)
        place = torch._C._construct_storage_from_data_pointer(out.data_ptr() + out.nbytes + far, x.device, 1)
        torch.empty(0, dtype=torch.uint8, device=device).set_(place).copy_(zero)
        return (out,)

    def written_behind(call: Callable[[], tuple[Tensor, ...]]) -> bool:
        return poison.written_behind(call, call())

    assert written_behind(call)
    assert not written_behind(lambda: (torch.ops.fastops.square(x),))
    assert not written_behind(lambda: (torch.zeros(9000, device=device)[:9].clone(),))  # which is freed


@pytest.mark.parametrize("name", ["rope", "cross_entropy", "relu"])
def test_the_ops_stay_inside(name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.type == "cpu":
        monkeypatch.setattr(margins, "written_behind", lambda *_: False)
    (outcome,) = margins.margins(Target(by_name()[name], torch.float16, Path(device, device.type), quick=True))
    assert outcome.ok, outcome.detail
    assert not outcome.detail
