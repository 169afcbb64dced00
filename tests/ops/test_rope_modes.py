"""rope and qk_norm_rope: derivatives of every kind, batches, torch.compile, export, what is kept, errors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorder import Recorder
from rotary import OPS, Form, Op, all_bits, every_dtype, every_op
from table import assert_close, batch_of
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from transforms import every_transform

import fastops
from fastops.cases import Make
from fastops.selftest.accuracy import evaluate, is_learnable
from fastops.selftest.bits import same_bits

F64 = torch.float64
ROPE, NORM = OPS
# Small ones, for derivatives; the rows of the table have whole heads and a part of them by halves.
SMALL = (
    Form("interleaved_by_token", batch=(1,), heads=2, k_heads=1, seq=2, dim=5, rotary=4, interleaved=True, seq_dim=-3),
    Form("half_table", batch=(2,), heads=1, k_heads=2, seq=2, dim=4, half=True, table_batch=(2,), weight_offset=1.0),
    Form("positions", batch=(), heads=1, k_heads=1, seq=3, dim=4, positions=()),
    Form("positions_of_batch", batch=(2,), heads=2, k_heads=1, seq=2, dim=4, positions=(2,), seq_dim=1),
    Form("without_k", batch=(1,), heads=2, k_heads=None, seq=2, dim=4, rotary=2, interleaved=True),
    Form("two_dimensions", batch=(), heads=None, seq=2, dim=4),
    Form("two_dimensions_without_k", batch=(), heads=None, k_heads=None, seq=2, dim=4, positions=()),
)
every_form = pytest.mark.parametrize("form", SMALL)
Function = Callable[..., tuple[Tensor, ...]]


def functions(op: Op, form: Form, device: torch.device) -> tuple[Function, Function, list[Tensor]]:
    """Ours and the formula, of what is differentiated alone."""
    args = op.arguments(form, Make(device, F64))
    places = [k for k, a in enumerate(args) if is_learnable(a)]

    def of_tensors(function: Function) -> Function:
        def call(*tensors: Tensor) -> tuple[Tensor, ...]:
            filled = list(args)
            for k, tensor in zip(places, tensors, strict=True):
                filled[k] = tensor
            return function(*filled)

        return call

    options = op.options(form)
    return of_tensors(op.ours(**options)), of_tensors(op.plain(**options)), [args[k] for k in places]


@every_op
@every_form
@every_transform
def test_transforms(op: Op, form: Form, transform: Callable[..., Any], device: torch.device) -> None:
    ours, plain, x = functions(op, form, device)
    batch = batch_of(tuple(x))
    assert_close(transform(ours, x, batch), transform(plain, x, batch))


@every_op
@every_form
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_finite_differences(op: Op, form: Form, check: Callable[..., bool], device: torch.device) -> None:
    ours, _, x = functions(op, form, device)
    assert check(ours, [t.requires_grad_() for t in x])


AXES: dict[str, Callable[[int, Any], Any]] = {
    "q": lambda k, last: last if k == 0 else None,
    "k": lambda k, last: last if k == 1 else None,
    "q and k": lambda k, last: last if k < 2 else None,
    "all but q": lambda k, last: None if k == 0 else last,
    "tables": lambda k, last: last if k >= 4 else None,
    "cos": lambda k, last: 0 if k == 4 else None,
    "q and sin": lambda k, last: 0 if k in (0, 5) else None,
    "weights": lambda k, last: 0 if k in (2, 3) else None,
    "one weight and k": lambda k, last: 0 if k in (1, 2) else None,
    "positions": lambda k, last: 0 if k == 6 else None,
    "positions and q": lambda k, last: 0 if k in (0, 6) else None,
}


# Behind a batch in front the tokens are between two.
TOKENS_FIRST = Form("tokens_first", batch=(2,), heads=2, k_heads=1, seq=2, dim=4, seq_dim=0)


@every_op
@pytest.mark.parametrize("form", [*SMALL, TOKENS_FIRST])
@pytest.mark.parametrize("at", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_batches(op: Op, form: Form, axes: Callable[[int, Any], Any], at: int, device: torch.device) -> None:
    """Of some arguments, with the batch in front or behind: values and gradients of each sample."""
    makes = Make(device, F64)
    elements = [op.arguments(form, makes) for _ in range(3)]
    names = (0, 1, 2, 3, 4, 5, 6) if op.norm else (0, 1, 4, 5, 6)
    dims = tuple(None if elements[0][k] is None else axes(name, at) for k, name in enumerate(names))
    if dims == (None,) * len(dims):
        pytest.skip("no such argument")
    args = [elements[0][k] if d is None else torch.stack([e[k] for e in elements], d) for k, d in enumerate(dims)]
    options = op.options(form)
    places = tuple(k for k, a in enumerate(args) if is_learnable(a))

    def gradient(function: Function) -> Function:
        return torch.func.grad(lambda *a: sum(y.sin().sum() for y in function(*a)), places)  # type: ignore[no-any-return]

    ours, plain = op.ours(**options), op.plain(**options)
    singles = [tuple(a if d is None else a.select(d, n) for a, d in zip(args, dims, strict=True)) for n in range(3)]
    for one, other in ((ours, plain), (gradient(ours), gradient(plain))):
        found = torch.func.vmap(one, dims)(*args)
        expected = [other(*single) for single in singles]
        assert_close(found, tuple(torch.stack(y) for y in zip(*expected, strict=True)))


def test_a_batch_runs_the_kernel(device: torch.device) -> None:
    """Of heads and tables; of weights there is one set in a kernel."""
    form = Form("plain", seq_dim=-3)
    for op in OPS:
        q, k, *rest = op.arguments(form, Make(device, torch.float32))
        ours = op.ours(**op.options(form))
        with Recorder() as recorder:
            torch.func.vmap(ours, (0, 0, *[None] * len(rest)))(q, k, *rest)
        assert recorder.ops == [op.name]
    with Recorder() as recorder:
        weights = torch.ones(2, form.dim, device=device)
        torch.func.vmap(ours, (0, 0, 0, 0, None, None, None))(q, k, weights, weights, *rest[2:])
    assert recorder.ops == []


def test_only_what_is_needed_is_computed(device: torch.device) -> None:
    """Frozen weights have no sums, and q and k no second pass where the tables learn."""
    form = Form("plain")
    args = NORM.arguments(form, Make(device, torch.float32))[:-1]
    for needed in ((0,), (1,), (0, 1), (2,), (0, 3), (0, 1, 2, 3), (4,), (0, 5)):
        leaves = [t.detach().requires_grad_(at in needed) for at, t in enumerate(args)]
        with Recorder() as recorder:
            sum(y.square().sum() for y in fastops.qk_norm_rope(*leaves)).backward()  # type: ignore[arg-type, misc, union-attr]
        assert recorder.ops == ["qk_norm_rope", *["qk_norm_rope_backward"] * (min(needed) < 4)]
        if min(needed) < 4:
            assert recorder.args[1][-1] is (2 in needed or 3 in needed)
        assert [t.grad is not None for t in leaves] == [at in needed for at in range(6)]
    grads = [torch.ones_like(t) for t in args[:2]]
    raw = torch.ops.fastops.qk_norm_rope_backward
    for given, sizes in ((args[2:4], [16, 16]), ((args[2], None), [16, 0]), ((None, None), [0, 0])):
        rest = (*args[:2], *given, *args[4:], None, None, False, -2, None, 0.0)
        assert [t.numel() for t in raw(*grads, *rest, True)[2:]] == sizes
        assert [t.numel() for t in raw(*grads, *rest, False)[2:]] == [0, 0]


@pytest.mark.parametrize("looked_up", [False, True])
def test_of_q_and_k_nothing_is_kept(looked_up: bool, device: torch.device) -> None:
    form = Form("plain", positions=() if looked_up else None)
    q, k, cos, sin, positions = ROPE.arguments(form, Make(device, torch.bfloat16))
    q.requires_grad_()
    k.requires_grad_()
    tables = [cos, sin, *([positions] if looked_up else [])]
    for learns, expected in ((False, tables), (True, [*tables, q, k])):
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t.data_ptr()) or t, lambda t: t
        ):
            kept = fastops.rope(q, k, cos.detach().requires_grad_(learns), sin, positions=positions)
        assert len(kept) == 2
        assert saved == [t.data_ptr() for t in expected]


def test_defaults_are_left_out_of_a_call() -> None:
    """Each argument takes a tenth of a microsecond or two."""
    q, k, cos, sin, positions = ROPE.arguments(Form("plain", positions=()), Make("cpu", torch.float32))
    tables = cos[:5], sin[:5]
    calls: list[tuple[tuple[Tensor, Tensor], dict[str, Any], int]] = [
        (tables, {}, 4),
        ((cos, sin), {"positions": positions}, 6),
        (tables, {"rotary_dim": 16}, 6),
        (tables, {"interleaved": True}, 8),
    ]
    for given, options, most in calls:
        with Recorder() as recorder:
            fastops.rope(q, k, *given, **options)
        assert len(recorder.args[0]) <= most, options


@every_op
@every_form
def test_compile(op: Op, form: Form, device: torch.device) -> None:
    """In one graph, forward and backward; what is between depends on results."""
    ours, plain, x = functions(op, form, device)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *t: tuple(y.sin() for y in ours(*t)), fullgraph=True, backend="aot_eager")
    found, expected = evaluate(compiled, tuple(x)), evaluate(lambda *t: tuple(y.sin() for y in plain(*t)), tuple(x))
    assert_close(found.outputs + found.gradients, expected.outputs + expected.gradients)


@every_op
@pytest.mark.parametrize("looked_up", [False, True])
@pytest.mark.parametrize("k_heads", [2, None])
def test_compile_of_any_length(op: Op, looked_up: bool, k_heads: int | None, device: torch.device) -> None:
    """A second graph for any number of tokens, and no third."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    run: Function | None = None
    for seq in (5, 8, 11, 64):
        form = Form("plain", seq=seq, k_heads=k_heads, positions=() if looked_up else None, seq_dim=-3)
        eager = op.ours(**op.options(form))
        run = run or torch.compile(eager, fullgraph=True, backend=counter)
        args = op.arguments(form, Make(device, F64))
        found, expected = evaluate(run, args), evaluate(eager, args)
        assert_close(found.outputs + found.gradients, expected.outputs + expected.gradients)
    assert counter.frame_count == 2


def test_inductor(device: torch.device) -> None:
    """Both ops behind each other through the default backend, then of other lengths, which are then dynamic."""

    def network(rope: Function, norm: Function) -> Function:
        def of(q: Tensor, k: Tensor, a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
            q, k = norm(q.transpose(1, 2), k.transpose(1, 2), a, b, cos, sin, None)
            return rope(q.sin(), k, cos, sin, torch.arange(q.shape[2], device=q.device).flip(0))

        return of

    options = {"rotary_dim": 6, "interleaved": True}
    norm_options = {**options, "eps": 1e-3, "weight_offset": 0.5}
    ours = network(ROPE.ours(**options), NORM.ours(**norm_options))
    plain = network(ROPE.plain(**options), NORM.plain(**norm_options))
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True)
    for batch, seq in ((2, 5), (3, 7), (4, 9)):
        make = Make(device, F64)
        args = make(batch, seq, 3, 8), make(batch, seq, 2, 8), make(8), make(8), make(seq, 6), make(seq, 6)
        found, expected = evaluate(compiled, args), evaluate(plain, args)
        assert_close(found.outputs + found.gradients, expected.outputs + expected.gradients, atol=1e-9)


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict: bool) -> None:
    class Rotates(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Any, ...]:
            q, none = fastops.rope(q, None, cos, sin, positions=positions)
            assert none is None
            return fastops.qk_norm_rope(q, k, cos[0], None, cos, sin, positions=positions)

    tokens = torch.export.Dim("tokens", min=2, max=4096)
    args = torch.randn(2, 3, 5, 8), torch.randn(2, 1, 5, 8), torch.randn(9, 8), torch.randn(9, 8), torch.arange(5)
    dynamic = ({2: tokens}, {2: tokens}, {}, {}, {0: tokens})
    program = torch.export.export(Rotates(), args, dynamic_shapes=dynamic, strict=strict)
    called = [str(node.target) for node in program.graph.nodes if "fastops" in str(node.target)]
    assert called == ["fastops.rope.default", "fastops.qk_norm_rope.default"]
    assert_close(program.module()(*args), Rotates()(*args))


@every_op
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@every_dtype
def test_autocast_leaves_dtypes(op: Op, low: torch.dtype, dtype: torch.dtype, device: torch.device) -> None:
    form = Form("wide", wide=True)
    args = op.arguments(form, Make(device, dtype))
    found = []
    for enabled in (True, False):
        with torch.autocast(device.type, low, enabled=enabled):
            found.append(evaluate(op.ours(**op.options(form)), args))
    assert all_bits(found[0].outputs + found[0].gradients, found[1].outputs + found[1].gradients)


@every_op
def test_subclasses_have_their_say(op: Op) -> None:
    seen: list[Any] = []

    class Watched(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    form = Form("positions", positions=())
    args = op.arguments(form, Make("cpu", torch.float32))
    expected = op.ours(**op.options(form))(*args)
    for at in range(len(args)):
        seen.clear()
        watched = [x.as_subclass(Watched) if k == at else x for k, x in enumerate(args)]  # type: ignore[no-untyped-call]
        found = op.ours(**op.options(form))(*watched)
        assert seen[0] is getattr(fastops, op.name)
        assert all(same_bits(a.as_subclass(Tensor), b) for a, b in zip(found, expected, strict=True))


@every_op
def test_deterministic_and_deep_copies(op: Op, device: torch.device) -> None:
    form = Form("plain", seq=40)
    args = op.arguments(form, Make(device, torch.float32))
    run = op.ours(**op.options(form))
    first = evaluate(run, args)
    torch.use_deterministic_algorithms(True)
    try:
        again = evaluate(run, copy.deepcopy(args))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all_bits(first.outputs + first.gradients, again.outputs + again.gradients)
