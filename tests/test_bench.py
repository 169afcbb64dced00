"""The benchmark: its byte counts, statistics, files and command line. No test asserts a time."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bench_content import QUICK, content
from table import every_case

from fastops.bench import first, host, kernel, memory, peers, problems, records, timing, traffic, work
from fastops.bench.__main__ import main
from fastops.cases import CASES, Case, by_name
from fastops.selftest.accuracy import is_learnable, learnable

CPU = torch.device("cpu")


# Bytes

# Of 8 rows of 16 columns in float32, a tensor of rows and columns being 512 bytes and a vector of columns 64.
BYTES = {
    "square": (512 + 512, 2 * 512 + 512),
    "relu": (512 + 512, 512 + 16 + 512),
    "sigmoid": (512 + 512, 2 * 512 + 512),
    "axpby": (2 * 512 + 512, 512 + 2 * 512),
    "swiglu": (2 * 512 + 512, 512 + 2 * 512 + 2 * 512),
    "geglu": (2 * 512 + 512, 512 + 2 * 512 + 2 * 512),
    "reglu": (2 * 512 + 512, 512 + 2 * 512 + 2 * 512),
    "glu": (1024 + 512, 512 + 1024 + 1024),
    "linear": (512 + 1024 + 64 + 512, (512 + 512 + 1024 + 64) + (512 + 1024 + 64)),
    "layer_norm": (512 + 2 * 64 + 512, (512 + 512 + 64) + (512 + 2 * 64)),
    "rms_norm": (512 + 64 + 512, (512 + 512 + 64) + (512 + 64)),
    "add_layer_norm": (2 * 512 + 2 * 64 + 2 * 512, (2 * 512 + 512 + 64) + (512 + 2 * 64)),
    "add_rms_norm": (2 * 512 + 64 + 2 * 512, (2 * 512 + 512 + 64) + (512 + 64)),
    "softmax": (512 + 512, 2 * 512 + 512),
    "log_softmax": (512 + 512, 2 * 512 + 512),
    "cross_entropy": (512 + 64 + 4, (4 + 512 + 64) + 512),
    "log_prob": (512 + 64 + 32, (32 + 512 + 64) + 512),
    "linear_cross_entropy": (512 + 1024 + 64 + 4, (4 + 512 + 1024 + 64) + (512 + 1024)),
    "linear_log_prob": (512 + 1024 + 64 + 32, (32 + 512 + 1024 + 64) + (512 + 1024)),
    "lltm": (3 * 512 + 6144 + 192 + 2 * 512, (2 * 512 + 3 * 512 + 6144 + 192) + (3 * 512 + 6144 + 192)),
}


@pytest.mark.parametrize("op", BYTES)
def test_fewest_bytes(op: str) -> None:
    case = by_name()[op]
    (inputs,) = problems.make_sets(case, torch.float32, CPU, (8, 16), 1)
    forward, backward = BYTES[op]
    assert kernel.fewest_bytes(case, inputs) == {
        "forward": forward,
        "backward": backward,
        "forward+backward": forward + backward,
    }


def test_one_place_in_memory_counts_once() -> None:
    x = torch.randn(3, 5)
    assert traffic.distinct_bytes([x, x, x.view(3, 5)]) == 60
    assert traffic.distinct_bytes([x, x.clone()]) == 120
    assert traffic.distinct_bytes([torch.empty(3, 5, device="meta") for _ in range(2)]) == 120
    assert traffic.distinct_bytes([]) == 0


# Problems


@every_case
def test_every_case_has_a_problem(case: Case) -> None:
    """A row of the table is enough: nothing in the benchmark names an op that it could not do without."""
    for shape in ((4, 8), (4, 6, 8)) if case.in_features else ((4, 8),):
        check_problem(case, shape)
    for device in (CPU, torch.device("cuda")):
        assert all(problems.default_shapes(case, device, quick) for quick in (False, True))


def check_problem(case: Case, shape: problems.Shape) -> None:
    (inputs,) = problems.make_sets(case, torch.float32, CPU, shape, 1)
    if case.name in problems.ROTARY:  # [batch, heads, seq, size], by default of four heads
        assert inputs.args[0].numel() == shape[0] * (shape[1] if len(shape) == 3 else 4) * shape[-1]
    elif all(map(is_learnable, traffic.tensors_of(inputs.args))):  # a loss of targets has fewer dimensions
        assert [t.shape for t in inputs.incoming][-1] == (shape[0], shape[-1])
    if len(shape) == 3 and case.name not in problems.ROTARY:
        assert inputs.args[0].shape == shape[:2]
    ours = peers.implementation("fastops", case, CPU)
    eager = peers.implementation("eager", case, CPU)
    for direction in work.DIRECTIONS:
        expected = work.results_of(work.call_of(ours, inputs, direction)(), direction)
        work.check_same(work.results_of(work.call_of(eager, inputs, direction)(), direction), expected, torch.float32)
        learn = len(learnable(inputs.args)) - len(case.constants)
        assert len(expected) == (len(inputs.incoming) if direction == "forward" else learn)


def test_default_shapes_leave_out_huge_parameters() -> None:
    cuda = torch.device("cuda")
    assert (512, 131072) in problems.default_shapes(by_name()["layer_norm"], cuda, quick=False)
    assert problems.default_shapes(by_name()["linear"], cuda, quick=False)[-1] == (8192, 4096)


def test_default_shapes_of_a_head() -> None:
    """Tokens, features and classes of language models, and of fewer numbers for a quick run."""
    for op in problems.LINEAR_LOSSES:
        case = by_name()[op]
        assert (8192, 4096, 128256) in problems.default_shapes(case, torch.device("cuda"), quick=False)
        for device in ("cuda", "cpu"):
            sizes = [problems.default_shapes(case, torch.device(device), quick) for quick in (True, False)]
            quick, full = (max(rows * n for rows, _, n in shapes) for shapes in sizes)
            assert quick < full


def test_default_shapes_of_a_block() -> None:
    """Of every gated unit, and of no other operator; of fewer numbers for a quick run."""
    assert {case.name for case in CASES if case.name.endswith("glu")} == set(problems.GATED_UNITS)
    for op in problems.GATED_UNITS:
        case = by_name()[op]
        assert (8192, 14336) in problems.default_shapes(case, torch.device("cuda"), quick=False)
        assert (1, 14336) in problems.default_shapes(case, torch.device("cuda"), quick=False)
        assert problems.default_shapes(case, CPU, quick=False) == [(512, 2816), (64, 11008)]
        for device in ("cuda", "cpu"):
            sizes = [problems.default_shapes(case, torch.device(device), quick) for quick in (True, False)]
            quick, full = (sum(rows * n for rows, n in shapes) for shapes in sizes)
            assert quick < full


def test_incoming_gradient_of_a_single_loss_is_1() -> None:
    (one,) = problems.make_sets(by_name()["linear_cross_entropy"], torch.bfloat16, CPU, (4, 6, 8), 1)
    assert torch.equal(one.incoming[0], torch.ones((), dtype=torch.bfloat16))
    (several,) = problems.make_sets(by_name()["linear_log_prob"], torch.bfloat16, CPU, (4, 6, 8), 1)
    assert several.incoming[0].shape == (4,)


def test_sets_overflow_the_cache() -> None:
    assert problems.sets_that_overflow(100, 300) == (3, True)
    assert problems.sets_that_overflow(100, 301) == (4, True)
    assert problems.sets_that_overflow(1000, 300) == (2, True)  # one set would be read again at once
    assert problems.sets_that_overflow(1, 300_000_000) == (problems.MOST_SETS, False)
    assert problems.sets_needed(by_name()["relu"], torch.float32, CPU, (8, 16)) == (1, False)


# Statistics


class Ticks:
    """A clock that stands still but for the calls that it is told of."""

    def __init__(self, *seconds: float) -> None:
        self.now = 0.0
        self.calls = 0
        self._seconds = seconds

    def __call__(self) -> float:
        return self.now

    def call(self) -> None:
        self.now += self._seconds[self.calls % len(self._seconds)]
        self.calls += 1


def test_statistics() -> None:
    found = timing.Statistics.of([5.0, 1.0, 3.0, 2.0, 4.0])
    assert found == timing.Statistics(median=3.0, low=2.0, high=4.0, best=1.0)
    assert found.spread == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="at least 2 samples, got 1"):
        timing.Statistics.of([1.0])


def test_repeated_is_the_time_of_one_call() -> None:
    clock = Ticks(0.001)
    after = []
    sample = timing.repeated(clock.call, 0.01, clock, after=lambda: after.append(clock.now))
    before = clock.calls
    assert sample() == pytest.approx(0.001)
    assert 10 <= clock.calls - before <= 20, "a sample takes as long as asked, and not much longer"
    assert after[-1] == clock.now


def test_what_follows_the_clock_is_not_timed() -> None:
    clock = Ticks(0.5)
    slow = Ticks(0.5)

    def before() -> None:
        clock.now += 100

    assert timing.single(clock.call, before, clock)() == 0.5
    sample = timing.repeated(slow.call, 0.1, slow, after=before_of(slow))
    assert sample() == 0.5


def before_of(clock: Ticks) -> Any:
    def after() -> None:
        clock.now += 100

    return after


def test_interleaved() -> None:
    order: list[str] = []
    times: dict[str, Iterator[float]] = {"a": iter([1.0, 9.0, 2.0]), "b": iter([4.0, 5.0, 6.0])}

    def sampler(name: str) -> timing.Sampler:
        def sample() -> float:
            order.append(name)
            return next(times[name])

        return sample

    found = timing.interleaved({name: sampler(name) for name in times}, rounds=3)
    assert "".join(order) == "abbaab", "what goes first changes"
    assert (found["a"].median, found["b"].median) == (2.0, 5.0)


# Memory


def test_recycled_and_fresh_memory() -> None:
    """4 MB: 1024 pages, or 2 huge ones."""
    x = torch.ones(1024, 1024)
    with memory.recycled() as recycled:
        if not recycled or memory.page_faults(lambda: None) is None:
            pytest.skip("not glibc")
        # The first calls may still find no place of their size.
        assert any((memory.page_faults(lambda: torch.neg(x)) or 0) < 2 for _ in range(50))
        memory.give_back()
        assert (memory.page_faults(lambda: torch.neg(x)) or 0) >= 2


def test_peak_memory() -> None:
    assert memory.peak_bytes(lambda: None, CPU) is None


def test_peak_memory_of_a_gpu(cuda: torch.device) -> None:
    x = torch.ones(1024, 1024, device=cuda)
    assert memory.peak_bytes(lambda: torch.neg(torch.neg(x)), cuda) == 2 * x.nbytes


# Peers


def test_different_results_are_refused() -> None:
    x = torch.randn(64)
    work.check_same((x,), (x * (1 + 1e-6),), torch.float32)
    with pytest.raises(work.RefusedError, match="result 0 differs from fastops'"):
        work.check_same((x,), (x * 1.01,), torch.float32)
    with pytest.raises(work.RefusedError, match="differs"):
        work.check_same((x * torch.nan,), (x,), torch.float32)
    with pytest.raises(work.RefusedError, match="result 1 has shape"):
        work.check_same((x, x), (x, x[1:]), torch.float32)
    with pytest.raises(work.RefusedError, match="gives 1 tensors, fastops 2"):
        work.check_same((x,), (x, x), torch.float32)


def test_what_leaves_out_a_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = dataclasses.replace(by_name()["axpby"], torch_op=lambda x, y, alpha, beta: alpha * x + beta * y.detach())
    groups = list(kernel.measure(case, torch.float32, "f32", CPU, (4, 8), ["eager"]))
    refused = {group[0].direction: group[1].refused for group in groups}
    assert not refused["forward"]
    assert "not have been used in the graph" in refused["backward"]
    assert "not have been used in the graph" in refused["forward+backward"]


def test_absent_and_unfit_peers_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    layer_norm = by_name()["layer_norm"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name, library in peers.LIBRARIES.items():
        assert library.install in peers.versions([name])[name]["absent"]
        with pytest.raises(peers.RefusedError, match="not installed"):
            peers.implementation(name, layer_norm, torch.device("cuda"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(peers.RefusedError, match="needs a GPU"):
        peers.implementation("liger", layer_norm, CPU)
    with pytest.raises(peers.RefusedError, match="no lltm"):
        peers.implementation("liger", by_name()["lltm"], torch.device("cuda"))


FORMS = [peers.SAVE_NONE, peers.EAGER, peers.EAGER_F32, peers.CHUNKED, peers.PRODUCTS]


def test_forms_are_of_some_ops() -> None:
    def found(op: str, dtype: torch.dtype) -> list[str]:
        return peers.of_op(FORMS, op, dtype)

    assert found("relu", torch.bfloat16) == [peers.EAGER]
    assert found("cross_entropy", torch.bfloat16) == [peers.EAGER, peers.EAGER_F32]
    assert found("linear_log_prob", torch.bfloat16) == [peers.SAVE_NONE, peers.EAGER, peers.PRODUCTS]
    assert found("linear_cross_entropy", torch.bfloat16) == FORMS
    assert peers.EAGER_F32 not in found("linear_cross_entropy", torch.float32), "eager is the same"
    assert peers.of_op(peers.LIBRARIES, "relu", torch.float32) == list(peers.LIBRARIES), "which say why not"
    assert [name for name in peers.PEERS if not peers.is_peer(name)] == [peers.SAVE_NONE, peers.PRODUCTS]


@pytest.mark.parametrize("op", ["cross_entropy", "linear_cross_entropy", "linear_log_prob"])
def test_forms_of_a_loss(op: str) -> None:
    """All give fastops' numbers; the matrix products alone are timed, and their results are nobody's."""
    names = peers.of_op(FORMS, op, torch.bfloat16)
    shape = (8, 16, 32) if op in problems.LINEAR_LOSSES else (8, 32)
    groups = list(kernel.measure(by_name()[op], torch.bfloat16, "bf16", CPU, shape, names))
    assert [group[0].direction for group in groups] == list(work.directions_of(op))
    for group in groups:
        assert [r.implementation for r in group] == ["fastops", *names]
        for r in group:
            if r.implementation == peers.CHUNKED and not hasattr(torch.nn.functional, "linear_cross_entropy"):
                assert "has no attribute 'linear_cross_entropy'" in r.refused
                continue
            assert not r.refused
            assert (r.share_of_copy is None) == (op in problems.LINEAR_LOSSES)


def test_no_backward_alone_of_linear_losses() -> None:
    assert work.directions_of("cross_entropy") == work.DIRECTIONS
    assert work.directions_of("linear_cross_entropy") == ("forward", "forward+backward")


def test_products_of_a_linear_loss() -> None:
    case = by_name()["linear_cross_entropy"]
    (inputs,) = problems.make_sets(case, torch.float32, CPU, (4, 6, 8), 1)
    products = peers.implementation(peers.PRODUCTS, case, CPU)
    (logits,) = work.call_of(products, inputs, "forward")()
    torch.testing.assert_close(logits, inputs.args[0] @ inputs.args[1].t())
    both = work.call_of(products, inputs, "forward+backward")()
    assert [tuple(product.shape) for product in both] == [(4, 8), (4, 6), (8, 6)]


def test_result_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Liger returns more than the loss."""
    module = SimpleNamespace(LigerFusedLinearCrossEntropyFunction=SimpleNamespace(apply=lambda *args: (args, None)))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    liger = peers.implementation("liger", by_name()["linear_cross_entropy"], torch.device("cuda"))
    assert liger.function(*liger.arguments("x", "w", "target")) == ("x", "w", "target")


class Overwriting(torch.autograd.Function):
    """As Liger's gated units, whose backward writes over what was kept."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.kept = gate.detach(), up.detach()
        return torch.nn.functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gate, up = (x.clone().requires_grad_() for x in ctx.kept)
        with torch.enable_grad():
            y = torch.nn.functional.silu(gate) * up
        for x, gradient in zip(ctx.kept, torch.autograd.grad(y, (gate, up), grads), strict=True):
            x.copy_(gradient)
        return ctx.kept  # type: ignore[no-any-return]


def test_a_peer_that_writes_over_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets copies, which the clock does not see: its first results are right, and the others' inputs stay."""
    module = SimpleNamespace(LigerSiLUMulFunction=Overwriting)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib, "import_module", lambda name: module)
    case = by_name()["swiglu"]
    (inputs,) = problems.make_sets(case, torch.float32, CPU, (4, 8), 1)
    before = [t.clone() for t in inputs.args]
    liger = peers.implementation("liger", case, torch.device("cuda"))
    ours = peers.implementation("fastops", case, CPU)
    for direction in work.DIRECTIONS:
        expected = work.results_of(work.call_of(ours, inputs, direction)(), direction)
        call = work.call_of(liger, inputs, direction)
        work.check_same(work.results_of(call(), direction), expected, torch.float32)
        call()
        assert all(torch.equal(a, b) for a, b in zip(inputs.args, before, strict=True))


@pytest.mark.parametrize("library", peers.LIBRARIES.values(), ids=peers.LIBRARIES)
def test_peers_take_every_argument(library: peers.Library) -> None:
    """The tensors of a problem all arrive, whatever the order; a peer that loses one would do less."""

    class Named(str):
        __slots__ = ()

        def float(self) -> str:
            return self

        def clone(self) -> str:
            return self

        def transpose(self, *dims: int) -> str:
            return self

        def repeat(self, *counts: int) -> str:
            return self

        def to(self, dtype: str) -> str:
            return self

        def __getitem__(self, at: Any) -> str:
            return self

        dtype = "float32"

    def eps(values: Iterable[Any]) -> list[float]:
        return [a for a in values if isinstance(a, float) and 0 < a < 1]

    class Names:
        """In the place of a Make."""

        parameter_dtype = "float32"

        def __init__(self) -> None:
            self._names = (Named(f"tensor {k}") for k in itertools.count())

        def __call__(self, *shape: int, **options: Any) -> Named:
            return next(self._names)

        integers = __call__

    for op, entry in library.entries.items():
        given = by_name()[op].problem(Names(), 4, 8)
        passed = entry.arguments(*given)
        assert {a for a in given if isinstance(a, Named)} == {a for a in passed if isinstance(a, Named)}
        assert eps(passed) == eps(given)


# The command line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--op", "tanh"], "op must be one of square, relu"),
        (["--dtype", "f8"], "dtype must be one of f32, bf16, f16, f64, got 'f8'"),
        (["--device", "tpu"], "device must be cpu, cuda, cuda:<index> or all, got 'tpu'"),
        (
            ["--shapes", "12x"],
            "shapes must be <rows>x<columns> or <rows>x<in_features>x<columns>, joined by commas, such as 8192x4096, "
            "got '12x'",
        ),
        (["--shapes", "0x4"], "got '0x4'"),
        (["--shapes", "1x2x3x4"], "got '1x2x3x4'"),
        (["--op", "relu", "--shapes", "2x3x4"], "relu has no in_features: its shapes are <rows>x<columns>, got 2x3x4"),
        (
            ["--peers", "eager,tvm"],
            "peers must be some of fastops save=none, eager, eager f32, compile, torch chunked, liger, quack, apex, "
            "flash_attn, cut_cross_entropy, mm, joined by commas, got 'tvm'",
        ),
        (["--measure", "speed"], "measure must be some of call, host, first, joined by commas, got 'speed'"),
        (["--plot", "picture.gif"], "--plot must end in .svg, got 'picture.gif'"),
        (["--csv", "/no/such/file"], "/no/such/file: there is no folder /no/such"),
        (["--csv", __file__], f"{__file__}: not a file of `python -m fastops.bench --csv` of this version"),
        (["--json", "/no/such/file"], "/no/such/file: there is no folder /no/such"),
        (["--from", "/no/such/file"], "--from /no/such/file: "),
        (["--from", __file__], f"--from {__file__}: "),
    ],
)
def test_what_is_not_there(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


def test_host_times_are_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {
        "fastops": timing.Statistics(median=2e-6, low=2e-6, high=2e-6, best=1e-6),
        "eager": timing.Statistics(median=3e-6, low=3e-6, high=3e-6, best=0.5e-6),
    }
    monkeypatch.setattr(host, "interleaved", lambda samplers, rounds: times)
    for results in host.measure(by_name()["relu"], torch.float32, "f32", CPU, ["eager"]):
        found = [(r.implementation, r.microseconds, r.best, r.times_fastops) for r in results]
        assert found == [("fastops", 2.0, 1.0, 1.0), ("eager", pytest.approx(3.0), 0.5, pytest.approx(1.5))]


def test_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "absent", lambda name: "not installed: how" if name == "liger" else "")
    file = tmp_path / "bench.json"
    assert main([*QUICK, "--json", str(file), "--csv", str(tmp_path / "card.csv")]) == 0
    assert {r.key for r in records.read(tmp_path / "card.csv")} == set(records.records_of(json.loads(file.read_text())))
    printed = capsys.readouterr()
    assert "relu, f32, cpu, copy " in printed.out
    assert "liger is absent: not installed: how" in printed.out
    assert "liger is absent: not installed: how" in printed.err, "said before it starts, not only at the end"
    assert "relu f32 cpu 1024x256 forward: fastops " in printed.err
    found = json.loads(file.read_text())
    assert set(found) >= set(content())
    assert found["environment"]["versions"]["torch"] == torch.__version__
    assert found["paths"] == {"cpu": "cpu"}
    for key, kind in (("results", kernel.Result), ("host", host.HostResult)):
        assert all(set(r) == {f.name for f in dataclasses.fields(kind)} for r in found[key])
        assert not any(r["refused"] for r in found[key])
    assert len(found["results"]) == 2 * 3 * 2  # shapes, directions, implementations
    assert len(found["host"]) == 2 * 2
    for r in found["results"]:
        assert r["low"] <= r["microseconds"] <= r["high"]
        assert r["gigabytes_per_second"] == pytest.approx(r["bytes"] / r["microseconds"] / 1e3)
        assert r["share_of_copy"] == pytest.approx(r["gigabytes_per_second"] / r["copy_gigabytes_per_second"])
        assert r["peak_bytes"] is None, "not measured on the CPU, and not invented"
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()


def test_a_failure_of_ours_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    broken = {c.name: dataclasses.replace(c, function=fail) if c.name == "relu" else c for c in CASES}
    monkeypatch.setattr("fastops.selftest.choices.by_name", lambda: broken)
    assert main([*QUICK, "--shapes", "4x8"]) == 1
    assert "fastops failed relu f32: ZeroDivisionError: on purpose" in capsys.readouterr().out


def test_first_result() -> None:
    (found,) = first.measure("relu", torch.float32, "f32", CPU, [])
    assert not found.refused
    assert found.import_seconds is not None
    assert found.call_seconds is not None
    assert found.seconds == pytest.approx(found.import_seconds + found.call_seconds)


def test_captured_into_a_graph(cuda: torch.device) -> None:
    """Backward and both are replayed, not only recorded: the outputs of the graph are those of the calls."""
    case = by_name()["layer_norm"]
    inputs = problems.make_sets(case, torch.float32, cuda, (64, 128), 3)
    for direction in work.DIRECTIONS:
        stream = torch.cuda.Stream(cuda)
        with torch.set_grad_enabled(direction != "forward"):
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.default_stream(cuda))
                calls = [work.call_of(peers.implementation("fastops", case, cuda), one, direction) for one in inputs]
            replay = kernel.Replay(calls, stream)
            for captured in replay.outputs:
                for tensor in work.results_of(captured, direction):
                    tensor.zero_()
            assert replay() > 0
            for captured, call in zip(replay.outputs, calls, strict=True):
                expected = work.results_of(call(), direction)
                torch.cuda.synchronize(cuda)
                work.check_same(work.results_of(captured, direction), expected, torch.float32)


def test_what_does_not_go_into_a_graph_is_refused(cuda: torch.device) -> None:
    """And the next one is captured all the same. In a process of its own: a broken capture may leave traces."""
    program = """
import torch
from fastops.bench.cuda_graph import Replay
from fastops.bench.work import RefusedError
x = torch.ones(1 << 20, device="cuda")
try:
    Replay([lambda: x.sum().item()], torch.cuda.Stream())
except RefusedError as error:
    print(error)
torch.cuda.empty_cache()
good = Replay([lambda: x + 1], torch.cuda.Stream())
print(good() > 0, good.outputs[0].sum().item())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    refused, measured = done.stdout.splitlines()
    assert refused.startswith("does not go into a CUDA graph: ")
    assert measured == f"True {2.0 * 2**20}"


def test_quick_run_on_a_gpu(cuda: torch.device, tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    arguments = ["--device", "cuda", "--op", "layer_norm", "--shapes", "4096x256", "--peers", "eager"]
    assert main([*arguments, "--measure", "call", "--json", str(file)]) == 0
    for r in json.loads(file.read_text())["results"]:
        assert not r["refused"]
        assert r["cold"]
        assert r["sets"] * r["bytes"] >= problems.LEAST_BYTES
        assert r["peak_bytes"] > 0


def test_linear_losses_on_a_gpu(cuda: torch.device, tmp_path: Path) -> None:
    """Whole calls, of which the products alone have no memory."""
    file = tmp_path / "bench.json"
    arguments = ["--device", "cuda", "--op", "linear_cross_entropy", "--shapes", "512x64x4096", "--measure", "call"]
    assert main([*arguments, "--peers", "fastops save=none,eager,eager f32,mm", "--json", str(file)]) == 0
    found = json.loads(file.read_text())["results"]
    assert [r["direction"] for r in found] == ["forward"] * 5 + ["forward+backward"] * 5
    for r in found:
        assert not r["refused"]
        assert r["microseconds"] > 0
        assert (r["peak_bytes"] is None) == (r["implementation"] == peers.PRODUCTS)
