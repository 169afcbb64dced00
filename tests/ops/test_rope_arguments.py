"""rope and qk_norm_rope: what they say of arguments that do not fit, in the same words without numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rotary import OPS, Op, every_op
from torch import Tensor

import fastops
from fastops.selftest.bits import same_bits

ROPE, NORM = OPS
Way = Callable[[Tensor], Tensor]


def r(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def i(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


# Of q, k, cos, sin and options; ``sin`` is cos where it is left out.
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"q": r(16)}, "q must have a sequence and a head dimension, got shape [16]"),
    ({"q": r(2, 3, 5, 16).long()}, "q must be floating point, got torch.int64"),
    ({"k": r(2, 1, 5, 8)}, "k must have q's shape [2, 3, 5, 16] but for the number of heads, got [2, 1, 5, 8]"),
    ({"k": r(2, 1, 4, 16)}, "k must have q's shape [2, 3, 5, 16] but for the number of heads, got [2, 1, 4, 16]"),
    ({"k": r(1, 3, 5, 16)}, "k must have q's shape [2, 3, 5, 16] but for the number of heads, got [1, 3, 5, 16]"),
    ({"k": r(3, 5, 16)}, "k must have q's shape [2, 3, 5, 16] but for the number of heads, got [3, 5, 16]"),
    (
        {"k": r(2, 4, 3, 16), "q": r(2, 5, 3, 16), "cos": r(2, 16), "seq_dim": 0},
        "k must have q's shape [2, 5, 3, 16] but for the number of heads, got [2, 4, 3, 16]",
    ),
    ({"q": r(5, 16), "k": r(4, 16)}, "k must have q's shape [5, 16] but for the number of heads, got [4, 16]"),
    (
        {"k": r(2, 1, 5, 16, dtype=torch.float64)},
        "k must have q's dtype torch.float32, got torch.float64",
    ),
    ({"cos": i(5, 16)}, "cos must be floating point, got torch.int64"),
    ({"sin": r(5, 8)}, "sin must have cos's shape [5, 16], got [5, 8]"),
    ({"sin": r(5, 16).double()}, "sin must have cos's dtype torch.float32, got torch.float64"),
    ({"cos": r(16)}, "cos must have a row for each of [2, 5], the batch and the sequence, or of [5], got shape [16]"),
    (
        {"cos": r(4, 16)},
        "cos must have a row for each of [2, 5], the batch and the sequence, or of [5], got shape [4, 16]",
    ),
    (
        {"cos": r(3, 5, 16)},
        "cos must have a row for each of [2, 5], the batch and the sequence, or of [5], got shape [3, 5, 16]",
    ),
    (
        {"cos": r(1, 2, 5, 16)},
        "cos must have a row for each of [2, 5], the batch and the sequence, or of [5], got shape [1, 2, 5, 16]",
    ),
    (
        {"cos": r(2, 1, 5, 16), "q": r(2, 3, 4, 5, 16), "k": None, "sin": r(2, 1, 5, 16), "seq_dim": 0},
        "cos must have a row for each of [3, 4, 2], the batch and the sequence, or of [2], got shape [2, 1, 5, 16]",
    ),
    (
        {"cos": r(2, 5, 16), "positions": i(5)},
        "cos must have 2 dimensions, of positions and numbers, got shape [2, 5, 16]",
    ),
    ({"cos": r(16), "positions": i(5)}, "cos must have 2 dimensions, of positions and numbers, got shape [16]"),
    ({"positions": r(5)}, "positions must be torch.int64 or torch.int32, got torch.float32"),
    ({"positions": i(5, dtype=torch.int16)}, "positions must be torch.int64 or torch.int32, got torch.int16"),
    ({"positions": i(4)}, "positions must have shape [2, 5] or [5], got [4]"),
    ({"positions": i(3, 5)}, "positions must have shape [2, 5] or [5], got [3, 5]"),
    ({"positions": i()}, "positions must have shape [2, 5] or [5], got []"),
    ({"rotary_dim": 7}, "rotary_dim must be even and 2 to 16, the numbers of a head, got 7"),
    ({"rotary_dim": 0}, "rotary_dim must be even and 2 to 16, the numbers of a head, got 0"),
    ({"rotary_dim": -2}, "rotary_dim must be even and 2 to 16, the numbers of a head, got -2"),
    ({"rotary_dim": 18}, "rotary_dim must be even and 2 to 16, the numbers of a head, got 18"),
    ({"rotary_dim": 8}, "cos must have rows of rotary_dim 8 or half as many, got 16"),
    ({"cos": r(5, 18)}, "cos must have rows of at most 16, the numbers of a head, got 18"),
    ({"cos": r(5, 0)}, "cos must have rows of at most 16, the numbers of a head, got 0"),
    ({"cos": r(5, 9)}, "cos must have rows of an even size, or of at most 8, got 9"),
    (
        {"cos": r(5, 8)},
        "cos has rows of 8 for heads of 16: say rotary_dim=8 if that is all that is rotated, or rotary_dim=16 if each "
        "is for two numbers",
    ),
    (
        {"cos": r(5, 2)},
        "cos has rows of 2 for heads of 16: say rotary_dim=2 if that is all that is rotated, or rotary_dim=4 if each "
        "is for two numbers",
    ),
    ({"seq_dim": -1}, "seq_dim must be -4 to -2 for q's 4 dimensions, got -1"),
    ({"seq_dim": 3}, "seq_dim must be -4 to -2 for q's 4 dimensions, got 3"),
    ({"seq_dim": -5}, "seq_dim must be -4 to -2 for q's 4 dimensions, got -5"),
    ({"seq_dim": 1, "q": r(5, 16), "k": None}, "seq_dim must be -2 to -2 for q's 2 dimensions, got 1"),
]
NORM_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"k": None, "k_weight": r(16)}, "k_weight must be None without k, got a tensor"),
    ({"q_weight": r(5)}, "q_weight must have shape [16], got [5]"),
    ({"k_weight": r(1, 16)}, "k_weight must have shape [16], got [1, 16]"),
    (
        {"q_weight": r(16, dtype=torch.float64)},
        "q_weight must have input's dtype torch.float32, got torch.float64",
    ),
    (
        {"q": r(2, 3, 5, 16, dtype=torch.bfloat16), "k": None, "q_weight": r(16, dtype=torch.float16)},
        "q_weight must have input's dtype torch.bfloat16 or torch.float32, got torch.float16",
    ),
]
WAYS: dict[str, Way] = {
    "kernels": lambda x: x,
    "with a gradient": lambda x: x.requires_grad_(x.is_floating_point()),
    "meta": lambda x: x.to("meta"),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def called(op: Op, given: dict[str, Any], way: Way, device: torch.device) -> Any:
    arguments = {"q": r(2, 3, 5, 16), "k": r(2, 1, 5, 16), "cos": r(5, 16), **given}
    arguments.setdefault("sin", arguments["cos"].clone())
    if op.norm:
        arguments = {"q_weight": None, "k_weight": None, **arguments}
    return getattr(fastops, op.name)(
        **{name: way(x.detach().to(device)) if isinstance(x, Tensor) else x for name, x in arguments.items()}
    )


@every_way
@pytest.mark.parametrize(
    ("op", "given", "message"),
    [
        *(pytest.param(op, *mistake, id=f"{op.name}-{mistake[1]}") for op in OPS for mistake in MISTAKES),
        *(pytest.param(NORM, *mistake, id=mistake[1]) for mistake in NORM_MISTAKES),
    ],
)
def test_message(op: Op, given: dict[str, Any], message: str, way: Way, device: torch.device) -> None:
    with pytest.raises((IndexError, RuntimeError, ValueError)) as error:
        called(op, given, way, device)
    assert str(error.value) == f"[{op.name}] {message}"


@every_op
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("position", [5, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("learns", [False, True])
def test_positions_beyond_the_tables(op: Op, dtype: torch.dtype, position: int, learns: bool) -> None:
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 4, position, -7, 4]], dtype=dtype)
    with pytest.raises((IndexError, RuntimeError)) as error:
        called(
            op,
            {"positions": positions},
            lambda x: x.requires_grad_(learns and x.is_floating_point()),
            torch.device("cpu"),
        )
    assert str(error.value) == f"[{op.name}] positions must be 0 to 4, got {position}"


@every_op
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_positions_beyond_the_tables_on_cuda(op: Op, dtype: torch.dtype, cuda: torch.device) -> None:
    """NaN where they are, behind what is rotated and in the gradient too nothing of another token."""
    positions = torch.tensor([[0, 1, 2, 3, 4], [0, 5, -1, 2**31 - 1, 4]], dtype=dtype, device=cuda)
    q = torch.randn(2, 3, 5, 16, device=cuda, requires_grad=True)
    cos = torch.randn(5, 16, device=cuda)
    given = (q, None, None, None, cos, cos) if op.norm else (q, None, cos, cos)
    y, _ = getattr(fastops, op.name)(*given, positions=positions)
    (gradient,) = torch.autograd.grad(y.sum(), q)
    wrong = (positions < 0) | (positions > 4)
    inside = positions.where(~wrong, 0)
    expected, _ = getattr(fastops, op.name)(*given, positions=inside)
    (expected_gradient,) = torch.autograd.grad(expected.sum(), q)
    for found, right in ((y, expected), (gradient, expected_gradient)):
        found, right = found.transpose(1, 2), right.transpose(1, 2)
        assert found[wrong].isnan().all()
        assert same_bits(found[~wrong], right[~wrong])


@every_op
def test_devices_do_not_mix(op: Op) -> None:
    names = ["q", "k", "cos", "sin", "positions", *(["q_weight", "k_weight"] if op.norm else [])]
    for name in names:
        given: dict[str, Any] = {"positions": i(5), "sin": r(5, 16)}
        if op.norm:
            given |= {"q_weight": r(16), "k_weight": r(16)}
        right = {"q": r(2, 3, 5, 16), "k": r(2, 1, 5, 16), "cos": r(5, 16), **given}
        with pytest.raises(RuntimeError, match=rf"^\[{op.name}\] .*device.*cpu.*meta|.*meta.*cpu"):
            getattr(fastops, op.name)(**{**right, name: right[name].to("meta")})


@every_op
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64])
def test_dtypes_without_a_kernel(op: Op, dtype: torch.dtype, device: torch.device) -> None:
    with pytest.raises(RuntimeError) as error:
        called(op, {"q": r(2, 3, 5, 16).to(dtype), "k": None}, lambda x: x, device)
    if not dtype.is_floating_point:
        assert str(error.value) == f"[{op.name}] q must be floating point, got {dtype}"


def test_grad_k_is_there_with_k(device: torch.device) -> None:
    q, cos = r(2, 3, 5, 16).to(device), r(5, 16).to(device)
    rest = (None, None, cos, cos, None, None, False, -2, None, 0.0, False)
    with pytest.raises(RuntimeError, match="grad_k must be there with k alone"):
        torch.ops.fastops.qk_norm_rope_backward(q, None, q, q, *rest)
