"""Whether tensors agree, and how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.testing import assert_close


def apart(found: Sequence[Tensor], expected: Sequence[Tensor], what: str = "", atol: float | None = None) -> float:
    """The largest difference, which must be within the dtypes' usual tolerances, or ``atol``.

    Raises:
        AssertionError: it is not, or shapes or dtypes differ; the message begins with ``what``.
    """
    try:
        assert_close(list(found), list(expected), rtol=None if atol is None else 0, atol=atol, equal_nan=True)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}" if what else str(error)) from None
    pairs = zip(found, expected, strict=True)
    return max([0.0, *(_largest_difference(x, y) for x, y in pairs)])


def told(worst: float) -> str:
    return f"worst error {worst:.1e}" if worst else "no difference"


def largest(x: Tensor) -> float:
    return x.double().abs().nan_to_num(posinf=0).max().item() if x.numel() else 0.0


def _largest_difference(x: Tensor, y: Tensor) -> float:
    same_infinity = x == y
    return largest((x.double() - y.double()).masked_fill(same_infinity, 0).nan_to_num(nan=0))
