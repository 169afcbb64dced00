"""The gated linear units as functions of a gate and of what it gates, ours and by torch's own ops; their errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastops
from fastops.cases import DTYPES, by_name
from fastops.cases.inputs import HALVES
from fastops.selftest.accuracy import Evaluation, evaluate, incoming_gradients, ulps, wide_copies
from fastops.selftest.bits import same_bits


@dataclass(frozen=True)
class Unit:
    name: str
    op: str
    act: Callable[[Tensor], Tensor]
    up_first: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    raw: tuple[Any, ...] = ()  # the same, as the raw ops have them

    @property
    def function(self) -> Callable[..., Any]:
        return getattr(fastops, self.op)  # type: ignore[no-any-return]

    def __call__(self, gate: Tensor, up: Tensor, **options: Any) -> Tensor:
        """Ours, of two tensors."""
        if self.up_first:
            return self.function(up, gate=gate, **self.options, **options)  # type: ignore[no-any-return]
        return self.function(gate, up, **self.options, **options)  # type: ignore[no-any-return]

    def of_both(self, both: Tensor, **options: Any) -> Tensor:
        """Ours, of one tensor that has both."""
        return self.function(both, **self.options, **options)  # type: ignore[no-any-return]

    def pack(self, gate: Tensor, up: Tensor, dim: int = -1, interleaved: bool = False) -> Tensor:
        parts = (up, gate) if self.up_first else (gate, up)
        if not interleaved:
            return torch.cat(parts, dim)
        dim = dim % gate.dim()
        return torch.stack(parts, dim + 1).flatten(dim, dim + 1)

    def unpack(self, both: Tensor, dim: int = -1, interleaved: bool = False) -> tuple[Tensor, Tensor]:
        if interleaved:
            first, second = both.movedim(dim, -1)[..., ::2], both.movedim(dim, -1)[..., 1::2]
            first, second = first.movedim(-1, dim), second.movedim(-1, dim)
        else:
            first, second = both.chunk(2, dim)
        return (second, first) if self.up_first else (first, second)

    def plain(
        self,
        gate: Tensor,
        up: Tensor,
        *,
        limit: float | None = None,
        offset: float = 0.0,
        row_scale: Tensor | None = None,
    ) -> Tensor:
        """By torch's own ops, but for its clamp, of whose derivative at the limit itself its versions disagree."""
        if limit is not None:
            gate, up = torch.where(gate > limit, limit, gate), torch.where(up.abs() > limit, limit * up.sign(), up)
        y = self.act(gate) * (up + offset)
        return y if row_scale is None else y * row_scale.unsqueeze(-1)


def _gelu(gate: Tensor) -> Tensor:
    return 0.5 * gate * torch.erfc(gate * -(0.5**0.5))  # torch's own has no digits of a small result


def _gelu_tanh(gate: Tensor) -> Tensor:
    return _sigmoid_times(gate, (8 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))


def _sigmoid_times(gate: Tensor, x: Tensor) -> Tensor:
    return gate / (1 + torch.exp(-x))  # the gradient of torch's own sigmoid has no digits where it is next to 1


UNITS = (
    Unit("swiglu", "swiglu", F.silu, raw=(1.0,)),
    Unit("swiglu-alpha", "swiglu", lambda g: _sigmoid_times(g, 1.702 * g), options={"alpha": 1.702}, raw=(1.702,)),
    Unit("geglu", "geglu", _gelu, raw=("none",)),
    Unit("geglu-tanh", "geglu", _gelu_tanh, options={"approximate": "tanh"}, raw=("tanh",)),
    Unit("reglu", "reglu", F.relu),
    Unit("glu", "glu", torch.sigmoid, up_first=True),
)
every_unit = pytest.mark.parametrize("unit", UNITS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "limit": {"limit": 0.75},
    "offset": {"offset": 1.0},
    "both": {"limit": 1.5, "offset": -0.5},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def evaluated(
    ours: Callable[..., Any], plain: Callable[..., Any], args: tuple[Tensor, ...]
) -> tuple[Evaluation, Evaluation]:
    """Ours, which must leave what it is given as it was, and the truth."""
    before = [x.clone() for x in args]
    found = evaluate(ours, args)
    assert all(same_bits(x, y) for x, y in zip(args, before, strict=True))
    return found, evaluate(plain, wide_copies(args), wide_copies(incoming_gradients(found.outputs)))


def assert_true(unit: Unit, found: Evaluation, truth: Evaluation) -> None:
    """Within the bounds that the operator's row has for its defaults, with room for the options' own roundings."""
    (y,), (expected,) = found.outputs, truth.outputs
    bound, half = by_name()[unit.op].bounds[y.dtype], y.dtype in HALVES

    def room(ulps: float) -> float:
        return ulps if half else (4 if y.dtype == torch.float64 else 2) * ulps + 1  # float64's is in the truth too

    assert ulps(y, expected) <= room(bound.forward)
    for k, (gradient, wanted) in enumerate(zip(found.gradients, truth.gradients, strict=True)):
        of_scale = wanted.dim() < expected.dim()  # what rows add up to is no more exact than what they are made of
        coarsest = max((y.dtype, gradient.dtype), key=lambda dtype: torch.finfo(dtype).eps)
        most = room(8.0) if of_scale and not half and coarsest == y.dtype else room(bound.gradient)
        assert ulps(gradient, wanted, dtype=coarsest) <= most, k
