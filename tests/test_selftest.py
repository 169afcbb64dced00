"""The selftest's command line, its files, and that what is broken makes it fail."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from conftest import NO_CUDA
from torch import Tensor

import fastops
from fastops import _C, capability
from fastops.cases import by_name
from fastops.selftest import checks, poison, target, workers
from fastops.selftest.__main__ import main
from fastops.selftest.accuracy import ulps
from fastops.selftest.checks import rounded_once
from fastops.selftest.numbers import every_number

SHORT = ["--device", "cpu", "--op", "relu", "--dtype", "f32", "--quick"]


def test_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SHORT) == 0
    printed = capsys.readouterr().out
    assert "relu" in printed
    assert _C.cpu()["isa"] in printed
    assert "checks passed" in printed
    assert "\x1b" not in printed, "escape codes although this is no terminal"


def test_every_level_by_default(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTOPS_CPU_ISA", raising=False)
    before = _C.cpu()["isa"]
    assert main(["--device", "cpu", "--op", "square", "--dtype", "bf16"]) == 0
    printed = capsys.readouterr().out
    for level, missing in _C.cpu()["missing"].items():
        assert (f"cpu {level}: " in printed) == (not missing)
    assert "cpu reference: " in printed
    assert "square               cpu base" not in printed or _C.cpu()["isa"] == "base"  # a line for the best alone
    assert _C.cpu()["isa"] == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--op", "tanh"], "op must be one of square, relu"),
        (["--dtype", "f8"], "dtype must be one of f32, bf16, f16, f64, got 'f8'"),
        (["--isa", "avx1024"], "CPU ISA level must be one of"),
        (["--device", "tpu"], "device must be cpu, cuda, cuda:<index> or all, got 'tpu'"),
        (["--device", "cuda:99"], "device cuda:99: "),
        (["--jobs", "0"], "--jobs must be 1 or more, got 0"),
    ],
)
def test_what_is_not_there(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.skipif(not NO_CUDA, reason="there is a GPU")
def test_no_gpu_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cuda"]) == 2
    assert capsys.readouterr().err.startswith("fastops.selftest: device cuda: ")


def test_a_gpu_without_kernels_is_no_proof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = capability.Gpu(0, "Quadro P1000", "6.1", None, "compute capability 6.1 is not in this binary")
    found = dataclasses.replace(fastops.capabilities(), gpus=(gpu,), no_gpu="")
    monkeypatch.setattr(target, "capabilities", lambda: found)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert main([*SHORT, "--device", "cuda:0"]) == 2
    said = capsys.readouterr().err
    assert said == f"fastops.selftest: device cuda:0: no kernels for {gpu.name}: {gpu.reason}\n"


def test_files(tmp_path: Path) -> None:
    json_file, junit_file = tmp_path / "selftest.json", tmp_path / "selftest.xml"
    assert main([*SHORT, "--json", str(json_file), "--junit", str(junit_file)]) == 0
    content = json.loads(json_file.read_text())
    assert content["passed"] is True
    assert content["environment"]["versions"]["torch"] == torch.__version__
    assert content["environment"]["capabilities"]["cpu_level"] == _C.cpu()["isa"]
    forward = next(r for r in content["results"] if r["check"] == "forward")
    assert (forward["op"], forward["dtype"], forward["error"], forward["bound"]) == ("relu", "f32", 0.0, 0)
    suite = ElementTree.parse(junit_file).getroot()
    assert int(suite.attrib["tests"]) == len(content["results"]) == len(suite)
    assert suite.attrib["failures"] == "0"


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    found = []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.json"
        assert main([*SHORT, "--dtype", "bf16", "--op", "square", "--jobs", jobs, "--json", str(file)]) == 0
        found.append([(r["op"], r["path"], r["dtype"], r["check"]) for r in json.loads(file.read_text())["results"]])
    assert found[0] == found[1]
    assert {op for op, *_ in found[0]} == {"relu", "square"}


def test_what_processes_are_forked_from_leaves_cuda_alone() -> None:
    code = """
import torch
driver = lambda: "libcuda.so" in open("/proc/self/maps").read()
before = driver()
import fastops.selftest.workers
print(driver() == before, torch.cuda.is_initialized())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


class Deadly(NamedTuple):
    """What a worker does not survive."""

    path: target.Path

    def target(self) -> target.Target:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Endless(NamedTuple):
    """What never answers."""

    path: target.Path

    def target(self) -> target.Target:
        time.sleep(3600)
        raise AssertionError


@pytest.mark.parametrize(("fault", "expected"), [(Deadly, "was ended"), (Endless, "no answer in 30 seconds")])
def test_a_fault_that_ends_or_stops_a_process(
    fault: type[Deadly | Endless], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the failure of that operator, and the others are run."""
    monkeypatch.setattr(workers, "SILENCE", 30.0)
    path = target.Path(torch.device("cpu"), "reference")
    groups = [
        (
            by_name()[op],
            path,
            [target.Target(by_name()[op], dtype, path, True) for dtype in (torch.float32, torch.float64)],
        )
        for op in ("square", "relu")
    ]
    right = workers._task
    is_deadly = (groups[0][2][0],)
    monkeypatch.setattr(workers, "_task", lambda t: fault(path) if t in is_deadly else right(t))
    results = {step.op: step.results for step in workers.shared_steps(groups, 2) if step.results}
    dead, *alive = results["square"]
    assert (dead.op, dead.dtype, dead.ok) == ("square", "f32", False)
    assert expected in dead.detail
    for r in (*alive, *results["relu"]):
        assert r.ok, r
    assert {r.dtype for r in alive} == {"f64"}
    assert {r.dtype for r in results["relu"]} == {"f32", "f64"}


BREAKS = {
    "a slightly wrong value": (
        "relu",
        """
module = sys.modules["fastops.ops.relu"]
right = module._op.call
module._op.call = lambda x: right(x) * (1 + 2**-20)
""",
        "forward",
    ),
    "a wrong gradient": (
        "sigmoid",
        """
from fastops._operator import OPERATORS
backward = OPERATORS["sigmoid_backward"]
right = backward.call
backward.call = lambda grad, output: right(grad, output) * 0.9999
""",
        "gradient",
    ),
    "an exception": (
        "square",
        """
module = sys.modules["fastops.ops.square"]
def crash(*args):
    raise ZeroDivisionError("crashed on purpose")
module._op.call = crash
""",
        "crashed on purpose",
    ),
    "a kernel that writes to its input": (
        "axpby",
        """
import torch
library = torch.library.Library("fastops", "IMPL", "CPU")
right = torch.ops.fastops.axpby_reference.default
def spoil(x, y, alpha=1.0, beta=1.0):
    out = right(x, y, alpha, beta)
    if x.numel() and not x._is_view() and x.is_contiguous():
        x.view(-1)[0] += 1
    return out
library.impl("axpby", spoil, allow_override=True)
""",
        "inputs unmodified",
    ),
    "a row that depends on the batch": (
        "layer_norm",
        """
import torch
library = torch.library.Library("fastops", "IMPL", "CPU")
right = torch.ops.fastops.layer_norm_reference.default
def spoil(input, weight=None, bias=None, dims=1, eps=1e-5, weight_offset=0.0):
    return right(input, weight, bias, dims, eps, weight_offset) * (1 + 2**-23 * (input.shape[0] % 2))
library.impl("layer_norm", spoil, allow_override=True)
""",
        "row alone as in the batch",
    ),
    "an element that is not written": (
        "relu",
        """
import torch
library = torch.library.Library("fastops", "IMPL", "CPU")
right = torch.ops.fastops.relu_reference.default
def spoil(input):
    value = right(input)
    out = torch.empty_like(value)
    out.view(-1)[:-1] = value.view(-1)[:-1]
    return out
library.impl("relu", spoil, allow_override=True)
""",
        "every element written",
    ),
    "a row late among many": (
        "relu",
        """
import torch
library = torch.library.Library("fastops", "IMPL", "CPU")
right = torch.ops.fastops.relu_reference.default
def spoil(input):
    out = right(input)
    if input.dim() and input.shape[0] > 1000:
        out[777] += 1
    return out
library.impl("relu", spoil, allow_override=True)
""",
        "rows of every rule",
    ),
    "one number": (
        "relu",
        """
import torch
library = torch.library.Library("fastops", "IMPL", "CPU")
right = torch.ops.fastops.relu_reference.default
library.impl("relu", lambda input: right(input).masked_fill(input == 2**-100, 0), allow_override=True)
""",
        "every number",
    ),
    "ties that are rounded up": (
        "square",
        """
import torch
library = torch.library.Library("fastops", "IMPL", "CPU")
def spoil(input):
    y = input.double().square()
    return (y if input.dtype == torch.float64 else y * (1 + 2**-50 * (y != y.float()).double())).to(input.dtype)
library.impl("square", spoil, allow_override=True)
""",
        "ties to even",
    ),
    "a result of the number of threads": (
        "relu",
        """
import torch
library = torch.library.Library("fastops", "IMPL", "CPU")
right = torch.ops.fastops.relu_reference.default
library.impl("relu", lambda input: right(input) * (1 + 2**-23 * (torch.get_num_threads() == 7)), allow_override=True)
""",
        "same bits every run",
    ),
}


@pytest.mark.parametrize(("op", "code", "expected"), BREAKS.values(), ids=BREAKS)
def test_what_is_broken_fails(op: str, code: str, expected: str) -> None:
    program = f"""
import sys
import fastops
{code}
from fastops.selftest.__main__ import main
sys.exit(main(["--device", "cpu", "--op", {op!r}, "--dtype", "f32", "--quick"]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout
    assert expected in done.stdout


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("c_library", [True, False])
def test_unwritten_elements_are_found(
    dtype: torch.dtype, c_library: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not c_library:
        monkeypatch.setattr(poison, "_by_c_library", lambda call, like: None)

    def leave_a_column() -> Iterable[Tensor]:
        out = torch.empty(37, 67, dtype=dtype, device=device)
        out[:, :66] = 1
        return [out]

    def write_all() -> Iterable[Tensor]:
        return [torch.ones(37, 67, dtype=dtype, device=device)]

    try:
        found = poison.unwritten(leave_a_column)
        # Freed memory holds the C library's own notes at its beginning.
        assert found == 37 if c_library or device.type == "cuda" else 34 <= found <= 37
        assert poison.unwritten(write_all) == 0
    except poison.NotPoisonedError:
        if c_library or device.type == "cuda":
            raise


def test_memory_that_never_comes_back_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison, "_by_c_library", lambda call, like: None)
    always_the_same = torch.ones(37)
    with pytest.raises(poison.NotPoisonedError):
        poison.unwritten(lambda: [always_the_same])


def test_memory_that_never_comes_back_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before is said, and the calls behind it are made."""
    answers = iter([poison.NotPoisonedError("none"), 5, *[poison.NotPoisonedError("none")] * 99])

    def unwritten(call: object) -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(checks, "unwritten", unwritten)
    path = target.Path(torch.device("cpu"), "cpu", target.CHOSEN, True)
    (outcome,) = checks.poisoned_outputs(target.Target(by_name()["square"], torch.float32, path, True))
    assert not outcome.ok
    assert "5 elements unwritten" in outcome.detail


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ulps(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    one = torch.ones(3, dtype=torch.float64)
    assert ulps(one.to(dtype), one) == 0
    assert ulps((one + limits.eps).to(dtype), one) == 1
    assert ulps((one * 8 * (1 + 2 * limits.eps)).to(dtype), one * 8, relative=True) == 2
    smallest = torch.tensor([limits.tiny * limits.eps], dtype=torch.float64)
    assert ulps(smallest.to(dtype), 0 * smallest, relative=True) == 1
    assert ulps(one.to(dtype) * torch.nan, one) == torch.inf
    assert ulps(one.to(dtype) * torch.inf, one) == torch.inf
    assert ulps(one.to(dtype) * torch.nan, one * torch.nan) == 0
    # One small number beside large ones: by itself it is wrong, next to them it is not.
    truth, out = torch.tensor([1.0, limits.eps], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=dtype)
    assert ulps(out, truth) < 2
    assert ulps(out, truth, relative=True) == pytest.approx(1 / limits.eps)
    # One beside what is infinite, or whose square is, is measured as by itself.
    for large in (torch.inf, torch.nan, limits.max / 2):
        truth = torch.tensor([1.0, 2.0, large], dtype=torch.float64)
        assert ulps(truth.to(dtype), truth) == 0
        assert ulps(torch.tensor([1.0, 5.0, large], dtype=dtype), truth, relative=True) > 1
        if not large < torch.inf:
            assert ulps(torch.tensor([1.0, 5.0, large], dtype=dtype), truth) > 1
    wide = torch.tensor([1.0, 2.0], dtype=torch.float64) * 1e200
    assert ulps(wide * torch.tensor([1.0, 1.5]), wide) > 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_number(dtype: torch.dtype) -> None:
    every = every_number(dtype).flatten()
    bits = every.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize])
    assert len(bits.unique()) == len(bits)
    limits = torch.finfo(dtype)
    for number in (0.0, 1.0, -1.0, limits.tiny, limits.tiny * limits.eps, limits.max, torch.inf, -torch.inf):
        assert (every == number).any(), number
    assert every.isnan().sum() > 10
    exponents = torch.frexp(every[every.isfinite() & (every.abs() >= limits.tiny)].double()).exponent
    assert len(exponents.unique()) == exponents.max() - exponents.min() + 1


def test_no_number_is_no_small_error() -> None:
    case = by_name()["linear_cross_entropy"]
    nothing = dataclasses.replace(
        case, function=lambda x, w, y, **options: fastops.linear_cross_entropy(x, w, y, **options) * torch.nan
    )
    path = target.Path(torch.device("cpu"), "cpu")
    (outcome,) = rounded_once(target.Target(nothing, torch.bfloat16, path, True))
    assert not outcome.ok
    assert "nan" in outcome.detail


def test_needs_no_test_packages() -> None:
    """The selftest is for users, who have neither pytest nor numpy."""
    program = f"""
import sys
for name in ("pytest", "_pytest", "expecttest", "hypothesis"):
    sys.modules[name] = None
from fastops.selftest.__main__ import main
sys.exit(main({SHORT!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
