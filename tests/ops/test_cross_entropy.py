"""cross_entropy's values: every option and reduction against float64 and torch's own, and the corners."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cross_entropy_inputs import every_dtype, every_option, every_reduction, made
from recorder import Recorder
from table import assert_close
from torch import Tensor

import fastops
from fastops.cases import DTYPES, Make, by_name
from fastops.cases.inputs import HALVES
from fastops.ops.cross_entropy import class_dim
from fastops.selftest.accuracy import ulps
from fastops.selftest.bits import same_bits

BOUNDS = by_name()["cross_entropy"].bounds


def formula(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Loss and lse by the formulas, row by row of what is left when ignored ones are taken out."""
    n = x.shape[class_dim(x)]
    rows, y = x.movedim(class_dim(x), -1).reshape(-1, n), target.reshape(-1).long()
    w = torch.ones(n, dtype=x.dtype) if weight is None else weight.to(x.dtype)
    kept = (y != ignore_index).nonzero().squeeze(1)
    u = rows[kept] * scale
    u = u if softcap is None else softcap * torch.tanh(u / softcap)
    lse = u.logsumexp(-1)
    of_target = u.gather(1, y[kept, None]).squeeze(1)
    each = (1 - label_smoothing) * w[y[kept]] * (lse - of_target)
    if label_smoothing:
        each = each + label_smoothing / n * (lse * w.sum() - (w * u).sum(1))
    each = each + z_loss * lse**2
    all_rows = torch.zeros(len(y), dtype=x.dtype)
    loss, logs = (all_rows.index_put((kept,), t).view(target.shape) for t in (each, lse))
    if reduction == "mean":
        loss = loss.sum() / w[y[kept]].sum()
    return (loss.sum() if reduction == "sum" else loss), logs


def wide(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v.cpu().double() if isinstance(v, Tensor) else v for k, v in options.items()}


def assert_as_formula(
    x: Tensor, target: Tensor, options: dict[str, Any], *, result: torch.dtype | None = None, lse: bool = False
) -> None:
    """Loss, lse and gradient of random incoming gradients to the bounds, which have room for the options' own."""
    leaf, truth = x.detach().requires_grad_(), x.detach().cpu().double().requires_grad_()
    found = fastops.cross_entropy(leaf, target, **options, dtype=result, return_lse=True)
    expected = formula(truth, target.cpu(), **wide(options))
    make = Make(x.device, torch.float64, seed=3)
    grads = [make(*f.shape, dtype=f.dtype) for f in found]
    used = 2 if lse else 1
    (gradient,) = torch.autograd.grad(found[:used], leaf, grads[:used])
    (wanted,) = torch.autograd.grad(expected[:used], truth, [g.cpu().double() for g in grads[:used]])
    assert (found[0].dtype, found[1].dtype) == (result or x.dtype, torch.promote_types(x.dtype, torch.float32))
    assert (gradient.dtype, gradient.shape) == (x.dtype, x.shape)
    bound = BOUNDS[x.dtype]
    room = 4 if x.dtype not in HALVES else 1
    assert ulps(found[0], expected[0], dtype=x.dtype) <= room * bound.forward
    assert ulps(found[1], expected[1], dtype=x.dtype) <= room * bound.forward
    assert ulps(gradient, wanted) <= room * bound.gradient
    ignored = (target == -100).unsqueeze(class_dim(x)).expand(x.shape)
    assert not gradient[ignored].any()


@every_dtype
@every_reduction
@every_option
@pytest.mark.parametrize("shape", [(7, 33), (5,), (3, 17, 6), (2, 5, 3, 4)], ids=str)
def test_options(
    dtype: torch.dtype, reduction: str, options: dict[str, Any], shape: tuple[int, ...], device: torch.device
) -> None:
    x, target, options = made(dtype, device, *shape, ignored=3 if len(shape) > 1 else 0, options=options)
    assert_as_formula(x, target, options | {"reduction": reduction}, lse="z_loss" in options)


@every_dtype
@every_option
@pytest.mark.sample(pairs=False)
def test_long_rows(dtype: torch.dtype, options: dict[str, Any], device: torch.device) -> None:
    """Of several segments, parts and blocks of a cluster, in some of which all is masked."""
    x, target, options = made(dtype, device, 3, 70001, options=options)
    x[1, :40000] = x[2, 40000:] = -torch.inf if options.get("label_smoothing", 0) == 0 else -30
    if options.get("scale", 1.0) < 0:
        x = -x
    target[1:] = torch.tensor([50000, 17], device=device)
    found = fastops.cross_entropy(x, target, **options, reduction="none", dtype=lse_dtype(dtype), return_lse=True)
    for ours, truth in zip(
        found, formula(x.cpu().double(), target.cpu(), **wide(options), reduction="none"), strict=True
    ):
        torch.testing.assert_close(ours.cpu().double(), truth, rtol=4e-6, atol=4e-6)


def lse_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize("dtype", HALVES)
@every_option
def test_float32_results_of_halves_are_float32s(
    dtype: torch.dtype, options: dict[str, Any], device: torch.device
) -> None:
    x, target, options = made(dtype, device, 37, 1000, options=options)
    found = fastops.cross_entropy(x, target, **options, reduction="none", dtype=torch.float32, return_lse=True)
    for ours, truth in zip(
        found, formula(x.cpu().double(), target.cpu(), **wide(options), reduction="none"), strict=True
    ):
        torch.testing.assert_close(ours.cpu().double(), truth, rtol=4e-6, atol=4e-6)


def test_lse_alone_where_nothing_has_weight(device: torch.device) -> None:
    x = torch.randn(3, 4, device=device, requires_grad=True)
    _, lse = fastops.cross_entropy(x, torch.tensor([0, 1, -100], device=device), x.new_zeros(4), return_lse=True)
    (gradient,) = torch.autograd.grad(lse.sum(), x)
    torch.testing.assert_close(gradient[:2], x.detach().softmax(1)[:2])
    assert not gradient[2].any()


@every_option
@pytest.mark.parametrize("dtype", HALVES)
def test_float32_of_a_half_type(dtype: torch.dtype, options: dict[str, Any], device: torch.device) -> None:
    """float32 loss, gradient of input's dtype, and no float32 copy; weights of either dtype."""
    x, target, options = made(dtype, device, 37, 129, options=options)
    for weight in {options.get("weight"), options["weight"].float()} if "weight" in options else {None}:
        assert_as_formula(x, target, options | {"weight": weight}, result=torch.float32)
    with Recorder() as recorder:
        fastops.cross_entropy(x.requires_grad_(), target, dtype=torch.float32).backward()
    assert recorder.ops == ["cross_entropy", "cross_entropy_backward"]
    assert recorder.args[0][0].dtype == dtype


@every_dtype
@pytest.mark.parametrize("result", DTYPES)
def test_any_dtype_of_the_loss(dtype: torch.dtype, result: torch.dtype, device: torch.device) -> None:
    x, target, _ = made(dtype, device, 5, 7, options={})
    loss = fastops.cross_entropy(x.requires_grad_(), target, dtype=result)
    loss.backward()
    assert loss.dtype == result
    assert x.grad is not None
    assert x.grad.dtype == dtype
    truth = F.cross_entropy(x.detach().double(), target)
    assert ulps(loss, truth.cpu(), dtype=max(dtype, result, key=lambda d: torch.finfo(d).eps)) <= 4


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [64, 8192])
@every_reduction
def test_rounded_once(dtype: torch.dtype, rows: int, reduction: str, device: torch.device) -> None:
    """Loss and gradient are as far from float64's as those rounded once: sums over rows are not of the half type."""
    x, target, _ = made(dtype, device, rows, 97, options={})
    leaf, truth = x.clone().requires_grad_(), x.cpu().double().requires_grad_()
    loss, expected = (
        f(t, y, reduction=reduction)
        for f, t, y in ((fastops.cross_entropy, leaf, target), (F.cross_entropy, truth, target.cpu()))
    )
    grad = torch.full_like(loss, 0.5 if reduction == "none" else 1.0)
    (found,) = torch.autograd.grad(loss, leaf, grad)
    (wanted,) = torch.autograd.grad(expected, truth, grad.cpu().double())
    for a, b in ((loss.detach(), expected.detach()), (found, wanted)):
        a = a.cpu().double()
        once = (b.to(dtype).double() - b).norm()
        if torch.isinf(b.to(dtype)).any():  # a sum that float16 cannot hold
            assert torch.equal(a, b.to(dtype).double())
            continue
        assert (a - b).norm() <= 1.3 * once + 1e-6 * b.norm()


@every_dtype
@every_reduction
@every_option
def test_ignored_rows_may_hold_anything(
    dtype: torch.dtype, reduction: str, options: dict[str, Any], device: torch.device
) -> None:
    """Loss 0, lse 0, gradients exactly 0, and second derivatives; the other rows as without them."""
    x, target, options = made(dtype, device, 9, 13, options=options)
    spoiled = x.clone()
    spoiled[::3] = torch.tensor([torch.nan, torch.inf, -torch.inf] + [1.0] * 10, dtype=dtype, device=device)
    found = []
    for rows in (x, spoiled):
        leaf = rows.clone().requires_grad_()
        loss, lse = fastops.cross_entropy(leaf, target, reduction=reduction, return_lse=True, **options)
        (gradient,) = torch.autograd.grad([loss, lse], leaf, [torch.ones_like(loss), torch.ones_like(lse)])
        assert not gradient[::3].any()
        assert not lse[::3].any()
        leaf = rows.clone().requires_grad_()
        loss = fastops.cross_entropy(leaf, target, reduction=reduction, **options)
        (first,) = torch.autograd.grad(loss.sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.float().square().sum(), leaf)
        found.append((loss.detach(), lse.detach(), gradient, second))
    assert all(same_bits(a, b) for a, b in zip(*found, strict=True))


@every_dtype
@every_option
def test_all_ignored(dtype: torch.dtype, options: dict[str, Any], device: torch.device) -> None:
    x, target, options = made(dtype, device, 5, 7, ignored=1, options=options)
    x[2] = torch.nan
    for reduction in ("none", "mean", "sum"):
        leaf = x.clone().requires_grad_()
        loss = fastops.cross_entropy(leaf, target, reduction=reduction, **options)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf, create_graph=True)
        assert loss.isnan().all() if reduction == "mean" else not loss.any()
        assert not gradient.any()
        assert not torch.autograd.grad(gradient.sum(), leaf)[0].any()


def test_a_mean_over_no_rows_has_derivatives_of_zero(device: torch.device) -> None:
    x, target, _ = made(torch.float32, device, 5, 7, ignored=1, options={})
    mean, tangent = torch.func.jvp(lambda x: fastops.cross_entropy(x, target), (x,), (torch.ones_like(x),))
    assert mean.isnan()
    assert tangent == 0
    hessian = torch.func.hessian(lambda x: fastops.cross_entropy(x, target))(x)
    assert not hessian.any()


@every_dtype
@pytest.mark.parametrize("shape", [(0, 5), (0, 5, 3), (4, 5, 0), (0, 0)], ids=str)
def test_no_rows(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    target = torch.empty(shape[:1] + shape[2:], dtype=torch.int64, device=device)
    for reduction in ("none", "mean", "sum"):
        x = torch.empty(shape, dtype=dtype, device=device, requires_grad=True)
        loss = fastops.cross_entropy(x, target, reduction=reduction)
        loss.sum().backward()
        assert x.grad is not None
        assert x.grad.shape == x.shape
        assert loss.shape == (target.shape if reduction == "none" else ())
        assert loss.isnan().all() if reduction == "mean" else not loss.any()


@every_dtype
@every_reduction
def test_one_class(dtype: torch.dtype, reduction: str, device: torch.device) -> None:
    x, target, _ = made(dtype, device, 5, 1, options={})
    loss, lse = fastops.cross_entropy(x.requires_grad_(), target, reduction=reduction, return_lse=True)
    loss.sum().backward()
    assert not loss.any()
    assert x.grad is not None
    assert not x.grad.any()
    assert torch.equal(lse, torch.where(target == -100, 0, x.detach().squeeze(1)).to(lse.dtype))


CORNERS = {
    "-inf": [-torch.inf, 1.0, 2.0, -torch.inf, 0.5],
    "-inf target": [1.0, -torch.inf, 2.0, 3.0, 0.5],
    "-inf alone": [-torch.inf] * 5,
    "+inf": [torch.inf, 1.0, -torch.inf, 2.0, 0.5],
    "+inf target": [1.0, torch.inf, -torch.inf, 2.0, 0.5],
    "NaN": [torch.nan, 1.0, 2.0, 3.0, 0.5],
    "the largest": [6e4, -6e4, 6e4, 0.0, 0.5],
}


@every_dtype
@pytest.mark.parametrize("values", CORNERS.values(), ids=CORNERS)
@pytest.mark.parametrize("copies", [1, 9, 300])
def test_corners(dtype: torch.dtype, values: list[float], copies: int, device: torch.device) -> None:
    """Values and gradients are torch's, and rows beside such a row are as they are alone."""
    x = Make(device, dtype)(5, 5 * copies)
    target = torch.full((5,), 1, device=device)
    alone = fastops.cross_entropy(x, target, reduction="none")
    x[2] = torch.tensor(values * copies, dtype=dtype, device=device)
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype in HALVES else {"rtol": 1e-5, "atol": 1e-6}
    for smoothing in (0.0, 0.1):
        ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
        options = {"reduction": "none", "label_smoothing": smoothing}
        loss, expected = (
            f(t, target, **options) for f, t in ((fastops.cross_entropy, ours), (F.cross_entropy, theirs))
        )
        torch.testing.assert_close(loss, expected.to(dtype), equal_nan=True, **tolerance)
        grad = Make(device, dtype, seed=1)(5)
        (found,) = torch.autograd.grad(loss, ours, grad)
        (wanted,) = torch.autograd.grad(expected, theirs, grad.double())
        if x.abs().max() == 6e4 and dtype == torch.float32:  # of lse, which is rounded, in e^(u - lse)
            tolerance = {"rtol": 6e4 * 2**-24, "atol": 6e4 * 2**-24}
        torch.testing.assert_close(found.double(), wanted, equal_nan=True, **tolerance)
        if not smoothing:
            assert all(same_bits(loss[row], alone[row]) for row in (0, 1, 3, 4))


def test_weights_of_nothing(device: torch.device) -> None:
    """NaN, as torch's, but for ignored rows."""
    x, target = torch.randn(3, 4, device=device, requires_grad=True), torch.tensor([1, -100, 2], device=device)
    loss = fastops.cross_entropy(x, target, torch.zeros(4, device=device))
    (gradient,) = torch.autograd.grad(loss, x)
    assert loss.isnan()
    assert gradient[[0, 2]].isnan().all()
    assert not gradient[1].any()


VIEWS: dict[str, Callable[[Make], Tensor]] = {
    "[B, V, S] of [B, S, V]": lambda make: make(3, 9, 65).transpose(1, 2),
    "[N, V] of logits[:, :-1]": lambda make: make(3, 9, 65)[:, :-1].transpose(1, 2),
    "rows of wider": lambda make: make(9, 130)[:, :65],
    "every second": lambda make: make(18, 130)[::2, ::2],
    "columns": lambda make: make(65, 9).mT,
    "one for all": lambda make: make(1, 65).expand(9, 65),
    "one number": lambda make: make(1, 1).expand(9, 65),
    "backwards": lambda make: make(9, 5, 17, 3).permute(3, 2, 1, 0),
    "misaligned": lambda make: make(9 * 65 + 1)[1:].view(9, 65),
    "channels last": lambda make: make(2, 5, 3, 7).contiguous(memory_format=torch.channels_last),
}


@every_dtype
@every_reduction
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views(dtype: torch.dtype, reduction: str, view: Callable[[Make], Tensor], device: torch.device) -> None:
    """The bits of the contiguous copy, the gradient with the classes last in memory; nothing is written."""
    x = view(Make(device, dtype))
    rows = x.shape[:1] + x.shape[2:]
    room = Make(device, dtype).integers(*rows, 2, below=x.shape[1])
    room.view(-1)[::5] = -100
    before = [x.clone(), room.clone()]
    found = []
    for source, target in itertools.product((x, x.contiguous()), (room[..., 1], room[..., 1].contiguous())):
        leaf = source.detach().requires_grad_()
        loss = fastops.cross_entropy(leaf, target, reduction=reduction)
        grad = Make(device, dtype, seed=1)(*loss.shape)
        (gradient,) = torch.autograd.grad(loss, leaf, grad)
        assert gradient.movedim(1, -1).is_contiguous()
        found.append((loss, gradient))
    assert all(same_bits(a, b) for pair in found[1:] for a, b in zip(pair, found[0], strict=True))
    assert all(same_bits(a, b) for a, b in zip((x, room), before, strict=True))


def test_a_shifted_view_of_logits(device: torch.device) -> None:
    """The usual call: of logits[:, :-1] and labels[:, 1:], as a flat and as a transposed view."""
    make = Make(device, torch.float32)
    logits, labels = make(3, 9, 33).requires_grad_(), make.integers(3, 9, below=33)
    flat = fastops.cross_entropy(logits[:, :-1].reshape(-1, 33), labels[:, 1:].reshape(-1))
    viewed = fastops.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:])
    torch.testing.assert_close(flat, viewed)
    a, b = (torch.autograd.grad(loss, logits)[0] for loss in (flat, viewed))
    torch.testing.assert_close(a, b)
    assert not a[:, -1].any()


@every_dtype
def test_bytes_as_targets(dtype: torch.dtype, device: torch.device) -> None:
    """uint8, of which none is an ignore_index below 0 (156 is not -100)."""
    x = Make(device, dtype)(6, 200)
    target = torch.tensor([0, 1, 156, 199, 100, 7], dtype=torch.uint8, device=device)
    for options in ({}, {"ignore_index": 7}):
        ours, wanted = (fastops.cross_entropy(x, t, reduction="none", **options) for t in (target, target.long()))
        assert same_bits(ours, wanted)
        assert ours[2] != 0


@every_reduction
@every_option
@pytest.mark.parametrize("shape", [(7, 5), (3, 5, 4), (5,)], ids=str)
def test_probabilities(reduction: str, options: dict[str, Any], shape: tuple[int, ...], device: torch.device) -> None:
    """Through the plain composition: torch's numbers, and gradients for the targets; with our options too."""
    x, _, options = made(torch.float64, device, *shape, options=options)
    dim = class_dim(x)
    q = torch.softmax(Make(device, torch.float64, seed=2)(*shape), dim)
    ours = [x.clone().requires_grad_(), q.clone().requires_grad_()]
    theirs = [x.clone().requires_grad_(), q.clone().requires_grad_()]
    loss = fastops.cross_entropy(*ours, reduction=reduction, **options)
    u = theirs[0] * options.pop("scale", 1.0)
    cap, z_loss = options.pop("softcap", None), options.pop("z_loss", 0.0)
    u = u if cap is None else cap * torch.tanh(u / cap)
    expected = F.cross_entropy(u, theirs[1], reduction=reduction, **options)
    squares = u.logsumexp(dim).square()
    reduced = {"none": squares, "mean": squares.mean(), "sum": squares.sum()}[reduction]
    expected = expected + z_loss * reduced
    assert_close(loss, expected)
    assert_close(torch.autograd.grad(loss.sum(), ours), torch.autograd.grad(expected.sum(), theirs))


@pytest.mark.parametrize("dtype", HALVES)
def test_probabilities_of_half_types(dtype: torch.dtype, device: torch.device) -> None:
    x, q = Make(device, dtype)(5, 7), torch.softmax(Make(device, dtype, seed=2)(5, 7), 1)
    for result in (None, torch.float32):
        loss, lse = fastops.cross_entropy(x, q, dtype=result, return_lse=True)
        assert (loss.dtype, lse.dtype) == (result or dtype, torch.float32)
        assert ulps(loss, F.cross_entropy(x.double(), q.double()).cpu(), dtype=dtype) <= 0.51


def test_a_perplexity(device: torch.device) -> None:
    """Equal logits: the logarithm of the number of classes, whatever the scale."""
    x, target = torch.zeros(3, 50, device=device), torch.arange(3, device=device)
    assert fastops.cross_entropy(x, target, scale=7.0).item() == pytest.approx(math.log(50))
