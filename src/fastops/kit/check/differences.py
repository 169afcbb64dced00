"""Derivatives by differences in float64, beside those that autograd has of the same function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .case import Args, cotangent, leaves, tensors

RELATIVE = 1e-4
_OF_LARGEST = 1e-7  # of an output's derivatives: what is left of those that cancel
_OF_VALUE = 1e-9  # of the output: what rounding leaves of a difference
_EACH = 100  # elements up to which every one is moved by itself
# The first steps are for all; the others for what they do not agree upon, such as near a kink or an edge.
_STEPS = (1e-3, 1e-5, 1e-7)

Function = Callable[..., Any]


class Move(NamedTuple):
    """What is moved, in words; by how much for a step of 1, one tensor for each of the places; the unit of steps."""

    what: str
    by: list[Tensor]
    unit: float = 1.0


def compare(function: Function, args: Args, places: Sequence[int], labels: Sequence[str], primitive: Function) -> str:
    """The derivatives of ``function`` by autograd against those of ``primitive`` by differences.

    Returns:
        By what it was compared.

    Raises:
        AssertionError: they differ, with the place and both values.
    """
    each = sum(args[k].numel() for k in places) <= _EACH
    inputs = [args[k] for k in places]
    moves = list(_of_each(inputs, labels) if each else _of_all(inputs))
    given = leaves(args, places)
    outputs = tensors(function(*given))
    shapes, of_primitive = ([list(y.shape) for y in tensors(f(*args))] for f in (function, primitive))
    if shapes != of_primitive:
        raise AssertionError(f"gradient= must return outputs of shapes {shapes}, got {of_primitive}")
    for number, y in enumerate(outputs):
        if not (y.is_floating_point() and y.numel() and moves):
            continue
        products = list(_cotangents(y)) if y.numel() <= _EACH and each else [cotangent(y)]
        # Rows: what is made of the output; columns: what is moved.
        found = torch.stack([_moved(y, given, places, product, moves) for product in products])
        expected = torch.stack([_by_differences(primitive, args, places, move, number, products) for move in moves], 1)
        allowed = RELATIVE * expected.abs() + _OF_LARGEST * expected.abs().max().nan_to_num(posinf=0)
        allowed = allowed + _OF_VALUE * y.detach().abs().nan_to_num(posinf=0).max()
        wrong = ~((found - expected).abs() <= allowed) & ~(found == expected) & ~(found.isnan() & expected.isnan())
        if wrong.any():
            row, column = wrong.nonzero()[0].tolist()
            where = "a sum of all elements" if len(products) == 1 != y.numel() else f"element {_index(y, row)}"
            raise AssertionError(
                f"the derivative of {where} of output {number} by {moves[column].what} must be "
                f"{expected[row, column].item():.9g} by finite differences, got {found[row, column].item():.9g}"
            )
    return "every element" if each else "random directions"


def _of_each(inputs: Sequence[Tensor], labels: Sequence[str]) -> Iterator[Move]:
    for k, x in enumerate(inputs):
        for j in range(x.numel()):
            by = [torch.zeros_like(z, memory_format=torch.contiguous_format) for z in inputs]
            by[k].view(-1)[j] = 1
            yield Move(f"element {_index(x, j)} of {labels[k]}", by, max(1.0, x.reshape(-1)[j].abs().item()))


def _of_all(inputs: Sequence[Tensor]) -> Iterator[Move]:
    for factor in (1.0, 2.0, 3.0):
        yield Move("a random direction", [(factor * cotangent(x)).sin() for x in inputs])


def _cotangents(y: Tensor) -> Iterator[Tensor]:
    for k in range(y.numel()):
        product = torch.zeros(y.numel(), dtype=y.dtype, device=y.device)
        product[k] = 1
        yield product.view(y.shape)


def _moved(y: Tensor, given: Args, places: Sequence[int], product: Tensor, moves: Sequence[Move]) -> Tensor:
    """What autograd has for the moves."""
    if not y.requires_grad:
        return torch.zeros(len(moves), dtype=y.dtype, device=y.device)
    found = torch.autograd.grad(y, [given[k] for k in places], product, retain_graph=True, allow_unused=True)
    sums = [
        sum(((g * by).sum() for g, by in zip(found, move.by, strict=True) if g is not None), start=y.new_zeros(()))
        for move in moves
    ]
    return torch.stack(sums).detach()


def _by_differences(
    primitive: Function, args: Args, places: Sequence[int], move: Move, number: int, products: list[Tensor]
) -> Tensor:
    """For each of ``products``: central differences of two steps, extrapolated, of those steps that agree best."""

    def at(step: float) -> Tensor:
        moved = list(args)
        for k, change in zip(places, move.by, strict=True):
            moved[k] = args[k].detach() + step * change
        y = tensors(primitive(*moved))[number].detach()
        return y.reshape(-1) if len(products) == y.numel() else (y * products[0]).sum().view(1)

    def central(step: float) -> Tensor:
        return (at(step) - at(-step)) / (2 * step)

    best = torch.full((len(products),), float("nan"), dtype=torch.float64, device=products[0].device)
    apart = torch.full_like(best, float("inf"))
    for step in (move.unit * step for step in _STEPS):
        coarse, middle, fine = central(step), central(step / 2), central(step / 4)
        first, found = (4 * middle - coarse) / 3, (4 * fine - middle) / 3
        differ = ((found - first).abs() / found.abs().clamp(min=1e-300)).nan_to_num(nan=float("inf"))
        better = differ < apart
        best, apart = torch.where(better, found, best), torch.where(better, differ, apart)
        if bool((apart <= RELATIVE / 100).all()):
            break
    return best


def _index(x: Tensor, k: int) -> str:
    index = torch.unravel_index(torch.tensor(k), x.shape) if x.dim() else ()
    return f"[{', '.join(str(int(i)) for i in index)}]"
