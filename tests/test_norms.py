"""What is particular to the norms: the default eps, the rounded sum and its gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from added import N, every_added, inputs
from recorder import Recorder
from table import assert_close
from torch import Tensor

import fastops
from fastops import nn
from fastops.cases import DTYPES, Make
from fastops.cases import norms as formulas
from fastops.selftest.accuracy import ulps
from fastops.selftest.bits import same_bits

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


# eps


@every_dtype
def test_default_eps_is_torchs(dtype: torch.dtype, device: torch.device) -> None:
    """On rows so small that eps decides."""
    x = Make(device, dtype)(7, N, scale={torch.float64: 1e-8, torch.float16: 3e-4}.get(dtype, 1e-4))
    x.requires_grad_()
    ours, theirs = fastops.rms_norm(x, (N,)), F.rms_norm(x, (N,))
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 4 * torch.finfo(dtype).eps)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=0)
    assert not torch.allclose(ours, F.rms_norm(x, (N,), eps=0.0), rtol=0.1)
    grad = torch.randn_like(ours)
    a, b = (torch.autograd.grad(out, x, grad)[0] for out in (ours, theirs))
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * b.abs().max().item())
    assert same_bits(fastops.add_rms_norm(x, torch.zeros_like(x), (N,))[0], ours)
    torch.testing.assert_close(fastops.reference.rms_norm(x, (N,)), ours, rtol=tolerance, atol=0)


@pytest.mark.parametrize("weight_dtype", DTYPES)
@every_dtype
def test_default_eps_is_of_what_is_normalised(
    dtype: torch.dtype, weight_dtype: torch.dtype, device: torch.device
) -> None:
    """The docstrings' sentence: the dtype of rms_norm's input and of add_rms_norm's residual decides, no other."""
    eps = 2**-52 if dtype == torch.float64 else 2**-23
    x = Make(device, dtype)(7, N, scale={torch.float64: 1e-8, torch.float16: 3e-4}.get(dtype, 1e-4))
    weight = torch.ones(N, device=device, dtype=weight_dtype)
    for module in (fastops, fastops.reference, F):
        found = module.rms_norm(x, (N,), weight)
        torch.testing.assert_close(found, module.rms_norm(x, (N,), weight, eps))
    for other in DTYPES:
        input = torch.zeros(7, N, device=device, dtype=other)
        for module in (fastops, fastops.reference):
            found = module.add_rms_norm(input, x, (N,), weight)
            torch.testing.assert_close(found, module.add_rms_norm(input, x, (N,), weight, eps))


@every_dtype
def test_opcheck_without_eps(dtype: torch.dtype, device: torch.device) -> None:
    make = Make(device, dtype)
    x, r, w = make(3, 5), make(3, 5), make(5)
    ops = torch.ops.fastops
    torch.library.opcheck(ops.rms_norm.default, (x, w, 1, None, 1.0))
    torch.library.opcheck(ops.rms_norm_forward.default, (x, w, 1, None, 1.0))
    torch.library.opcheck(ops.add_rms_norm_forward.default, (x, r))
    rstd = ops.rms_norm_forward(x)[1]
    torch.library.opcheck(ops.rms_norm_backward.default, (x, x, rstd, w, True, True, None, 1.0))


# The sum


@every_added
@every_dtype
@pytest.mark.parametrize("n", [1, 7, 61, 100, 256, 1000, 6144, 12296, 16391, 16392, 140004])
def test_the_rounded_sum_is_normalised(
    added: Any, norm: Any, parameters: int, dtype: torch.dtype, n: int, device: torch.device
) -> None:
    """The result has the bits of the norm of torch's own sum, for numbers whose sum is not exact."""
    x, r, affine = inputs(Make(device, dtype), parameters, rows=5, n=n)
    before = [t.clone() for t in (x, r, *affine)]
    out, total = added(x, r, (n,), *affine)
    assert same_bits(total, x + r)
    assert same_bits(out, norm(x + r, (n,), *affine))
    assert all(same_bits(a, b) for a, b in zip((x, r, *affine), before, strict=True))
    assert len({t.data_ptr() for t in (x, r, out, total)}) == 4


@every_added
@every_dtype
def test_statistics_are_the_norms(
    added: Any, norm: Any, parameters: int, dtype: torch.dtype, device: torch.device
) -> None:
    x, r, _ = inputs(Make(device, dtype), 0)
    of_sum, of_norm = (getattr(torch.ops.fastops, f"{f.__name__}_forward") for f in (added, norm))
    _, total, *statistics = of_sum(x, r)
    assert all(same_bits(a, b) for a, b in zip(statistics, of_norm(total)[1:], strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_parameter_gradients_of_many_rows(dtype: torch.dtype) -> None:
    """Sums over rows are in float32; PyTorch's on the CPU are in the parameters' dtype, at some 60 times the error."""
    make, rows = Make(torch.device("cpu"), dtype), 16384
    x, grad = make(rows, N), make(rows, N)
    parameters = [make(N), make(N)]

    def gradients(function: Callable[..., Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
        given = [p.to(dtype).requires_grad_() for p in parameters]
        return torch.autograd.grad(function(x.to(dtype), (N,), *given), given, grad.to(dtype))

    truth, ours, theirs = (
        gradients(F.layer_norm, torch.float64),
        gradients(fastops.layer_norm, dtype),
        gradients(F.layer_norm, dtype),
    )
    for true, our, their in zip(truth, ours, theirs, strict=True):
        assert 20 * torch.dist(our.double(), true) < torch.dist(their.double(), true)


@every_dtype
@pytest.mark.parametrize("n", [1, 769, 20000])
def test_statistics(dtype: torch.dtype, n: int, device: torch.device) -> None:
    """The mean as two numbers, whose sum is closer to it than the first alone, and one over the spread."""
    x = Make(device, dtype)(7, n, shift=1000.0)
    _, statistics = torch.ops.fastops.layer_norm_forward(x, eps=0.5)
    mean, shift, rstd = statistics.double().unbind(-1)
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    centred = centred - centred.mean(-1, keepdim=True)
    step = torch.finfo(statistics.dtype).eps
    torch.testing.assert_close(mean, wide.mean(-1), rtol=64 * step, atol=0)
    torch.testing.assert_close((wide - mean[:, None]).mean(-1), shift, rtol=0, atol=16 * step)
    torch.testing.assert_close(rstd**-2, centred.square().mean(-1) + 0.5, rtol=16 * step, atol=0)


@every_added
@every_dtype
@pytest.mark.parametrize("used", ["output", "sum", "both"])
def test_gradients_of_the_used_outputs(
    added: Any, norm: Any, parameters: int, dtype: torch.dtype, used: str, device: torch.device
) -> None:
    make = Make(device, dtype)
    x, r, affine = inputs(make, parameters)
    leaves = [t.requires_grad_() for t in (x, r, *affine)]
    grads = make(9, N), make(9, N)
    formula = getattr(formulas, added.__name__)
    total = (x + r).detach().double().cpu()  # rounded, as it is normalised
    wide = [total.requires_grad_(), torch.zeros_like(total), *(t.detach().double().cpu() for t in affine)]
    wide = [t.requires_grad_() for t in wide]

    def gradients(outputs: Any, of: list[Tensor]) -> tuple[Tensor | None, ...]:
        pairs = [(o, g) for o, g, name in zip(outputs, grads, ("output", "sum"), strict=True) if used in (name, "both")]
        incoming = [g.to(o.device, o.dtype) for o, g in pairs]
        return torch.autograd.grad([o for o, _ in pairs], of, incoming, allow_unused=True)

    found = gradients(added(x, r, (N,), *affine), leaves)
    for a, b in zip(found, gradients(formula(*wide[:2], (N,), *wide[2:]), wide), strict=True):
        if b is None:
            assert a is None
        else:
            assert a is not None
            assert ulps(a, b) <= 8
    assert same_bits(found[0], found[1])
    if used == "sum":
        assert same_bits(found[0], grads[1])


@every_added
def test_the_sums_gradient_alone_runs_no_kernel(added: Any, norm: Any, parameters: int, device: torch.device) -> None:
    x, r, affine = inputs(Make(device, torch.float32), parameters)
    leaves = [t.requires_grad_() for t in (x, r, *affine)]
    _, total = added(x, r, (N,), *affine)
    with Recorder() as recorder:
        total.square().sum().backward(inputs=leaves)
    assert recorder.ops == []
    assert all(p.grad is None for p in affine)


@every_added
def test_the_outputs_gradient_alone_comes_without_zeros(
    added: Any, norm: Any, parameters: int, device: torch.device
) -> None:
    """No tensor of zeros is made for the sum: the gradients are the norm's, bit for bit."""
    x, r, affine = inputs(Make(device, torch.float32), parameters)
    total = (x + r).requires_grad_()
    grad = torch.randn_like(x)
    (expected,) = torch.autograd.grad(norm(total, (N,), *affine), total, grad)
    out, _ = added(x.requires_grad_(), r, (N,), *affine)
    with Recorder() as recorder:
        (found,) = torch.autograd.grad(out, x, grad)
    assert recorder.ops == [f"{added.__name__}_backward"]
    assert recorder.args[0][1] is None
    assert same_bits(found, expected)


@every_added
@every_dtype
def test_gradients_are_folded_and_rounded_once(
    added: Any, norm: Any, parameters: int, dtype: torch.dtype, device: torch.device
) -> None:
    make = Make(device, dtype)
    x, r, _ = inputs(make, 0)
    x.requires_grad_()
    grads = make(9, N), make(9, N, scale=3.0)
    (found,) = torch.autograd.grad(added(x, r, (N,)), x, grads)
    total = (x + r).detach().double().requires_grad_()
    eps = {} if norm is fastops.layer_norm else {"eps": torch.finfo(x.dtype).eps}
    plain = getattr(formulas, norm.__name__)(total, (N,), **eps)
    (expected,) = torch.autograd.grad((plain, total), total, [g.double() for g in grads])
    assert ulps(found, expected.cpu()) <= (0.51 if dtype in (torch.float16, torch.bfloat16) else 4)


@every_added
def test_every_subset_of_needs_and_uses(added: Any, norm: Any, parameters: int, device: torch.device) -> None:
    make = Make(device, torch.float64)
    x, r, affine = inputs(make, parameters, rows=3, n=5)
    formula = getattr(formulas, added.__name__)

    def loss(f: Callable[..., Any], which: tuple[int, ...], tensors: list[Tensor]) -> Tensor:
        outputs = f(*tensors[:2], (5,), *tensors[2:])
        return sum((outputs[k].sin().sum() for k in which), start=torch.zeros((), device=device))

    for needed in itertools.product([False, True], repeat=2 + parameters):
        tensors = [t.detach().requires_grad_(need) for t, need in zip((x, r, *affine), needed, strict=True)]
        wanted = [t for t in tensors if t.requires_grad]
        for which in ((0,), (1,), (0, 1)):
            ours, plain = (loss(f, which, tensors) for f in (added, formula))
            assert ours.requires_grad == plain.requires_grad  # the sum does not depend on the parameters
            if plain.requires_grad:
                options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
                assert_close(*(torch.autograd.grad(value, wanted, **options) for value in (ours, plain)))


@every_added
def test_one_tensor_as_both(added: Any, norm: Any, parameters: int, device: torch.device) -> None:
    x, _, affine = inputs(Make(device, torch.float64), parameters)
    x.requires_grad_()
    formula = getattr(formulas, added.__name__)
    for f in (added, torch.compile(added, fullgraph=True, backend="aot_eager")):
        ours, plain = (g(x, x, (N,), *affine) for g in (f, formula))
        assert_close(ours, plain)
        loss = [(o[0].sin() + o[1].cos()).sum() for o in (ours, plain)]
        assert_close(*(torch.autograd.grad(value, x) for value in loss))


@every_added
@pytest.mark.parametrize("used", [(0,), (1,)])
def test_one_used_output_under_compile_and_transforms(
    added: Any, norm: Any, parameters: int, used: tuple[int, ...], device: torch.device
) -> None:
    make = Make(device, torch.float64)
    x, r, affine = inputs(make, parameters, rows=3, n=5)
    formula = getattr(formulas, added.__name__)

    def loss(f: Callable[..., Any]) -> Callable[..., Tensor]:
        return lambda *t: sum((f(*t[:2], (5,), *t[2:])[k].sin().sum() for k in used), start=torch.zeros(()))

    tensors = (x, r, *affine)
    every = tuple(range(len(tensors)))
    assert_close(torch.func.grad(loss(added), every)(*tensors), torch.func.grad(loss(formula), every)(*tensors))
    assert_close(torch.func.hessian(loss(added), every)(*tensors), torch.func.hessian(loss(formula), every)(*tensors))
    leaves = [t.detach().requires_grad_() for t in tensors]
    torch._dynamo.reset()
    compiled = torch.compile(loss(added), fullgraph=True, backend="aot_eager")
    options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    assert_close(
        torch.autograd.grad(compiled(*leaves), leaves, **options),
        torch.autograd.grad(loss(formula)(*leaves), leaves, **options),
    )


@every_added
def test_changing_the_sum_in_place_is_noticed(added: Any, norm: Any, parameters: int, device: torch.device) -> None:
    """The sum is kept for backward: autograd refuses rather than give wrong numbers."""
    x, r, affine = inputs(Make(device, torch.float32), parameters)
    out, total = added(x.requires_grad_(), r, (N,), *affine)
    total.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@every_added
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [96, 200, 512, 1024, 65536])
def test_large_outputs_have_the_bits_of_small_ones(
    added: Any, norm: Any, parameters: int, dtype: torch.dtype, n: int, device: torch.device
) -> None:
    """From 64 MiB on, CPU kernels write rows of whole lines past the caches; rows of 65536 are summed in segments."""
    rows = 2**26 // (n * dtype.itemsize) + 5
    generator = torch.Generator().manual_seed(0)
    x, r, g = (torch.randn(rows, n, generator=generator).to(device, dtype) for _ in range(3))
    affine = [torch.randn(n, generator=generator).to(device, dtype) for _ in range(parameters)]

    def results(at: slice) -> list[Tensor]:
        leaf = x[at].clone().requires_grad_()
        out, total = added(leaf, r[at], (n,), *affine)
        plain = norm(leaf, (n,), *affine)
        grads = (*torch.autograd.grad((out, total), leaf, (g[at], r[at])), *torch.autograd.grad(plain, leaf, g[at]))
        return [out, total, plain, *grads]

    everything = results(slice(None))
    for at in (slice(0, 1), slice(1, 4), slice(rows - 3, rows)):
        for large, small in zip(everything, results(at), strict=True):
            assert same_bits(large[at], small)


def test_complex_rows_are_torchs(device: torch.device) -> None:
    x, w = (torch.randn(s, dtype=torch.complex128, device=device, requires_grad=True) for s in ((3, 5), (5,)))
    ours, theirs = fastops.rms_norm(x, (5,), w), F.rms_norm(x, (5,), w)
    assert_close(ours, theirs)
    assert_close(*(torch.autograd.grad(out.abs().sum(), (x, w)) for out in (ours, theirs)))


# nn.RMSNorm, nn.LayerNorm


@pytest.mark.parametrize("name", ["RMSNorm", "LayerNorm"])
def test_module_with_an_offset_starts_as_torchs(name: str) -> None:
    """Weights around zero: a different state_dict for the same function, under the same key."""
    ours = getattr(nn, name)(9, weight_offset=1.0, dtype=torch.float64)
    theirs = getattr(torch.nn, name)(9, dtype=torch.float64)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert not ours.weight.any()
    x = torch.randn(5, 9, dtype=torch.float64)
    assert_close(ours(x), theirs(x))
    with torch.no_grad():
        ours.weight.normal_()
        theirs.weight.copy_(ours.weight + 1)
    assert_close(ours(x), theirs(x))
    ours.reset_parameters()
    assert not ours.weight.any()


def test_module_says_its_offset() -> None:
    assert repr(nn.RMSNorm(9, weight_offset=1.0)) == (
        "RMSNorm((9,), eps=None, elementwise_affine=True, weight_offset=1.0)"
    )
    assert "weight_offset" not in repr(nn.RMSNorm(9))
    assert repr(nn.LayerNorm(9, weight_offset=0.5)) == (
        repr(torch.nn.LayerNorm(9)).removesuffix(")") + ", weight_offset=0.5)"
    )
    assert nn.LayerNorm(9, elementwise_affine=False, weight_offset=1.0).weight is None
