"""What an option must not be, by its name, and the error that says so."""

from __future__ import annotations

from typing import Any

import torch

OF_ANOTHER_TYPE: dict[str, type[Exception]] = {"activation": ValueError}  # the others: TypeError
REFUSED: dict[str, tuple[type[Exception], tuple[Any, ...]]] = {
    "activation": (ValueError, ("tan",)),
    "approximate": (ValueError, ("erf",)),
    "dim": (IndexError, (9, -9)),
    "dtype": (RuntimeError, (torch.int32,)),
    "label_smoothing": (RuntimeError, (-0.25, 1.25)),
    "limit": (ValueError, (-0.25,)),
    # The last two have as many elements as the (2, 4) of the norms' first call.
    "normalized_shape": (RuntimeError, ((3,), (7, 2, 4), (4, 2), (8,))),
    "reduction": (ValueError, ("median",)),
    "rotary_dim": (RuntimeError, (3, 64)),
    "save": (ValueError, ("lse",)),
    "softcap": (RuntimeError, (0.0, -3.0, torch.inf, torch.nan)),
}
UNDERFLOWING: dict[str, tuple[float, ...]] = {"softcap": (1e-60,)}  # 0 in float32, which all but float64 is computed in
