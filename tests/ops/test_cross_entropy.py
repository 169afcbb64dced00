"""cross_entropy: every option and reduction against float64 and torch's own, and the corners."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from recorder import Recorder
from table import assert_close
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from transforms import every_transform

import fastops
from fastops import nn
from fastops.cases import DTYPES, Make, by_name
from fastops.cases.inputs import HALVES
from fastops.ops.cross_entropy import class_dim
from fastops.selftest.accuracy import ulps
from fastops.selftest.checks import same_bits

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_reduction = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
BOUNDS = by_name()["cross_entropy"].bounds

# One option at a time, and all of them.
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "weight": {"weight": True},
    "smoothing": {"label_smoothing": 0.1},
    "smoothing alone": {"label_smoothing": 1.0},
    "scale": {"scale": 0.5},
    "negative scale": {"scale": -2.0},
    "softcap": {"softcap": 3.0},
    "z_loss": {"z_loss": 1e-2},
    "all": {"weight": True, "label_smoothing": 0.2, "scale": 1.5, "softcap": 5.0, "z_loss": 1e-3},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


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


def made(
    dtype: torch.dtype, device: torch.device, *shape: int, ignored: int = 3, options: dict[str, Any]
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Logits, targets of which every third is ignored, and the options with a weight for each class."""
    make = Make(device, dtype)
    at = 1 if len(shape) > 1 else 0
    x, target = make(*shape, scale=2.0), make.integers(*shape[:at], *shape[at + 1 :], below=shape[at])
    if ignored:
        target.view(-1)[::ignored] = -100
    options = dict(options)
    if options.get("weight"):
        options["weight"] = make(shape[at]).abs_().add_(0.1)
    return x, target, options


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


def test_weights_of_a_half_type_under_autocast() -> None:
    x, target, weight = torch.randn(5, 7), torch.randint(7, (5,)), torch.rand(7)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = (f(x, target, weight.bfloat16()) for f in (fastops.cross_entropy, F.cross_entropy))
    assert ours.dtype == theirs.dtype == torch.float32
    torch.testing.assert_close(ours, theirs)


def test_a_scripted_module_under_autocast() -> None:
    x, target = torch.randn(5, 7, dtype=torch.bfloat16), torch.randint(7, (5,))
    for module in (nn.CrossEntropyLoss(), torch.nn.CrossEntropyLoss()):
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.jit.script(module)(x, target).dtype == torch.float32  # type: ignore[attr-defined]
    assert torch.jit.script(nn.CrossEntropyLoss(scale=2))(x, target).dtype == torch.bfloat16  # type: ignore[attr-defined]


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
def test_no_classes(dtype: torch.dtype, device: torch.device) -> None:
    x, target = torch.empty(3, 0, dtype=dtype, device=device), torch.full((3,), -100, device=device)
    for f in (fastops.cross_entropy, fastops.reference.cross_entropy):
        with pytest.raises(
            RuntimeError, match=r"^\[cross_entropy\] input must have a class at least, got shape \[3, 0\]"
        ):
            f(x, target)


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
@every_reduction
def test_nothing_of_the_callers_is_written(dtype: torch.dtype, reduction: str, device: torch.device) -> None:
    """Neither logits nor targets nor incoming gradients; a second backward gives the bits of the first."""
    x, target, _ = made(dtype, device, 40, 70, options={})
    kept = x.clone(), target.clone()
    leaf = x[1:-1, 1:-1].requires_grad_()
    y = torch.where(target == -100, -100, target.clamp(max=67))[1:-1]
    loss = fastops.cross_entropy(leaf, y, reduction=reduction)
    grad = torch.full_like(loss, 3.0)
    first, second = (torch.autograd.grad(loss, leaf, grad, retain_graph=True)[0] for _ in range(2))
    assert same_bits(first, second)
    (once,) = torch.autograd.grad(loss, leaf, torch.ones_like(loss))
    torch.testing.assert_close(first, 3 * once, rtol=2e-2 if dtype in HALVES else 1e-5, atol=1e-4)
    assert torch.equal(grad, torch.full_like(loss, 3.0))
    assert all(same_bits(a, b) for a, b in zip((x.detach(), target), kept, strict=True))


def test_expanded_incoming_gradients(device: torch.device) -> None:
    """``loss.sum()`` sends one number at stride 0 to each row."""
    x, target, _ = made(torch.float32, device, 7, 9, options={})
    leaf = x.requires_grad_()
    (a,) = torch.autograd.grad(fastops.cross_entropy(leaf, target, reduction="none").sum(), leaf)
    (b,) = torch.autograd.grad(fastops.cross_entropy(leaf, target, reduction="sum"), leaf)
    torch.testing.assert_close(a, b)


@every_dtype
def test_bytes_as_targets(dtype: torch.dtype, device: torch.device) -> None:
    """uint8, of which none is an ignore_index below 0 (156 is not -100)."""
    x = Make(device, dtype)(6, 200)
    target = torch.tensor([0, 1, 156, 199, 100, 7], dtype=torch.uint8, device=device)
    for options in ({}, {"ignore_index": 7}):
        ours, wanted = (fastops.cross_entropy(x, t, reduction="none", **options) for t in (target, target.long()))
        assert same_bits(ours, wanted)
        assert ours[2] != 0


@every_dtype
@pytest.mark.parametrize("wrong", [10, -1, 12, -101, 2**40])
def test_target_out_of_range(dtype: torch.dtype, wrong: int, device: torch.device) -> None:
    """IndexError on the CPU by each way; on GPUs the row is NaN, and nothing waits or stops."""
    x = Make(device, dtype)(4, 10)
    target = torch.tensor([1, wrong, -100, 3], device=device)
    ways: tuple[Callable[[], Any], ...] = (
        lambda: fastops.cross_entropy(x, target, reduction="none"),
        lambda: fastops.cross_entropy(x.clone().requires_grad_(), target, reduction="none"),
        lambda: fastops.reference.cross_entropy(x, target, reduction="none"),
        lambda: nn.CrossEntropyLoss(reduction="none")(x, target),
    )
    for way in ways:
        if device.type == "cpu":
            message = rf"^\[cross_entropy\] target must be 0 to 9 or ignore_index -100, got {wrong}$"
            with pytest.raises(IndexError, match=message):
                way()
        else:
            assert way().isnan().tolist() == [False, True, False, False]
    if device.type == "cuda":
        batched = torch.func.vmap(lambda x: fastops.reference.cross_entropy(x, target, reduction="none"))(x[None])
        assert batched.isnan().tolist() == [[False, True, False, False]]
        leaf = x.requires_grad_()
        (gradient,) = torch.autograd.grad(fastops.cross_entropy(leaf, target, reduction="sum"), leaf)
        assert gradient.isnan().all(1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
@every_reduction
@every_option
def test_finite_differences(
    check: Callable[..., bool], reduction: str, options: dict[str, Any], device: torch.device
) -> None:
    for shape in ((4, 3), (2, 3, 2), (4,)):
        x, target, used = made(torch.float64, device, *shape, ignored=3 if len(shape) > 1 else 0, options=options)
        for lse in (False, True):
            assert check(
                lambda x, t=target, u=used, lse=lse: fastops.cross_entropy(
                    x, t, reduction=reduction, return_lse=lse, **u
                ),
                (x.requires_grad_(),),
            )


@every_transform
@every_reduction
@every_option
def test_transforms(
    transform: Callable[..., Any], reduction: str, options: dict[str, Any], device: torch.device
) -> None:
    x, target, options = made(torch.float64, device, 4, 3, options=options)
    batch = [Make(device, torch.float64, seed=9)(6, 4, 3)]
    for lse in (False, True):

        def call(function: Callable[..., Any], lse: bool = lse) -> Callable[..., Any]:
            return lambda x: function(x, target, reduction=reduction, return_lse=lse, **options)

        ours, plain = call(fastops.cross_entropy), call(composed)
        assert_close(transform(ours, [x], batch), transform(plain, [x], batch))


def composed(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    return_lse: bool = False,
) -> Any:
    """Of torch's ops, in a form that its transforms know."""
    u = x * scale if softcap is None else softcap * torch.tanh(x * scale / softcap)
    lse = torch.where(target == -100, 0, u.logsumexp(1))
    loss = F.cross_entropy(u, target, weight, reduction="none", label_smoothing=label_smoothing) + z_loss * lse**2
    if reduction != "none":
        w = torch.ones(x.shape[1], dtype=x.dtype, device=x.device) if weight is None else weight
        kept = torch.where(target == -100, 0, w[target.clamp_min(0)])
        loss = loss.sum() / kept.sum() if reduction == "mean" else loss.sum()
    return (loss, lse) if return_lse else loss


def test_vmap_over_targets(device: torch.device) -> None:
    make = Make(device, torch.float64)
    x, targets = make(5, 4, 3), make.integers(5, 4, below=3)
    for reduction, (a, b) in itertools.product(("none", "mean", "sum"), ((0, 0), (None, 0), (0, None), (2, 1))):
        logits = x[0] if a is None else x.movedim(0, a)
        classes = targets[0] if b is None else targets.movedim(0, b)
        ours, theirs = (
            torch.func.vmap(lambda x, t, f=f, r=reduction: f(x, t, reduction=r), (a, b))(logits, classes)
            for f in (fastops.cross_entropy, F.cross_entropy)
        )
        assert_close(ours, theirs)


@every_reduction
def test_a_batch_runs_kernels(reduction: str, device: torch.device) -> None:
    """Forward and backward, as one more dimension of rows; of one set of weights an element the composition."""
    make = Make(device, torch.float32)
    w = make(3).abs()
    for shape in ((3,), (4, 3), (4, 3, 2)):
        x, t = make(5, *shape), make.integers(5, *shape[:-1] if len(shape) < 3 else (4, 2), below=3)

        def gradient(x: Tensor, t: Tensor) -> Tensor:
            return torch.func.grad(lambda x: fastops.cross_entropy(x, t, w, reduction=reduction).sum())(x)

        with Recorder() as recorder:
            found = torch.func.vmap(gradient)(x, t)
        assert recorder.ops == ["cross_entropy", "cross_entropy_backward"]
        each = torch.stack([gradient(a, b) for a, b in zip(x, t, strict=True)])
        torch.testing.assert_close(found, each)
    ws = make(5, 3).abs()
    x, t = make(5, 4, 3), make.integers(5, 4, below=3)
    ours, theirs = (
        torch.func.vmap(lambda x, t, w, f=f: f(x, t, w, reduction=reduction))(x, t, ws)
        for f in (fastops.cross_entropy, F.cross_entropy)
    )
    torch.testing.assert_close(ours, theirs)


def test_compile_with_dynamic_shapes(device: torch.device) -> None:
    """Two graphs, one of them dynamic, serve all sizes, forward and backward, with each option."""

    def f(x: Tensor, target: Tensor) -> Tensor:
        loss, lse = fastops.cross_entropy(x, target, scale=0.5, softcap=4.0, z_loss=1e-2, return_lse=True)
        each = fastops.cross_entropy(x.transpose(0, 1).transpose(0, 1), target, reduction="none", label_smoothing=0.1)
        return loss + lse.square().sum() + each.sin().sum() + fastops.cross_entropy(x.bfloat16(), target).float()

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(f, fullgraph=True, backend=counter)
    for rows, n in ((3, 4), (5, 7), (2, 9)):
        make = Make(device, torch.float32)
        x, target = make(rows, n), make.integers(rows, below=n)
        target[1] = -100
        found = []
        for g in (compiled, f):
            leaf = x.clone().requires_grad_()
            y = g(leaf, target)
            found.append((y.detach(), *torch.autograd.grad(y, leaf)))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)
    assert counter.frame_count == 2


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


def test_autocast_on_cuda(cuda: torch.device) -> None:
    """In float32, as torch's; no converted copy, and the gradient of input's dtype."""
    for dtype in (*HALVES, torch.float32, torch.float64):
        x, target, _ = made(dtype, cuda, 5, 7, options={})
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            loss, of_torch = fastops.cross_entropy(ours, target), F.cross_entropy(theirs, target)
            asked = fastops.cross_entropy(ours, target, dtype=dtype)
        assert loss.dtype == of_torch.dtype
        expected = F.cross_entropy(theirs.to(loss.dtype), target)  # torch's own is 8e-5 off for float16
        assert asked.dtype == dtype
        torch.testing.assert_close(loss, expected)
        for a, b in zip(torch.autograd.grad(loss, ours), torch.autograd.grad(expected, theirs), strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_on_the_cpu(dtype: torch.dtype) -> None:
    x, target, _ = made(dtype, torch.device("cpu"), 5, 7, options={})
    with torch.autocast("cpu", torch.bfloat16):
        loss, expected = fastops.cross_entropy(x, target), F.cross_entropy(x, target)
    torch.testing.assert_close(loss, expected)


def test_what_is_kept(device: torch.device) -> None:
    """The caller's own logits and targets, lse, and one number."""
    x, target, _ = made(torch.bfloat16, device, 5, 33, options={})
    x.requires_grad_()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        fastops.cross_entropy(x, target)
    assert [t.data_ptr() for t in saved[:2]] == [x.data_ptr(), target.data_ptr()]
    assert [tuple(t.shape) for t in saved[2:]] == [(5,), ()]


def test_defaults_are_left_out_of_a_call() -> None:
    """Each argument takes a tenth of a microsecond or two."""
    x, target, _ = made(torch.float32, torch.device("cpu"), 3, 4, ignored=0, options={})
    x.requires_grad_()
    for arguments, expected in (
        ({}, ()),
        ({"reduction": "mean", "scale": 1, "dtype": torch.float32}, ()),
        ({"reduction": "sum"}, (None, 2)),
        ({"ignore_index": 3}, (None, 1, 3)),
        ({"z_loss": 0.5}, (None, 1, -100, 0.0, 1.0, None, 0.5)),
    ):
        with Recorder() as recorder:
            fastops.cross_entropy(x, target, **arguments).sum().backward()  # type: ignore[arg-type]
        assert recorder.args[0][2:] == expected
        # Behind grad, grad_lse, input, target, lse and total.
        assert recorder.args[1][6:] == expected


def test_checkpoint(device: torch.device) -> None:
    from torch.utils.checkpoint import checkpoint

    x, target, _ = made(torch.float32, device, 5, 7, options={})
    x.requires_grad_()
    (expected,) = torch.autograd.grad(fastops.cross_entropy(x, target), x)
    loss = checkpoint(fastops.cross_entropy, x, target, use_reentrant=False)
    assert same_bits(torch.autograd.grad(loss, x)[0], expected)


Wrong = tuple[type[Exception], str, Callable[[Tensor, Tensor], Any]]


def with_options(error: type[Exception], message: str, **options: Any) -> Wrong:
    return error, message, lambda x, target: fastops.cross_entropy(x, target, **options)


def with_tensors(message: str, change: Callable[[Tensor, Tensor], Any], error: type[Exception] = RuntimeError) -> Wrong:
    return error, message, lambda x, target: fastops.cross_entropy(*change(x, target))


WRONG: dict[str, Wrong] = {
    "reduction": with_options(ValueError, "reduction must be 'none', 'mean' or 'sum', got 'avg'", reduction="avg"),
    "no reduction": with_options(TypeError, "reduction must be a str, got NoneType", reduction=None),
    "smoothing": with_options(RuntimeError, r"label_smoothing must be 0 to 1, got 1\.5", label_smoothing=1.5),
    "negative": with_options(RuntimeError, r"label_smoothing must be 0 to 1, got -0\.1", label_smoothing=-0.1),
    "softcap": with_options(RuntimeError, "softcap must be finite and greater than 0, got 0", softcap=0),
    "softcap without end": with_options(
        RuntimeError, "softcap must be finite and greater than 0, got inf", softcap=float("inf")
    ),
    "scale": with_options(TypeError, "scale must be a number, got Tensor", scale=torch.ones(())),
    "index": with_options(TypeError, "ignore_index must be an integer, got float", ignore_index=1.0),
    "dtype": with_options(RuntimeError, "dtype must be floating point, got torch.int64", dtype=torch.int64),
    "no dtype": with_options(TypeError, "dtype must be a torch.dtype or None, got type", dtype=float),
    "int32": with_tensors(
        r"target must have dtype torch\.int64 or torch\.uint8, got torch\.int32", lambda x, t: (x, t.int())
    ),
    "floats": with_tensors(
        r"target must have dtype torch\.int64 or torch\.uint8, got torch\.float32", lambda x, t: (x, t.float())
    ),
    "targets": with_tensors(r"target must have shape \[5\], got \[4\]", lambda x, t: (x, t[:4])),
    "probabilities": with_tensors(r"target must have input's shape \[5, 7\], got \[5, 6\]", lambda x, t: (x, x[:, 1:])),
    "classes": with_tensors(r"weight must have shape \[7\], got \[6\]", lambda x, t: (x, t, x.detach()[0, :6])),
    "weight": with_tensors("weight must have input's dtype", lambda x, t: (x, t, x.detach()[0].half())),
    "learns": with_tensors("weight must not require a gradient", lambda x, t: (x, t, torch.ones(7).requires_grad_())),
    "list": with_tensors("target must be a Tensor, got list", lambda x, t: (x, t.tolist()), TypeError),
    "integers": with_tensors("input must be floating point, got torch.int64", lambda x, t: (x.long(), t)),
    "number": with_tensors(r"input must have a dimension of classes, got shape \[\]", lambda x, t: (x[0, 0], t[0])),
    "ignored": with_options(RuntimeError, "ignore_index must be below 0 for probabilities, got 1", ignore_index=1),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str, device: torch.device) -> None:
    error, message, call = WRONG[name]
    x, target = torch.randn(5, 7, device=device), torch.zeros(5, dtype=torch.int64, device=device)
    for input in (x, x.clone().requires_grad_()):
        with pytest.raises(error, match=rf"^\[cross_entropy\] {message}"):
            call(input, x if name == "ignored" else target)


@every_reduction
@every_option
def test_module(reduction: str, options: dict[str, Any], device: torch.device) -> None:
    x, target, options = made(torch.float32, device, 5, 7, options=options)
    module = nn.CrossEntropyLoss(reduction=reduction, **options)
    assert same_bits(module(x, target), fastops.cross_entropy(x, target, reduction=reduction, **options))
    theirs = torch.nn.CrossEntropyLoss(options.get("weight"))
    assert module.state_dict().keys() == theirs.state_dict().keys()
    if not {"softcap", "z_loss"} & set(options):
        scripted = torch.jit.script(module)
        torch.testing.assert_close(scripted(x, target), module(x, target))
    assert repr(nn.CrossEntropyLoss()) == "CrossEntropyLoss()"
    assert "softcap=3.0" in repr(nn.CrossEntropyLoss(softcap=3.0))


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "z_loss": 0.1}, {"label_smoothing": 0.1}], ids=str)
def test_trace(options: dict[str, Any]) -> None:
    x, target, _ = made(torch.float32, torch.device("cpu"), 5, 7, options={})
    traced = torch.jit.trace(lambda x, t: fastops.cross_entropy(x, t, **options), (x, target))
    y, classes, _ = made(torch.float32, torch.device("cpu"), 9, 7, options={})
    torch.testing.assert_close(traced(y, classes), fastops.cross_entropy(y, classes, **options))


def test_a_perplexity(device: torch.device) -> None:
    """Equal logits: the logarithm of the number of classes, whatever the scale."""
    x, target = torch.zeros(3, 50, device=device), torch.arange(3, device=device)
    assert fastops.cross_entropy(x, target, scale=7.0).item() == pytest.approx(math.log(50))
