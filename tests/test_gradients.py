"""Derivatives of every kind and order, against the plain compositions.

Not against torch's own ops: its layer_norm is wrong under ``jacfwd(jacfwd)``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from table import Function, assert_close, batch_of, every_case, every_small_sample, function_of, scalar_of
from torch import Tensor
from torch.autograd import forward_ad
from transforms import every_transform, grad, vmap, vmap_grad

import fastops
from fastops.cases import Case, Make, Sample, by_name


@every_small_sample
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_finite_differences(case: Case, sample: Sample, device: torch.device, check: Callable[..., bool]) -> None:
    f = function_of(case, sample, device)
    assert check(f.ours, [t.requires_grad_() for t in f.tensors])


@every_small_sample
def test_gradcheck_forward_and_batched(case: Case, sample: Sample, device: torch.device) -> None:
    f = function_of(case, sample, device)
    inputs = [t.requires_grad_() for t in f.tensors]
    assert torch.autograd.gradcheck(f.ours, inputs, check_forward_ad=True, check_batched_grad=True)


@every_small_sample
@every_transform
def test_functional_transforms(case: Case, sample: Sample, device: torch.device, transform: Callable[..., Any]) -> None:
    f = function_of(case, sample, device)
    x, batch = list(f.tensors), batch_of(f.tensors)
    assert_close(transform(f.ours, x, batch), transform(f.plain, x, batch))


def batched_gradients(
    f: Function, g: Callable[..., Any], **options: bool
) -> tuple[list[Tensor], list[Tensor], tuple[Tensor, ...]]:
    """Inputs, batches of incoming gradients, and the gradients by torch.autograd's own vmap."""
    inputs = [t.detach().requires_grad_() for t in f.tensors]
    out = g(*inputs)
    outputs = out if isinstance(out, tuple) else (out,)
    grads = [Make(o.device, o.dtype, seed=9)(4, *o.shape).requires_grad_() for o in outputs]
    return inputs, grads, torch.autograd.grad(outputs, inputs, grads, is_grads_batched=True, **options)


@every_small_sample
def test_batched_gradients(case: Case, sample: Sample, device: torch.device) -> None:
    f = function_of(case, sample, device)
    assert_close(batched_gradients(f, f.ours)[-1], batched_gradients(f, f.plain)[-1])


@every_small_sample
def test_batched_gradients_are_differentiable(case: Case, sample: Sample, device: torch.device) -> None:
    f = function_of(case, sample, device)

    def penalty(g: Callable[..., Any]) -> tuple[Tensor, ...]:
        inputs, grads, once = batched_gradients(f, g, create_graph=True)
        return torch.autograd.grad(sum(t.square().sum() for t in once), [*inputs, *grads], materialize_grads=True)

    assert_close(penalty(f.ours), penalty(f.plain))


@every_small_sample
def test_dual_numbers(case: Case, sample: Sample, device: torch.device) -> None:
    f = function_of(case, sample, device)
    tangents = batch_of(f.tensors, 1)

    def of_duals(g: Callable[..., Any]) -> list[Any]:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t, v[0]) for t, v in zip(f.tensors, tangents, strict=True)]
            out = g(*duals)
            return [tuple(forward_ad.unpack_dual(o)) for o in (out if isinstance(out, tuple) else (out,))]

    assert_close(of_duals(f.ours), of_duals(f.plain))


@every_small_sample
def test_every_subset_of_gradients(case: Case, sample: Sample, device: torch.device) -> None:
    f = function_of(case, sample, device)
    whole = [t.detach().requires_grad_() for t in f.tensors]
    expected = torch.autograd.grad(scalar_of(f.plain)(*whole), whole)
    for needed in itertools.product([False, True], repeat=len(f.tensors)):
        inputs = [t.detach().requires_grad_(need) for t, need in zip(f.tensors, needed, strict=True)]
        out = scalar_of(f.ours)(*inputs)
        assert out.requires_grad == any(needed)
        if any(needed):
            out.backward()
        for x, need, gradient in zip(inputs, needed, expected, strict=True):
            if need:
                assert_close(x.grad, gradient)
            else:
                assert x.grad is None


@every_small_sample
def test_one_output_of_several(case: Case, sample: Sample, device: torch.device) -> None:
    f = function_of(case, sample, device)
    inputs = [t.detach().requires_grad_() for t in f.tensors]
    ours, plain = f.ours(*inputs), f.plain(*inputs)
    if not isinstance(ours, tuple):
        pytest.skip("one output")
    for a, b in zip(ours, plain, strict=True):
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        assert_close(torch.autograd.grad(a.sum(), inputs, **options), torch.autograd.grad(b.sum(), inputs, **options))


@every_small_sample
def test_no_grad_and_inference(case: Case, sample: Sample, device: torch.device) -> None:
    f = function_of(case, sample, device)
    inputs = [t.detach().requires_grad_() for t in f.tensors]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = f.ours(*inputs)
        for o in out if isinstance(out, tuple) else (out,):
            assert not o.requires_grad


def _compiled_gradients(f: Callable[..., Any], x: tuple[Tensor, ...], **options: Any) -> tuple[Tensor, ...]:
    torch._dynamo.reset()
    inputs = [t.detach().requires_grad_() for t in x]
    out = torch.compile(scalar_of(f), fullgraph=True, **options)(*inputs)
    return (out.detach(), *torch.autograd.grad(out, inputs))


def _eager_gradients(f: Callable[..., Any], x: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    inputs = [t.detach().requires_grad_() for t in x]
    out = scalar_of(f)(*inputs)
    return (out.detach(), *torch.autograd.grad(out, inputs))


@pytest.mark.parametrize("name", ["square", "relu", "sigmoid"])
def test_names_of_nodes(name: str) -> None:
    y = getattr(fastops, name)(torch.ones(3, requires_grad=True))
    assert y.grad_fn.name() == f"{name}Backward"


@every_small_sample
def test_compile(case: Case, sample: Sample, device: torch.device) -> None:
    """Traced whole, forward and backward, without code generation."""
    f = function_of(case, sample, device)
    assert_close(_compiled_gradients(f.ours, f.tensors, backend="aot_eager"), _eager_gradients(f.plain, f.tensors))


@every_case
def test_compile_without_gradients(case: Case, device: torch.device) -> None:
    f = function_of(case, next(case.small_samples), device)
    torch._dynamo.reset()
    with torch.no_grad():
        assert_close(torch.compile(f.ours, fullgraph=True, backend="aot_eager")(*f.tensors), f.plain(*f.tensors))


@every_case
@pytest.mark.parametrize("transform", [vmap, grad, vmap_grad], ids=lambda t: t.__name__)
def test_compile_transforms(case: Case, device: torch.device, transform: Callable[..., Any]) -> None:
    f = function_of(case, next(case.small_samples), device)
    torch._dynamo.reset()
    x, batch = list(f.tensors), batch_of(f.tensors)
    compiled = torch.compile(lambda x, batch: transform(f.ours, x, batch), fullgraph=True, backend="aot_eager")
    assert_close(compiled(x, batch), transform(f.plain, x, batch))


def test_inductor_with_dynamic_shapes(device: torch.device) -> None:
    """All ops in one function through the default backend, then again with other shapes, which are then dynamic."""

    def network(x: Tensor, g: Tensor, w: Tensor, b: Tensor, gates: Tensor, gate_bias: Tensor) -> Tensor:
        y = fastops.layer_norm(x, (x.shape[-1],), g, g)
        y = fastops.rms_norm(y, (x.shape[-1],), g, 1e-6, weight_offset=1.0)
        y, r = fastops.add_layer_norm(y, x, (x.shape[-1],), g, g)
        y, r = fastops.add_rms_norm(y, r, (x.shape[-1],), g)
        y = y + fastops.log_softmax(r, 0) + fastops.softmax(r, -1, scale=2.0)
        h = fastops.linear(y, w, b, "gelu") + fastops.linear(y, w, b, "relu")
        h = fastops.axpby(fastops.square(h), fastops.relu(h), 3.0, -1.0)
        new_h, new_cell = fastops.lltm(y, gates, gate_bias, h, fastops.sigmoid(h))
        return new_h.sin().sum() + new_cell.sum()

    def plain(x: Tensor, g: Tensor, w: Tensor, b: Tensor, gates: Tensor, gate_bias: Tensor) -> Tensor:
        op = {name: case.plain for name, case in by_name().items()}
        y = op["layer_norm"](x, (x.shape[-1],), g, g)
        y = op["rms_norm"](y, (x.shape[-1],), g, 1e-6, weight_offset=1.0)
        y, r = op["add_layer_norm"](y, x, (x.shape[-1],), g, g)
        y, r = op["add_rms_norm"](y, r, (x.shape[-1],), g)
        y = y + op["log_softmax"](r, 0) + op["softmax"](r, -1, scale=2.0)
        h = op["linear"](y, w, b, "gelu") + op["linear"](y, w, b, "relu")
        h = 3 * h * h - op["relu"](h)
        new_h, new_cell = op["lltm"](y, gates, gate_bias, h, torch.sigmoid(h))
        return new_h.sin().sum() + new_cell.sum()

    def inputs(rows: int, n: int, m: int) -> tuple[Tensor, ...]:
        make = Make(device, torch.float64)
        shapes = (rows, n), (n,), (m, n), (m,), (3 * m, m + n), (3 * m,)
        return tuple(make(*shape) for shape in shapes)

    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True)
    for rows, n, m in ((5, 8, 3), (7, 8, 3), (9, 12, 5)):
        x = inputs(rows, n, m)
        assert_close(_eager_gradients(compiled, x), _eager_gradients(plain, x), atol=1e-8)
