"""linear_cross_entropy and linear_log_prob: values and gradients, by every way through their slices."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from linear_losses import (
    CLASSES,
    FEATURES,
    ROWS,
    check,
    every_dtype,
    every_save,
    leaves,
    made,
    outputs_of,
    pair,
    truth_of,
)

import fastops
from fastops.cases import Make
from fastops.cases.inputs import HALVES
from fastops.families import linear_operands
from fastops.families.slices import SAVES, slices

pytest_plugins = ["linear_fixtures"]
pytestmark = pytest.mark.usefixtures("narrow")


OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "smoothing": {"label_smoothing": 0.1},
    "all": {"label_smoothing": 0.1, "softcap": 5.0, "scale": 0.7, "z_loss": 0.01},
}


@every_dtype
@every_save
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("bias", [False, True])
def test_cross_entropy_values(
    dtype: torch.dtype, save: str, options: dict[str, Any], reduction: str, bias: bool, device: torch.device
) -> None:
    x, w, target, b = made(dtype, device, bias=bias)
    result = torch.promote_types(dtype, torch.float32)
    ours, wide = leaves(x, w, b), [t.double() for t in leaves(x, w, b)]
    found = outputs_of("cross_entropy", *pair(ours, target), save=save, reduction=reduction, dtype=result, **options)
    expected = truth_of("cross_entropy", *pair(wide, target), reduction=reduction, **options)
    assert (found[0].dtype, found[0].shape) == (result, target.shape if reduction == "none" else ())
    grads = [torch.rand_like(found[0]) + 0.5]
    check(found, expected, dtype)
    gradients = torch.autograd.grad(found, ours, grads)
    assert [g.dtype for g in gradients] == [dtype] * len(ours)
    check(gradients, torch.autograd.grad(expected, wide, [grads[0].double()]), dtype)


@every_dtype
@every_save
@pytest.mark.parametrize("options", [{}, {"softcap": 5.0, "scale": 0.7}], ids=str)
def test_log_prob_values(dtype: torch.dtype, save: str, options: dict[str, Any], device: torch.device) -> None:
    x, w, target, b = made(dtype, device)
    ours, wide = leaves(x, w, b), [t.double() for t in leaves(x, w, b)]
    found = outputs_of("log_prob", *pair(ours, target), save=save, **options)
    expected = truth_of("log_prob", *pair(wide, target), **options)
    assert [f.dtype for f in found] == [torch.promote_types(dtype, torch.float32)] * 2
    grads = [torch.randn_like(f) for f in found]
    check(found, expected, dtype)
    check(
        torch.autograd.grad(found, ours, grads), torch.autograd.grad(expected, wide, [g.double() for g in grads]), dtype
    )
    alone = fastops.linear_log_prob(ours[0], ours[1], target, linear_bias=ours[2], save=save, **options)
    assert torch.equal(alone, found[0])  # type: ignore[arg-type]


@every_save
def test_strided(op: str, save: str, device: torch.device) -> None:
    """A batch of more dimensions, transposed hidden states and weight, and targets with strides."""
    make = Make(device, torch.float64)
    x, w = make(3, FEATURES, 5).mT, make(FEATURES, CLASSES, scale=0.3).mT
    target = make.integers(5, 3, below=CLASSES).mT
    outputs = outputs_of(op, *pair(leaves(x, w), target), save=save)
    expected = truth_of(op, x.contiguous().flatten(0, 1), w, target.reshape(-1), None)
    for a, e in zip(outputs, expected, strict=True):
        assert a.shape in ((), (3, 5))
        torch.testing.assert_close(a.detach().reshape(-1), e.reshape(-1))
    strided, dense = leaves(x, w), leaves(x.contiguous(), w.contiguous())
    found = [
        torch.autograd.grad(sum(o.sum() for o in outputs_of(op, *pair(t, target), save=save)), t)
        for t in (strided, dense)
    ]
    torch.testing.assert_close(found[0], found[1])


@every_save
def test_a_mean_of_many_rows_in_float16(save: str, device: torch.device) -> None:
    """1 / rows is no factor of the logits' gradient, of which float16 would make 0; incoming gradients of any size."""
    rows = 65536
    make = Make(device, torch.float16)
    x, w, target = make(rows, 4), make(96, 4, scale=0.3), make.integers(rows, below=96)
    ours, wide = leaves(x, w), [t.double() for t in leaves(x, w)]
    for factor in (1.0, 2.0**10):
        found = torch.autograd.grad(fastops.linear_cross_entropy(*ours, target, save=save) * factor, ours)
        expected = torch.autograd.grad(F.cross_entropy(wide[0] @ wide[1].mT, target) * factor, wide)
        least = (expected[1].half().double() - expected[1]).norm()
        assert (found[1].double() - expected[1]).norm() <= 1.3 * least
        if factor > 1:  # without it the input's gradient itself is below what float16 has
            assert (found[0].double() - expected[0]).norm() <= 1.3 * (expected[0].half().double() - expected[0]).norm()


FACTORS: dict[str, dict[str, Any]] = {
    "small weights": {"of_class": 1e-8},
    "large weights": {"of_class": 1e5},
    "small scale": {"scale": 1e-6, "grad": 1e6},
    "large scale": {"scale": 1e5, "grad": 1e-5},
    "z_loss": {"z_loss": 1e5, "grad": 1e-5},
    "smoothing": {"label_smoothing": 0.3, "of_class": 1e-6},
    "sum": {"reduction": "sum", "grad": 2e-6},
    "none": {"reduction": "none", "grad": 3e-7},
}


@pytest.mark.usefixtures("half_products")
@pytest.mark.parametrize("factors", FACTORS.values(), ids=FACTORS)
@every_save
def test_what_float16_has_no_room_for(factors: dict[str, Any], save: str, device: torch.device) -> None:
    """Factors of a row's gradient are not multiplied into float16 numbers, in which they would be 0 or infinite."""
    options = dict(factors)
    of_class, size = options.pop("of_class", None), options.pop("grad", 1.0)
    x, w, target, b = made(torch.float16, device)
    weight = None if of_class is None else (torch.rand(CLASSES, device=device) + 0.5) * of_class
    wide = [t.double() for t in leaves(x, w, b)]
    truth = truth_of(
        "cross_entropy", *pair(wide, target), weight=None if weight is None else weight.double(), **options
    )
    expected = torch.autograd.grad(truth, wide, [torch.full_like(t, size) for t in truth])
    # Results of a size that float16 has.
    by = 2.0 ** -torch.stack([e.abs().max() for e in expected]).max().log2().round().item()
    ours = leaves(x, w, b)
    found = outputs_of("cross_entropy", *pair(ours, target), weight=weight, save=save, dtype=torch.float32, **options)
    gradients = torch.autograd.grad(found, ours, [torch.full_like(f, size * by) for f in found])
    for a, e in zip(gradients, expected, strict=True):
        assert (a.double() - e * by).norm() <= 4e-3 * (e * by).norm()


@pytest.mark.usefixtures("half_products")
def test_float16_values(op: str, device: torch.device) -> None:
    every_x, every_w, target, b = made(torch.float16, device)
    for save, features in itertools.product(SAVES, (FEATURES, 0)):
        x, w = every_x[:, :features], every_w[:, :features]
        ours, wide = leaves(x, w, b), [t.double() for t in leaves(x, w, b)]
        found, truth = outputs_of(op, *pair(ours, target), save=save), truth_of(op, *pair(wide, target))
        grads = [torch.rand_like(f) + 0.5 for f in found]
        gradients = torch.autograd.grad(found, ours, grads)
        expected = torch.autograd.grad(truth, wide, [g.double() for g in grads])
        for a, e in zip(gradients, expected, strict=True):
            assert (a.double() - e).norm() <= 3e-3 * e.norm()
            assert a.shape == e.shape


@pytest.mark.usefixtures("half_products")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("factor", [float("inf"), float("nan"), 0.0])
def test_gradients_that_are_no_numbers(dtype: torch.dtype, factor: float, device: torch.device) -> None:
    """A scaler of gradients sees them; ignored rows have gradient 0, and an incoming 0 gives 0 for weights of 0 too."""
    x, w, target, _ = made(dtype, device)
    for weight in (None, torch.zeros(CLASSES, device=device)):
        ours = leaves(x, w)
        loss = fastops.linear_cross_entropy(*ours, target, weight=weight)
        of_x, of_w = torch.autograd.grad(loss, ours, torch.full_like(loss, factor))
        assert not of_x[target == -100].any()
        if factor == 0.0:
            assert not of_x.any()
            assert not of_w.any()
        else:
            assert not of_x[target != -100].isfinite().any()
            assert not of_w.isfinite().all()


@every_save
@pytest.mark.parametrize("dtype", HALVES)
def test_autocast(op: str, save: str, dtype: torch.dtype, device: torch.device) -> None:
    """The gradients of float32 tensors are not rounded to autocast's dtype; the loss is float32."""
    if device.type == "cpu" and dtype == torch.float16 and not torch.amp.is_autocast_available("cpu"):
        pytest.skip("no autocast of the CPU in float16")
    x, w, target, b = made(torch.float32, device)
    ours = leaves(x, w, b)
    with torch.autocast(device.type, dtype):
        outputs = outputs_of(op, *pair(ours, target), save=save)
        again = outputs_of(op, ours[0].to(dtype), *pair(ours, target)[1:], save=save)
    assert all(o.dtype == torch.float32 for o in (*outputs, *again))
    gradients = torch.autograd.grad(outputs, ours, [torch.ones_like(o) for o in outputs])
    wide = [t.double() for t in leaves(x, w, b)]
    expected = truth_of(op, *pair(wide, target))
    check(gradients, torch.autograd.grad(expected, wide, [torch.ones_like(o) for o in expected]), torch.bfloat16)
    for g in gradients:
        assert g.dtype == torch.float32
        assert (g.to(dtype).float() != g).float().mean() > 0.5


@every_save
def test_corners(op: str, save: str, device: torch.device) -> None:
    x, w, target, b = made(torch.float32, device)
    for rows, ignored in ((0, False), (5, True)):
        ours = leaves(x[:rows], w, b)
        y = torch.full_like(target[:rows], -100) if ignored else target[:rows]
        outputs = outputs_of(op, *pair(ours, y), save=save)
        assert outputs[0].isnan().all() if op == "cross_entropy" else not outputs[0].any()
        gradients = torch.autograd.grad(outputs, ours, [torch.ones_like(o) for o in outputs])
        assert not any(g.any() for g in gradients)
    flat = leaves(x[:, :0], w[:, :0], b)
    outputs = outputs_of(op, *pair(flat, target), save=save)
    check(outputs, truth_of(op, *pair([t.double() for t in flat], target)), torch.float32)
    of_x, *_ = torch.autograd.grad(outputs, flat, [torch.ones_like(o) for o in outputs])
    assert of_x.shape == (ROWS, 0)
    one = leaves(x, w[:1], None)
    outputs = outputs_of(op, *pair(one, torch.zeros_like(target)), save=save)
    assert not any(o.any() for o in outputs)


def test_class_weights(device: torch.device) -> None:
    x, w, target, b = made(torch.float64, device)
    weight = torch.rand(CLASSES, device=device, dtype=torch.float64)
    for reduction in ("mean", "none"):
        found = fastops.linear_cross_entropy(x, w, target, linear_bias=b, weight=weight, reduction=reduction)
        torch.testing.assert_close(found, F.cross_entropy(F.linear(x, w, b), target, weight, reduction=reduction))
    with pytest.raises(RuntimeError, match=r"^\[linear_cross_entropy\] weight must have shape \[301\], got \[300\]$"):
        fastops.linear_cross_entropy(x, w, target, weight=weight[1:])


def test_whole_logits_of_more_rows(device: torch.device) -> None:
    """Probabilities and weights of more dimensions, of a batch that has more than one."""
    make = Make(device, torch.float64)
    x, w, q = make(2, 3, 5), make(11, 5), make(2, 3, 11).softmax(-1)
    several, target = make(11, 4, 5), make.integers(2, 3, 4, below=11)
    for reduction in ("none", "mean", "sum"):
        found = fastops.linear_cross_entropy(x, w, q, reduction=reduction)
        expected = F.cross_entropy(F.linear(x, w).flatten(0, 1), q.flatten(0, 1), reduction=reduction)
        torch.testing.assert_close(found, expected.view(2, 3) if reduction == "none" else expected)
        found = fastops.linear_cross_entropy(x, several, target, reduction=reduction)
        logits = torch.einsum("abh,cdh->abcd", x, several).flatten(0, 1)
        expected = F.cross_entropy(logits, target.flatten(0, 1), reduction=reduction)
        torch.testing.assert_close(found, expected.view(2, 3, 4) if reduction == "none" else expected)
    for arguments, message in (
        ((x, several, target[0]), r"target must have shape \[2, 3, 4\], got \[3, 4\]"),
        ((x, w[:, 1:], q), r"input must end in linear_weight's features 4, got shape \[2, 3, 5\]"),
        ((x, w[0], q), r"linear_weight must have shape \[classes, ..., features\], classes not 0, got \[5\]"),
        ((x, w.float(), q), r"linear_weight must have input's dtype torch.float64, got torch.float32"),
    ):
        with pytest.raises(RuntimeError, match=r"^\[linear_cross_entropy\] " + message):
            fastops.linear_cross_entropy(*arguments)
    with pytest.raises(TypeError, match=r"^\[linear_cross_entropy\] linear_bias must be a Tensor or None, got int$"):
        fastops.linear_cross_entropy(x, w, q, linear_bias=3)  # type: ignore[arg-type]


def test_module() -> None:
    torch.manual_seed(0)
    weight = torch.rand(5) + 0.1
    ours = fastops.nn.LinearCrossEntropyLoss(3, 5, bias=True, weight=weight, label_smoothing=0.1, softcap=4.0)
    x, target = torch.randn(7, 3), torch.randint(0, 5, (7,))
    logits = 4 * torch.tanh(ours.linear(x) / 4)
    torch.testing.assert_close(ours(x, target), F.cross_entropy(logits, target, weight, label_smoothing=0.1))
    assert set(ours.state_dict()) == {"weight", "linear.weight", "linear.bias"}
    assert repr(ours).startswith(
        "LinearCrossEntropyLoss(\n  in_features=3, num_classes=5, label_smoothing=0.1, softcap=4.0\n"
    )
    several = fastops.nn.LinearCrossEntropyLoss(3, 5, out_features=(2,), bias=True)
    logits = several.linear(x).unflatten(-1, (5, 2))
    target = torch.randint(0, 5, (7, 2))
    torch.testing.assert_close(several(x, target), F.cross_entropy(logits, target))
    if base := getattr(torch.nn, "LinearCrossEntropyLoss", None):
        theirs = base(3, 5, out_features=(2,), bias=True)
        theirs.load_state_dict(several.state_dict())
        assert isinstance(several, base)
        torch.testing.assert_close(several(x, target), theirs(x, target))


def test_a_module_of_torchs_becomes_ours() -> None:
    torchs = getattr(torch.nn, "LinearCrossEntropyLoss", None)
    if torchs is None:
        pytest.skip("torch.nn has no such module")
    module = torchs(3, 5, bias=True, label_smoothing=0.1)
    x, target = torch.randn(7, 3), torch.randint(0, 5, (7,))
    expected = module(x, target)
    module.__class__ = fastops.nn.LinearCrossEntropyLoss
    torch.testing.assert_close(module(x, target), expected)
    assert "label_smoothing=0.1" in repr(module)


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
def test_slices(device_type: str) -> None:
    """Of any shape all classes are in slices; "none" keeps nothing, "auto" no more than it may."""
    for rows, features, classes in itertools.product((0, 1, 37, 8192, 1 << 20), (1, 4096), (1, 301, 50257, 262144)):
        lean, all_kept, auto = (
            slices(save, rows, features, classes, 2, 2, device_type) for save in ("none", "logits", "auto")
        )
        assert lean.kept == 0
        odd = device_type == "cuda" and classes in (301, 50257)
        assert all_kept.kept == (classes // 256 * 256 if odd else classes)
        assert 0 <= auto.kept <= all_kept.kept
        assert lean.width >= 256
        assert lean.width % 64 == 0
        assert auto.kept == all_kept.kept or (auto.kept % auto.width == 0 and rows * auto.kept * 2 <= 8 << 30)
    # A slice is a tenth of the gradients, 558 MB here.
    assert slices("none", 8192, 2048, 128256, 2, 2, "cuda") == (3328, 0)


def test_memory(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak: of "logits" they and the gradients, of "none" the gradients, float32 sums and a slice."""
    monkeypatch.setattr(linear_operands, "slices", slices)
    rows, features, classes = 4096, 1024, 32000
    make = Make(cuda, torch.bfloat16)
    x, w, target = make(rows, features), make(classes, features, scale=0.03), make.integers(rows, below=classes)
    gradients = 2 * features * (rows + classes)
    warm = leaves(x[:1], w)  # the first products allocate cuBLAS's workspaces, one for each thread
    torch.autograd.grad(torch.mm(warm[0], warm[1].mT).sum(), warm)
    for save, most in (
        ("logits", gradients + 2 * rows * classes),
        ("none", gradients + 4 * rows * features + (33 << 20)),
    ):
        ours = leaves(x, w)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.autograd.grad(fastops.linear_cross_entropy(*ours, target, save=save), ours)
        assert torch.cuda.max_memory_allocated() - before <= most + (2 << 20), save
