"""log_prob and its entropy: options, corners and gradients, against float64 and torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorder import Recorder
from table import assert_close
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from transforms import every_transform

import fastops
from fastops.cases import DTYPES, Make, by_name
from fastops.cases.inputs import HALVES
from fastops.selftest.accuracy import ulps
from fastops.selftest.bits import same_bits

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
BOUNDS = by_name()["log_prob"].bounds
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "scale": {"scale": 0.5},
    "negative scale": {"scale": -2},
    "softcap": {"softcap": 3.0},
    "both": {"scale": 2.0, "softcap": 5.0},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def composed(
    x: Tensor, target: Tensor, *, scale: float = 1.0, softcap: float | None = None, entropy: bool = True
) -> Any:
    kept = target != -100
    u = torch.where(kept.unsqueeze(-1), x, 0) * scale
    u = u if softcap is None else softcap * torch.tanh(u / softcap)
    log_p = u.log_softmax(-1)
    found = log_p.gather(-1, torch.where(kept, target, 0).unsqueeze(-1)).squeeze(-1)
    spread = -(log_p.exp() * torch.where(log_p == -torch.inf, 0, log_p)).sum(-1)
    pair = torch.where(kept, found, 0), torch.where(kept, spread, 0)
    return pair if entropy else pair[0]


def made(dtype: torch.dtype, device: torch.device, *shape: int) -> tuple[Tensor, Tensor]:
    make = Make(device, dtype)
    x, target = make(*shape, scale=2.0), make.integers(*shape[:-1], below=shape[-1])
    if target.dim():
        target.view(-1)[::3] = -100
    return x, target


@every_dtype
@every_option
@pytest.mark.parametrize("shape", [(7, 33), (5,), (3, 4, 129), (9, 1000), (4, 1)], ids=str)
def test_options(dtype: torch.dtype, options: dict[str, Any], shape: tuple[int, ...], device: torch.device) -> None:
    """float32 results (float64 of float64) and gradients of input's dtype; with the entropy the same bits."""
    x, target = made(dtype, device, *shape)
    bound = BOUNDS[dtype]
    room = 4 if dtype not in HALVES else 1
    outputs = []
    for entropy in (False, True):
        leaf, truth = x.clone().requires_grad_(), x.cpu().double().requires_grad_()
        results = fastops.log_prob(leaf, target, entropy=entropy, **options)
        found = results if isinstance(results, tuple) else (results,)
        expected = composed(truth, target.cpu(), **options)[: len(found)]
        make = Make(device, torch.float64, seed=3)
        grads = [make(*f.shape, dtype=f.dtype) for f in found]
        (gradient,) = torch.autograd.grad(found, leaf, grads)
        (wanted,) = torch.autograd.grad(expected, truth, [g.cpu().double() for g in grads])
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == torch.promote_types(dtype, torch.float32)
            near_zero = (a.cpu().double() - b).abs().max() <= 4 * torch.finfo(a.dtype).eps  # of numbers about 1
            assert near_zero or ulps(a, b, dtype=dtype) <= room * bound.forward
        assert gradient.dtype == dtype
        if shape[-1] > 1:  # of one class the gradient is 0, and what float32 makes of it has no scale
            assert ulps(gradient, wanted) <= room * bound.gradient
        outputs.append(found[0])
    assert same_bits(*outputs)


@every_dtype
@every_option
@pytest.mark.parametrize("n", [1000, 70001])
def test_results_are_float32s(dtype: torch.dtype, options: dict[str, Any], n: int, device: torch.device) -> None:
    """Of half types too, and of rows of several segments, parts and blocks of a cluster."""
    x, target = made(dtype, device, 3, n)
    x[1, : n // 2] = -30
    found = fastops.log_prob(x, target, entropy=True, **options)
    truth = composed(x.cpu().double(), target.cpu(), **options)
    for ours, true, bound in zip(found, truth, (4e-6, 1e-4), strict=True):
        torch.testing.assert_close(ours.cpu().double(), true, rtol=bound, atol=bound)


@every_dtype
def test_ignored_rows_may_hold_anything(dtype: torch.dtype, device: torch.device) -> None:
    x, target = made(dtype, device, 9, 13)
    spoiled = x.clone()
    spoiled[::3] = torch.tensor([torch.nan, torch.inf, -torch.inf] + [1.0] * 10, dtype=dtype, device=device)
    found = []
    for rows in (x, spoiled):
        leaf = rows.clone().requires_grad_()
        pair = fastops.log_prob(leaf, target, entropy=True)
        (gradient,) = torch.autograd.grad(sum(t.sum() for t in pair), leaf, create_graph=True)
        (second,) = torch.autograd.grad(gradient.float().square().sum(), leaf)
        for t in (*pair, gradient, second):
            assert not t[::3].any()
        found.append([*pair, gradient, second])
    assert all(same_bits(a, b) for a, b in zip(*found, strict=True))


@every_dtype
@pytest.mark.parametrize("copies", [1, 9, 300])
def test_masked_classes(dtype: torch.dtype, copies: int, device: torch.device) -> None:
    """p·log p is 0 where p is: -inf, and logits so far below that p underflows."""
    row = torch.tensor([-torch.inf, 1.0, 2.0, -torch.inf, -6e4], dtype=dtype, device=device)
    x = row.repeat(copies).expand(3, -1).clone()
    target = torch.tensor([1, 0, 2], device=device)
    leaf, truth = x.clone().requires_grad_(), x.double().requires_grad_()
    found, expected = fastops.log_prob(leaf, target, entropy=True), composed(truth, target)
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype in HALVES else {"rtol": 1e-5, "atol": 1e-6}
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **tolerance)
        (gradient,) = torch.autograd.grad(a.sum(), leaf, retain_graph=True)
        (wanted,) = torch.autograd.grad(b.sum(), truth, retain_graph=True)
        torch.testing.assert_close(gradient.double(), wanted, **tolerance)


@every_dtype
def test_one_class_is_certain(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor([[100.0, -torch.inf, -torch.inf]], dtype=dtype, device=device, requires_grad=True)
    found, entropy = fastops.log_prob(x, torch.tensor([0], device=device), entropy=True)
    (gradient,) = torch.autograd.grad(found.sum() + entropy.sum(), x)
    assert all(t.double().abs().max() < 1e-37 for t in (found, entropy, gradient))


@every_option
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_finite_differences(check: Callable[..., bool], options: dict[str, Any], device: torch.device) -> None:
    for shape in ((4, 3), (2, 2, 3), (4,)):
        x, target = made(torch.float64, device, *shape)
        assert check(lambda x, t=target: fastops.log_prob(x, t, entropy=True, **options), (x.requires_grad_(),))


@every_transform
@every_option
def test_transforms(transform: Callable[..., Any], options: dict[str, Any], device: torch.device) -> None:
    x, target = made(torch.float64, device, 4, 3)
    batch = [Make(device, torch.float64, seed=9)(6, 4, 3)]
    for entropy in (False, True):

        def call(function: Callable[..., Any], entropy: bool = entropy) -> Callable[..., Any]:
            return lambda x: function(x, target, entropy=entropy, **options)

        ours, plain = call(fastops.log_prob), call(composed)
        assert_close(transform(ours, [x], batch), transform(plain, [x], batch))


def test_a_batch_is_more_rows(device: torch.device) -> None:
    """``vmap`` runs the kernels, on one more dimension."""
    make = Make(device, torch.float32)
    x, target = make(5, 4, 3), make.integers(5, 4, below=3)
    for entropy in (False, True):
        with Recorder() as recorder:
            torch.func.vmap(lambda x, t, e=entropy: fastops.log_prob(x, t, entropy=e), (0, 0))(x, target)
        assert recorder.ops == ["log_prob"]


@every_dtype
def test_views(dtype: torch.dtype, device: torch.device) -> None:
    """The bits of the contiguous copy; nothing of the caller's is written; a second backward gives the first's bits."""
    make = Make(device, dtype)
    for x in (make(3, 9, 65)[:, :-1], make(65, 9, 3).permute(2, 1, 0), make(1, 1, 65).expand(3, 8, 65)):
        room = make.integers(*x.shape[:-1], 2, below=65)
        before = x.clone(), room.clone()
        found = []
        for source, target in ((x, room[..., 1]), (x.contiguous(), room[..., 1].contiguous())):
            leaf = source.detach().requires_grad_()
            pair = fastops.log_prob(leaf, target, entropy=True)
            for _ in range(2):
                (gradient,) = torch.autograd.grad(sum(t.sum() for t in pair), leaf, retain_graph=True)
                assert gradient.is_contiguous()
                found.append((*pair, gradient))
        assert all(same_bits(a, b) for more in found[1:] for a, b in zip(more, found[0], strict=True))
        assert all(same_bits(a, b) for a, b in zip((x, room), before, strict=True))


@every_dtype
@pytest.mark.parametrize("wrong", [10, -1, -101])
def test_target_out_of_range(dtype: torch.dtype, wrong: int, device: torch.device) -> None:
    x, target = Make(device, dtype)(4, 10), torch.tensor([1, wrong, -100, 3], device=device)
    for f in (fastops.log_prob, fastops.reference.log_prob):
        for input in (x, x.clone().requires_grad_()):
            if device.type == "cpu":
                message = rf"^\[log_prob\] target must be 0 to 9 or ignore_index -100, got {wrong}$"
                with pytest.raises(IndexError, match=message):
                    f(input, target)
            else:
                assert f(input, target).isnan().tolist() == [False, True, False, False]


def test_compile_with_dynamic_shapes(device: torch.device) -> None:
    def f(x: Tensor, target: Tensor) -> Tensor:
        found, entropy = fastops.log_prob(x, target, scale=0.5, entropy=True)
        return (found * entropy).sum() + fastops.log_prob(x.bfloat16(), target, softcap=3.0).sum()

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(f, fullgraph=True, backend=counter)
    for rows, n in ((3, 4), (5, 7), (2, 9)):
        x, target = made(torch.float32, device, rows, n)
        found = []
        for g in (compiled, f):
            leaf = x.clone().requires_grad_()
            y = g(leaf, target)
            found.append((y.detach(), *torch.autograd.grad(y, leaf)))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)
    assert counter.frame_count == 2


def test_defaults_are_left_out_of_a_call() -> None:
    x, target = made(torch.float32, torch.device("cpu"), 3, 4)
    x.requires_grad_()
    for arguments, forward, backward in (
        ({}, (), ()),
        ({"scale": 2.0}, (-100, 2.0), (-100, 2.0)),
        ({"entropy": True}, (-100, 1.0, None, True), ()),
    ):
        with Recorder() as recorder:
            found = fastops.log_prob(x, target, **arguments)  # type: ignore[arg-type]
            (found[0] if isinstance(found, tuple) else found).sum().backward()
        assert recorder.args[0][2:] == forward
        assert recorder.args[1][6:] == backward


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (RuntimeError, "softcap must be finite and greater than 0, got -1", {"softcap": -1}),
        (TypeError, "scale must be a number, got str", {"scale": "1"}),
        (TypeError, "scale must be a number, got NoneType", {"scale": None}),
        (TypeError, "entropy must be a bool, got int", {"entropy": 1}),
        (TypeError, "ignore_index must be an integer, got bool", {"ignore_index": True}),
    ],
    ids=str,
)
def test_wrong_options(error: type[Exception], message: str, options: dict[str, Any]) -> None:
    with pytest.raises(error, match=rf"^\[log_prob\] {message}$"):
        fastops.log_prob(torch.randn(3, 4), torch.tensor([0, 1, 2]), **options)


def test_wrong_tensors(device: torch.device) -> None:
    x, target = made(torch.float32, device, 3, 4)
    for call, message in (
        (lambda: fastops.log_prob(x, target[:2]), r"target must have shape \[3\], got \[2\]"),
        (
            lambda: fastops.log_prob(x, target.int()),
            r"target must have dtype torch\.int64 or torch\.uint8, got torch\.int32",
        ),
        (lambda: fastops.log_prob(x.long(), target), "input must be floating point, got torch.int64"),
        (lambda: fastops.log_prob(x[0, 0], target[0]), r"input must have a dimension of classes, got shape \[\]"),
    ):
        with pytest.raises(RuntimeError, match=rf"^\[log_prob\] {message}$"):
            call()


def test_a_policy_gradient(device: torch.device) -> None:
    """As by log_softmax over all classes."""
    x, target = made(torch.float64, device, 3, 4, 9)
    target = target.clamp_min(0)
    advantage = Make(device, torch.float64, seed=5)(3, 4)
    gradients = []
    for f in (fastops.log_prob, lambda x, t: fastops.log_softmax(x, -1).gather(-1, t[..., None]).squeeze(-1)):
        leaf = x.clone().requires_grad_()
        gradients.append(torch.autograd.grad((f(leaf, target) * advantage).sum(), leaf))
    assert_close(*gradients)
