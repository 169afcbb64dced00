"""cross_entropy under autograd, torch.func, torch.compile, autocast and TorchScript, and as a module."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cross_entropy_inputs import every_dtype, every_option, every_reduction, made
from recorder import Recorder
from table import assert_close
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from transforms import every_transform

import fastops
from fastops import nn
from fastops.cases import Make
from fastops.cases.inputs import HALVES
from fastops.selftest.bits import same_bits


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


def test_checkpoint(device: torch.device) -> None:
    from torch.utils.checkpoint import checkpoint

    x, target, _ = made(torch.float32, device, 5, 7, options={})
    x.requires_grad_()
    (expected,) = torch.autograd.grad(fastops.cross_entropy(x, target), x)
    loss = checkpoint(fastops.cross_entropy, x, target, use_reentrant=False)
    assert same_bits(torch.autograd.grad(loss, x)[0], expected)


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


TRACED = [{}, {"softcap": 3.0, "z_loss": 0.1}, {"label_smoothing": 0.1}, {"label_smoothing": 0.1, "softcap": 3.0}]


@pytest.mark.parametrize("options", TRACED, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("of_target", [torch.int64, torch.uint8])
def test_trace(options: dict[str, Any], dtype: torch.dtype, of_target: torch.dtype) -> None:
    x, y = (make(rows, 7, 2) for make in [Make("cpu", dtype)] for rows in (5, 9))
    target, classes = (Make("cpu", dtype).integers(rows, 2, below=7).to(of_target) for rows in (5, 9))
    traced = torch.jit.trace(lambda x, t: fastops.cross_entropy(x, t, **options), (x, target))
    torch.testing.assert_close(traced(y, classes), fastops.cross_entropy(y, classes, **options))
    with pytest.raises(RuntimeError, match=r"^\[cross_entropy\] target must have dtype"):
        torch.jit.trace(lambda x, t: fastops.cross_entropy(x, t, **options), (x, target.int()))
