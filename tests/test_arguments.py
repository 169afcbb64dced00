"""Arguments of another type: TypeError that names op and argument, for every parameter of every op, on every way."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fastops

X = torch.randn(3, 8)
# Arguments that are right. Those that are left out are tried too.
RIGHT: dict[str, dict[str, Any]] = {
    "add_layer_norm": {"input": X, "residual": X, "normalized_shape": (8,)},
    "add_rms_norm": {"input": X, "residual": X, "normalized_shape": (8,)},
    "axpby": {"x": X, "y": X},
    "cross_entropy": {"input": X, "target": torch.tensor([0, 7, 2])},
    "geglu": {"gate": X},
    "glu": {"input": X},
    "layer_norm": {"input": X, "normalized_shape": (8,)},
    "linear": {"input": X, "weight": torch.randn(4, 8)},
    "linear_cross_entropy": {"input": X, "linear_weight": torch.randn(4, 8), "target": torch.tensor([0, 3, 2])},
    "linear_log_prob": {"input": X, "linear_weight": torch.randn(4, 8), "target": torch.tensor([0, 3, 2])},
    "lltm": {
        "input": torch.randn(2, 3),
        "weights": torch.randn(12, 7),
        "bias": torch.randn(12),
        "old_h": torch.randn(2, 4),
        "old_cell": torch.randn(2, 4),
    },
    "log_prob": {"input": X, "target": torch.tensor([0, 7, 2])},
    "log_softmax": {"input": X, "dim": -1},
    "qk_norm_rope": {"q": X, "k": X, "q_weight": X[0], "k_weight": X[0], "cos": X, "sin": X},
    "reglu": {"gate": X},
    "relu": {"input": X},
    "rms_norm": {"input": X, "normalized_shape": (8,)},
    "rope": {"q": X, "k": X, "cos": X, "sin": X},
    "sigmoid": {"input": X},
    "softmax": {"input": X, "dim": -1},
    "square": {"input": X},
    "swiglu": {"gate": X},
}
NUMBERS = ("alpha", "beta", "eps", "label_smoothing", "limit", "offset", "scale", "softcap", "weight_offset", "z_loss")
# Of which None is right.
OPTIONAL = ("weight", "bias", "linear_bias", "eps", "activation", "dtype", "softcap", "group", "classes")
OPTIONAL += ("gate", "k", "k_weight", "limit", "positions", "q_weight", "rotary_dim", "row_scale", "up")


def parameters() -> list[tuple[str, str]]:
    return [(op, name) for op in sorted(RIGHT) for name in inspect.signature(getattr(fastops, op)).parameters]


def test_every_op_is_tried() -> None:
    assert sorted(RIGHT) == sorted(fastops.ops.__all__)


def plainly(f: Callable[[], Any]) -> Any:
    return f()


def without_a_gradient(f: Callable[[], Any]) -> Any:
    with torch.no_grad():
        return f()


@pytest.mark.parametrize("way", [plainly, without_a_gradient])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize(("op", "name"), parameters())
def test_a_wrong_type_is_named(
    op: str, name: str, dtype: torch.dtype, way: Callable[[Callable[[], Any]], Any], device: torch.device
) -> None:
    if dtype != torch.float32 and op in ("linear", "linear_cross_entropy", "linear_log_prob", "lltm"):
        pytest.skip("torch multiplies no float8 matrices here")
    right = {
        key: value.to(device, dtype).detach().requires_grad_(way is plainly)
        if isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
        for key, value in RIGHT[op].items()
    }
    wrong: list[Any] = [[1.0], np.ones(8), "text", object(), 1j]
    if name in NUMBERS:  # of a tensor the gradient would be lost
        wrong += [torch.tensor(1.0, requires_grad=True), torch.tensor(0.0), torch.ones(8)]
    if name not in OPTIONAL:
        wrong.append(None)
    for value in wrong:
        if name == "normalized_shape" and not isinstance(value, (type(None), object)):
            continue
        if value is None and (op, name) == ("linear_cross_entropy", "ignore_index"):
            continue  # as torch's
        if name in ("activation", "approximate", "reduction", "save") and isinstance(value, str):
            continue  # a ValueError, of tests/test_messages.py and tests/ops/test_cross_entropy_arguments.py
        with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
            way(lambda value=value: getattr(fastops, op)(**{**right, name: value}))  # type: ignore[misc]
        text = str(caught.value)
        assert text.startswith(f"[{op}] "), f"{name}={value!r}: {text}"
        assert name in text, f"{name}={value!r}: {text}"
        if name != "normalized_shape" and name != "activation":
            assert isinstance(caught.value, TypeError), f"{name}={value!r}: {text}"
            assert text.endswith(f"got {type(value).__name__}"), text
        if name in NUMBERS and isinstance(value, complex):
            assert "a real number" in text, text


@pytest.mark.parametrize("op", ["add_layer_norm", "add_rms_norm"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_no_residual_of_a_meta_tensor(op: str, requires_grad: bool) -> None:
    x = X.detach().to("meta").requires_grad_(requires_grad)
    with pytest.raises(TypeError, match=rf"^\[{op}\] residual must be a Tensor, got NoneType$"):
        getattr(fastops, op)(x, None, (8,))


def test_numbers_in_forward_mode() -> None:
    for f in (lambda x: fastops.rms_norm(x, (8,), eps=1j), lambda x: fastops.axpby(x, x, 1j)):
        with pytest.raises(TypeError, match="must be a real number, got complex"):
            torch.func.jvp(f, (X,), (X,))
