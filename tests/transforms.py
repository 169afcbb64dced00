"""Derivatives and batches by torch.func: each takes a function, its inputs and a batch of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from table import scalar_of
from torch import Tensor, func


def grad(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.grad(scalar_of(f), tuple(range(len(x))))(*x)


def jvp(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.jvp(f, tuple(x), tuple(b[0] for b in batch))


def vjp(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    out, pull = func.vjp(f, *x)
    return pull(torch.utils._pytree.tree_map(torch.cos, out))


def vmap(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.vmap(f)(*batch)


def vmap_of_first(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.vmap(f, (0, *[None] * (len(x) - 1)))(batch[0], *x[1:])


def vmap_of_last(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.vmap(f, (*[None] * (len(x) - 1), 0))(*x[:-1], batch[-1])


def vmap_of_vmap(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.vmap(func.vmap(f))(*[torch.stack([b, -b]) for b in batch])


def vmap_last_dim(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.vmap(f, -1)(*[b.movedim(0, -1) for b in batch])


def vmap_grad(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.vmap(func.grad(scalar_of(f), tuple(range(len(x)))))(*batch)


def vmap_grad_of_first(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    in_dims = (0, *[None] * (len(x) - 1))
    return func.vmap(func.grad(scalar_of(f), tuple(range(len(x)))), in_dims)(batch[0], *x[1:])


def hessian(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.hessian(scalar_of(f), tuple(range(len(x))))(*x)


def jacrev(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.jacrev(f, tuple(range(len(x))))(*x)


def jacrev_of_jacrev(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.jacrev(func.jacrev(scalar_of(f)))(*x)


def jacfwd_of_jacfwd(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.jacfwd(func.jacfwd(scalar_of(f)))(*x)


def jacrev_of_jacfwd(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    return func.jacrev(func.jacfwd(scalar_of(f)))(*x)


def jacobian_with_a_graph(f: Callable[..., Any], x: list[Tensor], batch: list[Tensor]) -> Any:
    """By torch.autograd's own vmap, which lacks rules that torch.func's has."""
    found = torch.autograd.functional.jacobian(scalar_of(f), tuple(x), create_graph=True, vectorize=True)
    return [g.detach() for g in found]


TRANSFORMS = (
    grad,
    jvp,
    vjp,
    vmap,
    vmap_of_first,
    vmap_of_last,
    vmap_of_vmap,
    vmap_last_dim,
    vmap_grad,
    vmap_grad_of_first,
    hessian,
    jacrev,
    jacrev_of_jacrev,
    jacfwd_of_jacfwd,
    jacrev_of_jacfwd,
    jacobian_with_a_graph,
)

every_transform = pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.__name__)
