"""rope and qk_norm_rope: values and gradients of every form against float64, layouts, models' own rotations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from rotary import EPS, OPS, Form, Op, all_bits, check, every_dtype, every_op, normalized, rotated
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import fastops
from fastops.cases import Make, misaligned, row_slice, stepped, transposed
from fastops.selftest.accuracy import Evaluation, evaluate, ulps
from fastops.selftest.bits import same_bits

F64 = torch.float64
I32 = torch.int32
ROPE, NORM = OPS

FORMS = (
    Form("whole", said=False),
    Form("half", half=True),
    Form("odd_half", dim=16, rotary=10, half=True, said=False),
    Form("interleaved", interleaved=True),
    Form("interleaved_half", interleaved=True, half=True),
    Form("10_of_33", dim=33, rotary=10),
    Form("10_of_33_interleaved", dim=33, rotary=10, interleaved=True),
    Form("34_of_64", dim=64, rotary=34, said=False),
    Form("34_of_64_interleaved", dim=64, rotary=34, interleaved=True, half=True),
    Form("20_of_36", dim=36, rotary=20, half=True),
    Form("2_of_21", dim=21, rotary=2, half=True),
    Form("246_of_255", dim=255, rotary=246),  # on CUDA more turns than a warp has lanes
    Form("250_of_256_interleaved", dim=256, rotary=250, interleaved=True),
    Form("wide", dim=64, wide=True),
    Form("wide_interleaved", dim=40, wide=True, interleaved=True, half=True),
    Form("tables_of_batch", table_batch=(2,)),
    Form("tables_of_one", table_batch=(1,), half=True),
    Form("two_batches", batch=(2, 3)),
    Form("tables_of_two_batches", batch=(2, 3), table_batch=(2, 3)),
    Form("tables_of_the_first_batch", batch=(2, 3), table_batch=(2, 1)),
    Form("tables_of_the_last_batch", batch=(2, 3), table_batch=(1, 3), interleaved=True),
    Form("tables_of_fewer_batches", batch=(2, 3), table_batch=(3,)),
    Form("no_batch", batch=()),
    Form("positions", positions=()),
    Form("positions_of_batch", positions=(2,), half=True),
    Form("positions_of_one", positions=(1,), interleaved=True),
    Form("positions_int32", positions=(2,), position_dtype=I32),
    Form("positions_of_two_batches", batch=(2, 3), positions=(2, 3)),
    Form("positions_of_the_first_batch", batch=(2, 3), positions=(2, 1), position_dtype=I32),
    Form("one_head", heads=1, k_heads=1),
    Form("8_heads", heads=8, k_heads=8, dim=8),
    Form("71_heads", heads=71, k_heads=1, dim=8),
    Form("more_heads_of_k", heads=1, k_heads=5),
    Form("without_k", k_heads=None),
    Form("two_dimensions", batch=(), heads=None),
    Form("two_dimensions_without_k", batch=(), heads=None, k_heads=None, positions=()),
    Form("by_token", seq_dim=-3),
    Form("by_token_positive", seq_dim=1, table_batch=(2,)),
    Form("by_token_without_batch", batch=(), seq_dim=0),
    Form("tokens_first", seq_dim=-4),
    Form("tokens_first_positive", seq_dim=0, table_batch=(2,), interleaved=True),
    *(Form(f"dim{n}", dim=n, interleaved=n % 16 == 8) for n in (2, 4, 6, 8, 24, 80, 96, 128, 192, 256)),
    Form("most_of_a_head", batch=(1,), seq=2, dim=2048),
    Form("most_of_a_head_partly", batch=(1,), seq=2, dim=2048, rotary=1026, interleaved=True),
    Form("more_than_a_kernel_takes", batch=(1,), seq=2, dim=2050),
    Form("decode", batch=(64,), heads=8, k_heads=2, seq=1, dim=128, positions=(64,)),
    Form("decode_of_tables", batch=(64,), heads=8, k_heads=2, seq=1, dim=64, table_batch=(64,), seq_dim=-3),
    Form("offset", weight_offset=1.0),
    Form("wide_offset", wide=True, weight_offset=1.0, rotary=10),
    Form("no_tokens", seq=0),
    Form("no_batch_entries", batch=(0,)),
    Form("no_heads", heads=0, k_heads=0),
    Form("no_heads_of_k", k_heads=0),
    Form("no_heads_of_q", heads=0),
    Form("tokens_between_batches", batch=(2, 3), seq_dim=1, positions=(2, 3)),
)
every_form = pytest.mark.parametrize("form", FORMS)
# One of each way that a kernel goes.
SOME = tuple(f for f in FORMS if f.name in ("whole", "34_of_64_interleaved", "wide", "10_of_33", "positions_of_batch"))
some_forms = pytest.mark.parametrize("form", SOME)
BY_NAME = {form.name: form for form in FORMS}


def kernels_of(found: Evaluation) -> tuple[Tensor, ...]:
    """All but the gradients of cos and sin, which torch sums in an order that follows strides."""
    return found.outputs + found.gradients[:-2]


@every_form
@every_op
@every_dtype
def test_values_and_gradients(op: Op, form: Form, dtype: torch.dtype, device: torch.device) -> None:
    found = check(op, op.options(form), op.arguments(form, Make(device, dtype)))
    if form.seq == 0 or 0 in form.batch:
        assert not any(gradient.count_nonzero() for gradient in found.gradients)


@every_op
@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@every_dtype
def test_tables_of_any_dtype(op: Op, given: torch.dtype, dtype: torch.dtype, device: torch.device) -> None:
    """Those that no kernel has come to the one that is computed in, float32 or float64, which may lose digits."""
    form = BY_NAME["whole"]
    *tensors, cos, sin, positions = op.arguments(form, Make(device, dtype))
    cos, sin = (t.to(torch.float16).to(torch.bfloat16).to(given) for t in (cos, sin))
    expected = evaluate(
        op.ours(**op.options(form)), (*tensors, cos.to(F64).to(dtype), sin.to(F64).to(dtype), positions)
    )
    found = evaluate(op.ours(**op.options(form)), (*tensors, cos, sin, positions))
    assert all_bits(kernels_of(found), kernels_of(expected))
    assert [g.dtype for g in found.gradients[-2:]] == [given, given]


@pytest.mark.parametrize("interleaved", [False, True])
def test_adjoint_is_the_transpose(interleaved: bool, device: torch.device) -> None:
    """Also where a pair has two sines and two cosines."""
    make = Make(device, F64)
    q, k, x, y = (make(2, h, 5, 14) for h in (3, 2, 3, 2))
    cos, sin = make(5, 10), make(5, 10)
    options = (None, 10, interleaved, -2)
    forward = torch.ops.fastops.rope(q, k, cos, sin, *options)
    back = torch.ops.fastops.rope(x, y, cos, sin, *options, True)
    for a, b, c, d in zip((x, y), forward, back, (q, k), strict=True):
        torch.testing.assert_close((a * b).sum(), (c * d).sum())
    leaf = q.requires_grad_()
    (expected,) = torch.autograd.grad(rotated(leaf, cos, sin, rotary_dim=10, interleaved=interleaved), leaf, x)
    torch.testing.assert_close(back[0], expected)


@every_op
@every_dtype
def test_positions_in_any_order(op: Op, dtype: torch.dtype, device: torch.device) -> None:
    """Backwards, repeated, at a stride, and at stride 0 for all of a batch: the bits of tables that were looked up."""
    form = BY_NAME["positions_of_batch"]
    *tensors, cos, sin, _ = op.arguments(form, Make(device, dtype))
    run = op.ours(**op.options(form))
    some = torch.tensor([6, 0, 3, 3, 1], device=device)
    for positions in (
        some,
        some.flip(0).expand(2, 5),
        torch.stack((some, some.flip(0)), -1).mT,
        torch.tensor([4], dtype=I32, device=device).expand(2, 5),
        torch.arange(10, device=device).remainder(7)[::2],
    ):
        found = evaluate(run, (*tensors, cos, sin, positions))
        expected = evaluate(run, (*tensors, cos[positions.long()], sin[positions.long()], None))
        assert all_bits(kernels_of(found), kernels_of(expected))


def _by_token(t: Tensor) -> Tensor:
    return t.transpose(-2, -3).contiguous().transpose(-2, -3)


def _of_packed(t: Tensor) -> Tensor:
    """Some heads of a projection that has others before and behind them."""
    t = t.transpose(-2, -3)
    room = t.new_full((*t.shape[:-2], t.shape[-2] + 5, t.shape[-1]), torch.nan)
    return room[..., 2:-3, :].copy_(t).transpose(-2, -3)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "by_token": _by_token,
    "packed": _of_packed,
    "misaligned": misaligned,
    "misaligned by token": lambda t: misaligned(t.transpose(-2, -3)).transpose(-2, -3),
    "transposed": transposed,
    "stepped": stepped,
    "row_slice": row_slice,
    "tokens first": lambda t: t.movedim(-2, 0).contiguous().movedim(0, -2),
    "batch last": lambda t: t.movedim(0, -2).contiguous().movedim(-2, 0),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@every_layout
@some_forms
@every_op
@every_dtype
def test_layouts(
    op: Op, form: Form, layout: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device
) -> None:
    """One result of any strides of q and k, of the tables and of incoming gradients, with the strides of empty_like."""
    args = op.arguments(form, Make(device, dtype))
    run = op.ours(**op.options(form))
    dense = evaluate(run, args)
    laid_out = tuple(layout(x) for x in args[:2])
    found = evaluate(run, (*laid_out, *args[2:]))
    assert all_bits(kernels_of(found), kernels_of(dense))
    torch.testing.assert_close(found.gradients[-2:], dense.gradients[-2:])
    assert [y.stride() for y in found.outputs] == [torch.empty_like(x).stride() for x in laid_out]
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in (*laid_out, *args[2:])]
        assert [y.stride() for y in run(*fakes)] == [y.stride() for y in found.outputs]

    grads = tuple(Make(device, dtype, seed=5)(*y.shape) for y in dense.outputs)
    a, b = (evaluate(run, args, tuple(f(g) for g in grads)) for f in (layout, Tensor.contiguous))
    assert all_bits(kernels_of(a), kernels_of(b))

    table = layout if layout in (misaligned, transposed, row_slice) else stepped
    cos, sin = args[-3:-1]
    for tables in ((table(cos), sin), (table(cos), table(sin)), (cos, transposed(sin))):
        again = evaluate(run, (*args[:-3], *tables, args[-1]))
        assert all_bits(kernels_of(again), kernels_of(dense))


@every_op
@every_dtype
def test_expanded(op: Op, dtype: torch.dtype, device: torch.device) -> None:
    """Strides 0 of heads, tokens, batches, tables and incoming gradients."""
    make = Make(device, dtype)
    form = Form("expanded", batch=(2, 3), table_batch=(2, 3))
    q, k, *weights, cos, sin, positions = op.arguments(form, make)
    run = op.ours(**op.options(form))
    for q_like, k_like, table in (
        ((2, 3, 1, 5, 16), (1, 1, 2, 5, 16), (1, 3, 5, 16)),
        ((1, 3, 3, 5, 16), (2, 1, 2, 1, 16), (2, 1, 5, 16)),
        ((1, 1, 1, 1, 1), (2, 3, 2, 5, 1), (1, 1, 1, 1)),
    ):
        tensors = [
            t[tuple(slice(0, n) for n in size)].expand(t.shape)
            for t, size in ((q, q_like), (k, k_like), (cos, table), (sin, table))
        ]
        grads = tuple(t[:1, :, :1].expand(t.shape) for t in (make(*q.shape), make(*k.shape)))
        args, dense = ((*t[:2], *weights, *t[2:], positions) for t in (tensors, [t.contiguous() for t in tensors]))
        a, b = evaluate(run, args, grads), evaluate(run, dense, tuple(g.contiguous() for g in grads))
        assert all_bits(kernels_of(a), kernels_of(b))
        assert [y.stride() for y in a.outputs] == [torch.empty_like(x).stride() for x in tensors[:2]]


@every_op
@every_dtype
def test_batches_that_do_not_merge(op: Op, dtype: torch.dtype, device: torch.device) -> None:
    make = Make(device, dtype)
    form = Form("batches", batch=(2, 3), table_batch=(2, 3))
    q, k, *weights, cos, sin, positions = op.arguments(form, make)
    run = op.ours(**op.options(form))
    dense = evaluate(run, (q, k, *weights, cos, sin, positions))
    q, k, cos, sin = (t.transpose(0, 1).contiguous().transpose(0, 1) for t in (q, k, cos, sin))
    found = evaluate(run, (q, k, *weights, cos, sin, positions))
    assert all_bits(kernels_of(found), kernels_of(dense))
    assert [y.stride() for y in found.outputs] == [q.stride(), k.stride()]
    check(op, op.options(form), (q, k, *weights, cos, sin, positions))


@some_forms
@every_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_do_not_see_each_other(op: Op, form: Form, dtype: torch.dtype, device: torch.device) -> None:
    """The bits of a token and of a head alone, also where others are NaN; two runs equal, gradients of weights too."""
    form = replace(form, batch=(2,), heads=6, k_heads=3, seq=40, table_batch=(), positions=None)
    make = Make(device, dtype)
    q, k, *rest = op.arguments(form, make)
    *weights, cos, sin, _ = rest
    grads = make(*q.shape), make(*k.shape)
    run = op.ours(**op.options(form))

    def cut(tokens: slice, heads: slice, batch: slice = slice(None)) -> tuple[Tensor, ...]:
        def of(t: Tensor) -> Tensor:
            return t[batch, heads, tokens].contiguous()

        args = (of(q), of(k), *weights, cos[tokens], sin[tokens], None)
        found = evaluate(run, args, (of(grads[0]), of(grads[1])))
        return found.outputs + found.gradients

    whole = cut(slice(None), slice(None))
    assert all_bits(whole, cut(slice(None), slice(None)))
    for tokens in (slice(0, 1), slice(17, 20), slice(39, 40)):
        for heads in (slice(None), slice(1, 2)):
            one = cut(tokens, heads, slice(1, 2))
            assert all_bits(one[:4], tuple(t[1:, heads, tokens] for t in whole[:4]))
    q[:, :, 20] = torch.nan
    k[0] = torch.nan
    spoilt = cut(slice(None), slice(None))
    assert same_bits(spoilt[0][:, :, 21:], whole[0][:, :, 21:])
    assert same_bits(spoilt[2][:, :, :20], whole[2][:, :, :20])
    assert all_bits((spoilt[1][1], spoilt[3][1]), (whole[1][1], whole[3][1]))


@pytest.mark.parametrize("which", ["q", "k", "neither", "mixed"])
@every_dtype
def test_weights_of_one_of_both(which: str, dtype: torch.dtype, device: torch.device) -> None:
    form = BY_NAME["34_of_64_interleaved"]
    make = Make(device, dtype)
    q, k, a, b, *rest = NORM.arguments(form, make)
    a, b = {"q": (a, None), "k": (None, b), "neither": (None, None), "mixed": (a.to(make.parameter_dtype), b)}[which]
    check(NORM, {**NORM.options(form), "weight_offset": 0.5}, (q, k, a, b, *rest))  # where there is no weight no offset


@every_dtype
def test_weights_around_zero(dtype: torch.dtype, device: torch.device) -> None:
    """The sum with the offset is not rounded to the weights' dtype."""
    make = Make(device, dtype)
    q, k, *rest = NORM.arguments(Form("near", dim=64), make)
    a, b = make(64, scale=1e-3), make(64, scale=1e-3)
    check(NORM, {"eps": EPS, "weight_offset": 1.0}, (q, k, a, b, *rest[2:]))


@every_dtype
def test_is_rope_of_rms_norm(dtype: torch.dtype, device: torch.device) -> None:
    """With each default of eps; in half precision closer to the truth than the two ops, which round between them."""
    make = Make(device, dtype)
    q, k, a, b, cos, sin, positions = NORM.arguments(Form("plain", seq=64, dim=64, wide=True), make)
    q, k = q * 1e-3, k * 1e-3  # where eps tells
    a, b = a.to(dtype), b.to(dtype)
    check(NORM, {}, (q, k, a, b, cos, sin, positions))
    ours = fastops.qk_norm_rope(q, k, a, b, cos, sin)
    theirs = fastops.rope(fastops.rms_norm(q, (64,), a), fastops.rms_norm(k, (64,), b), cos, sin)
    eps = torch.finfo(F64 if dtype == F64 else torch.float32).eps
    for x, weight, y, z in zip((q, k), (a, b), ours, theirs, strict=True):
        assert y is not None
        assert z is not None
        truth = rotated(
            normalized(x.cpu().double(), weight.cpu().double(), eps), cos.cpu().double(), sin.cpu().double()
        )
        torch.testing.assert_close(y, z, rtol=0, atol=4 * torch.finfo(dtype).eps * truth.abs().max().item())
        if dtype == torch.bfloat16:
            assert ulps(y, truth) < ulps(z, truth)
            near, far = ((t.cpu().double() - truth).norm() for t in (y, z))
            assert near < 0.8 * far


def _rotate_half(x: Tensor) -> Tensor:
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def test_rotation_of_hugging_face(device: torch.device) -> None:
    make = Make(device, torch.float32)
    q, k = make(2, 4, 7, 64), make(2, 2, 7, 64)
    cos, sin = fastops.nn.RotaryEmbedding(64).to(device)(torch.arange(14, device=device).view(2, 7))
    assert cos.shape[:2] == (2, 7)
    if cos.shape[-1] == 32:
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    expected = (q * c) + (_rotate_half(q) * s), (k * c) + (_rotate_half(k) * s)
    torch.testing.assert_close(fastops.rope(q, k, cos, sin), expected)


def test_rotation_of_gpt_j(device: torch.device) -> None:
    """Tables of half the width, of a part of each head, tokens before heads."""
    make = Make(device, torch.float32)
    q, k = make(2, 7, 4, 64), make(2, 7, 4, 64)
    angle = make(7, 16)

    def apply_rotary_pos_emb(x: Tensor) -> Tensor:
        sin, cos = (f(angle)[None, :, None, :].repeat_interleave(2, 3) for f in (torch.sin, torch.cos))
        turned = torch.stack((-x[:, :, :, 1::2], x[:, :, :, ::2]), dim=-1).flatten(-2)
        return (x * cos) + (turned * sin)

    expected = tuple(torch.cat((apply_rotary_pos_emb(x[..., :32]), x[..., 32:]), -1) for x in (q, k))
    ours = fastops.rope(q, k, angle.cos(), angle.sin(), rotary_dim=32, interleaved=True, seq_dim=1)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("position", [0, 1, 4095, 100000])
def test_far_positions_to_one_rounding(position: int, device: torch.device) -> None:
    """Float32 tables of the module beside bfloat16 heads; angles of float64 are the truth."""
    make = Make(device, torch.bfloat16)
    q, k = make(1, 8, 3, 128), make(1, 2, 3, 128)
    positions = position + torch.arange(3, device=device)
    cos, sin = fastops.nn.RotaryEmbedding(128).to(device)(positions)
    assert cos.dtype == torch.float32
    angle = positions.cpu().double()[:, None] * 10000.0 ** (-torch.arange(0, 128, 2, dtype=F64) / 128)
    both: Any = fastops.rope(q, k, cos, sin, rotary_dim=128)
    for x, y in zip((q, k), both, strict=True):
        truth = rotated(x.cpu().double(), angle.cos(), angle.sin(), rotary_dim=128)
        assert ulps(y, truth) <= 0.51
