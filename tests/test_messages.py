"""What a user reads after a mistake: the op, what was expected, what came."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fastops

raw = torch.ops.fastops


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: fastops.axpby(r(3), r(4)), "[axpby] x and y must have shapes that broadcast, got [3] and [4]"),
    (
        lambda: raw.axpby(r(3), r(3, dtype=torch.float64)),
        "[axpby] y must have x's dtype torch.float32, got torch.float64",
    ),
    (lambda: raw.relu_backward(r(3), r(4)), "[relu_backward] grad must have output's shape [4], got [3]"),
    (
        lambda: raw.relu_mask_backward(r(9), r(2), [1]),
        "[relu_mask_backward] mask must have shape [2] and dtype torch.uint8, got [2] and torch.float32",
    ),
    (
        lambda: raw.relu_mask_backward(r(9), r(1).byte(), [1]),
        "[relu_mask_backward] mask must have shape [2] and dtype torch.uint8, got [1] and torch.uint8",
    ),
    *(
        (
            functools.partial(raw.relu_mask_backward, r(2, 4), r(1).byte(), stride),
            f"[relu_mask_backward] stride must be that of a dense tensor of grad's shape [2, 4], got {stride}",
        )
        for stride in ([0, 1], [8, 1], [1])
    ),
    (
        lambda: raw.sigmoid_backward(r(3, dtype=torch.float64), r(3)),
        "[sigmoid_backward] grad must have output's dtype torch.float32, got torch.float64",
    ),
    (lambda: raw.square_backward(r(2), r(2, 1)), "[square_backward] grad must have input's shape [2, 1], got [2]"),
    (
        lambda: fastops.layer_norm(r(3, 4), ()),
        "[layer_norm] normalized_shape must have at least 1 dimension, got []",
    ),
    (
        lambda: fastops.layer_norm(r(3, 4), (5,)),
        "[layer_norm] input must end in normalized_shape [5], got shape [3, 4]",
    ),
    (
        lambda: fastops.layer_norm(r(4), (3, 4)),
        "[layer_norm] input must end in normalized_shape [3, 4], got shape [4]",
    ),
    (lambda: fastops.layer_norm(r(3, 4), (4,), r(5)), "[layer_norm] weight must have shape [4], got [5]"),
    (lambda: fastops.layer_norm(r(3, 4), (4,), None, r(4, 1)), "[layer_norm] bias must have shape [4], got [4, 1]"),
    (
        lambda: fastops.layer_norm(r(3, 4), (4,), torch.ones(4, dtype=torch.int64)),
        "[layer_norm] weight must be floating point, got torch.int64",
    ),
    (
        lambda: raw.layer_norm_backward(r(3, 4), r(3, 4), r(3, 1), None, None, True, False, False),
        "[layer_norm_backward] statistics must be layer_norm's own, contiguous, [3, 3] torch.float32, "
        "got [3, 1] torch.float32",
    ),
    (
        lambda: raw.layer_norm_backward(r(3, 4), r(3, 4), r(3, 4, 3), None, None, True, False, False),
        "[layer_norm_backward] the statistics must have 1 to 2 dimensions for input's 2, got 3",
    ),
    (
        lambda: raw.layer_norm_backward(r(3, 4), r(3, 4), r(), None, None, True, False, False),
        "[layer_norm_backward] the statistics must have 1 to 2 dimensions for input's 2, got 0",
    ),
    (
        lambda: raw.rms_norm_backward(r(3, 4), r(3, 4), r(3, 4), None),
        "[rms_norm_backward] the statistics must have 0 to 1 dimensions for input's 2, got 2",
    ),
    (lambda: raw.layer_norm(r(3, 4), None, None, 3), "[layer_norm] dims must be 1 to input's 2, got 3"),
    (
        lambda: raw.layer_norm_backward(r(3, 4), r(3, 4), r(4, 3), None, None, True, False, False),
        "[layer_norm_backward] statistics must be layer_norm's own, contiguous, [3, 3] torch.float32, "
        "got [4, 3] torch.float32",
    ),
    (
        lambda: fastops.rms_norm(r(3, 4), (3,)),
        "[rms_norm] input must end in normalized_shape [3], got shape [3, 4]",
    ),
    (
        lambda: fastops.rms_norm(r(3, 4), (4,), torch.ones(4, dtype=torch.bool), weight_offset=1.0),
        "[rms_norm] weight must be floating point, got torch.bool",
    ),
    (
        lambda: fastops.rms_norm(torch.ones(3, 4, dtype=torch.int64), (4,)),
        "[rms_norm] input must be floating point or complex, got torch.int64",
    ),
    (
        lambda: fastops.add_rms_norm(r(3, 4), r(4), (4,)),
        "[add_rms_norm] residual must have input's shape [3, 4], got [4]",
    ),
    (
        lambda: fastops.add_rms_norm(r(3, 4), torch.ones(3, 4, dtype=torch.int32), (4,)),
        "[add_rms_norm] residual must be floating point, got torch.int32",
    ),
    (
        lambda: fastops.add_layer_norm(r(3, 4), r(3, 5), (4,)),
        "[add_layer_norm] residual must have input's shape [3, 4], got [3, 5]",
    ),
    (
        lambda: fastops.add_layer_norm(r(3, 4), r(3, 4), (4,), None, r(5)),
        "[add_layer_norm] bias must have shape [4], got [5]",
    ),
    (
        lambda: raw.add_rms_norm_backward(r(3, 4), r(3), r(3, 4), r(3), None, True, False),
        "[add_rms_norm_backward] grad_sum must have sum's shape [3, 4], got [3]",
    ),
    (
        lambda: raw.add_rms_norm_backward(r(3, 4), None, r(3, 4), r(3), r(5), True, False),
        "[add_rms_norm_backward] weight must have shape [4], got [5]",
    ),
    (
        lambda: raw.add_layer_norm_backward(
            r(3, 4), None, r(3, 4), r(3, 3, dtype=torch.float64), None, None, True, False, False
        ),
        "[add_layer_norm_backward] statistics must be add_layer_norm's own, contiguous, [3, 3] torch.float32, "
        "got [3, 3] torch.float64",
    ),
    (
        lambda: fastops.linear(r(3, 4), r(5, 4), None, "tanh"),
        "[linear] activation must be None or one of relu, sigmoid, gelu, gelu_tanh, silu, got 'tanh'",
    ),
    (
        lambda: fastops.reference.linear(r(3, 4), r(5, 4), None, "tanh"),
        "[linear] activation must be None or one of relu, sigmoid, gelu, gelu_tanh, silu, got 'tanh'",
    ),
    (
        lambda: fastops.linear(r(3, 4), r(5, 4), r(4), "relu"),
        "[linear] bias must have shape [5], got [4]",
    ),
    (
        lambda: fastops.linear(r(3, 4), r(5, 4), r(5, dtype=torch.float64), "relu"),
        "[linear] bias must have input's dtype torch.float32, got torch.float64",
    ),
    (
        lambda: raw.linear_epilogue(r(), None, "none"),
        "[linear] input must have at least 1 dimension, got []",
    ),
    (
        lambda: raw.linear_epilogue(r(3, 4), None, "tanh"),
        "[linear] activation must be one of none, relu, sigmoid, gelu, gelu_tanh, silu, got tanh",
    ),
    (
        lambda: raw.linear_epilogue(r(3, 4).to("meta"), None, "tanh"),
        "[linear] activation must be one of none, relu, sigmoid, gelu, gelu_tanh, silu, got tanh",
    ),
    (
        lambda: raw.linear_epilogue_backward_reference(r(3, 4), r(3, 4), None, "tanh", True),
        "[linear_epilogue_backward] activation must be one of none, relu, sigmoid, gelu, gelu_tanh, silu, got tanh",
    ),
    (
        lambda: raw.linear_epilogue_backward(r(3, 4), r(3, 5), None, "relu", True),
        "[linear_epilogue_backward] grad must have saved's shape [3, 5], got [3, 4]",
    ),
    (
        lambda: fastops.lltm(r(3), r(15, 9), r(15), r(3, 5), r(3, 5)),
        "[lltm] input must have shape [batch, features], got [3]",
    ),
    (
        lambda: fastops.lltm(r(3, 4), r(15, 9), r(15), r(2, 5), r(3, 5)),
        "[lltm] old_h must have shape [3, state], got [2, 5]",
    ),
    (
        lambda: fastops.lltm(r(3, 4), r(15, 8), r(15), r(3, 5), r(3, 5)),
        "[lltm] weights must have shape [15, 9], got [15, 8]",
    ),
    (
        lambda: fastops.lltm(r(3, 4), r(15, 9), r(15), r(3, 5), r(3, 4)),
        "[lltm] old_cell must have shape [3, 5], got [3, 4]",
    ),
    (
        lambda: fastops.lltm(r(3, 4), r(15, 9), r(5), r(3, 5), r(3, 5)),
        "[lltm] bias must have shape [15] or [1, 15], got [5]",
    ),
    (
        lambda: fastops.lltm(r(3, 4), r(15, 9, dtype=torch.float64), r(15), r(3, 5), r(3, 5)),
        "[lltm] weights must have input's dtype torch.float32, got torch.float64",
    ),
    (
        lambda: raw.lltm_cell(r(3, 10), r(10), r(3, 5)),
        "[lltm_cell] gates must have shape [batch, 3·state] for old_cell [batch, state], got [3, 10] for [3, 5]",
    ),
    (
        lambda: raw.lltm_cell(r(3, 15), r(5), r(3, 5)),
        "[lltm_cell] bias must have shape [15], got [5]",
    ),
    (
        lambda: raw.lltm_cell_backward(r(3, 4), r(3, 5), r(3, 15), r(15), r(3, 5), True),
        "[lltm_cell_backward] grad_h must have old_cell's shape [3, 5], got [3, 4]",
    ),
    (lambda: fastops.softmax(r(3, 4), 5), "[softmax] dim must be -2 to 1 for input's 2 dimensions, got 5"),
    (lambda: fastops.log_softmax(r(), -2), "[log_softmax] dim must be -1 to 0 for input's 0 dimensions, got -2"),
    (lambda: raw.softmax(r(3, 4), -3), "[softmax] dim must be -2 to 1 for input's 2 dimensions, got -3"),
    (lambda: fastops.softmax(r(3).long(), 0), "[softmax] input must be floating point, got torch.int64"),
    (
        lambda: fastops.log_softmax(r(3), 0, torch.int32),
        "[log_softmax] dtype must be floating point, got torch.int32",
    ),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_message(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((IndexError, RuntimeError, ValueError)) as error:
        call()
    assert str(error.value) == message


def test_message_with_gradients() -> None:
    """The same text from inside an autograd function."""
    with pytest.raises(RuntimeError) as error:
        fastops.layer_norm(r(3, 4).requires_grad_(), (5,))
    assert str(error.value) == "[layer_norm] input must end in normalized_shape [5], got shape [3, 4]"


def test_message_of_another_device(cuda: torch.device) -> None:
    for k, call in enumerate(
        (
            lambda: fastops.axpby(r(3), r(3).to(cuda)),
            lambda: fastops.layer_norm(r(3, 4).to(cuda), (4,), r(4)),
            lambda: fastops.linear(r(3, 4).to(cuda), r(5, 4).to(cuda), r(5), "gelu"),
            lambda: fastops.add_rms_norm(r(3, 4).to(cuda), r(3, 4), (4,)),
        )
    ):
        name, first = (("y", "x"), ("weight", "input"), ("bias", "input"), ("residual", "input"))[k]
        with pytest.raises(RuntimeError, match=rf"\] {name} must be on {first}'s device c\w+(:0)?, got c"):
            call()


F64, BF16, BOOL = torch.float64, torch.bfloat16, torch.bool
LINEAR: dict[str, tuple[tuple[Any, ...], str]] = {  # input, weight, bias
    "in_features": ((r(3, 6), r(4, 5), None), "input must end in weight's in_features 5, got shape [3, 6]"),
    "in_features, a vector": ((r(6), r(5), None), "input must end in weight's in_features 5, got shape [6]"),
    "0-d input": ((r(), r(4, 5), None), "input must have at least 1 dimension, got []"),
    "0-d weight": ((r(3, 5), r(), None), "weight must have shape [out_features, in_features], got []"),
    "3-d weight": ((r(3, 5), r(2, 4, 5), None), "weight must have shape [out_features, in_features], got [2, 4, 5]"),
    "1-d weight and bias": ((r(3, 5), r(5), r()), "weight must have shape [out_features, in_features], got [5]"),
    "bias": ((r(3, 5), r(4, 5), r(5)), "bias must have shape [4], got [5]"),
    "bias of 3-d rows": ((r(2, 3, 5), r(4, 5), r(5)), "bias must have shape [4], got [5]"),
    "3-d bias": ((r(3, 5), r(4, 5), r(2, 3, 4)), "bias must have shape [4], got [2, 3, 4]"),
    "meta bias's shape": (
        tuple(x.to("meta") for x in (r(3, 5), r(4, 5), r(5))),
        "bias must have shape [4], got [5]",
    ),
    "dtype": ((r(3, 5), r(4, 5, dtype=F64), None), "weight must have input's dtype torch.float32, got torch.float64"),
    "meta's dtype": (
        (r(3, 5).to("meta"), r(4, 5, dtype=F64).to("meta"), None),
        "weight must have input's dtype torch.float32, got torch.float64",
    ),
    "bias's dtype": (
        (r(3, 5), r(4, 5), r(4, dtype=F64)),
        "bias must have input's dtype torch.float32, got torch.float64",
    ),
    "bool": (
        (r(3, 5).to(BOOL), r(4, 5).to(BOOL), None),
        "input must be floating point or complex, got torch.bool",
    ),
    "device": ((r(3, 5), r(4, 5).to("meta"), None), "weight must be on input's device cpu, got meta"),
    "bias's device": ((r(3, 5), r(4, 5), r(4).to("meta")), "bias must be on input's device cpu, got meta"),
    "no input": ((None, r(4, 5), None), "input must be a Tensor, got NoneType"),
    "a list as input": (([1.0], r(4, 5), None), "input must be a Tensor, got list"),
    "no weight": ((r(3, 5), None, None), "weight must be a Tensor, got NoneType"),
    "a list as weight": ((r(3, 5), [1.0], None), "weight must be a Tensor, got list"),
    "a list as bias": ((r(3, 5), r(4, 5), [1.0]), "bias must be a Tensor or None, got list"),
}


def learning(x: Any) -> Any:
    return x.detach().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


WAYS: dict[str, Callable[..., Any]] = {
    "eager": fastops.linear,
    "reference": fastops.reference.linear,
    "autograd": lambda x, w, b, a: fastops.linear(learning(x), learning(w), learning(b), a),
    "autocast": torch.autocast("cpu", BF16)(fastops.linear),
    "vmap": lambda x, w, b, a: torch.vmap(lambda x: fastops.linear(x, w, b, a))(x[None]),
    "compile": torch.compile(fastops.linear, backend="eager"),
}


@pytest.mark.parametrize(("args", "message"), LINEAR.values(), ids=LINEAR)
@pytest.mark.parametrize("activation", [None, "gelu_tanh"])
@pytest.mark.parametrize("way", WAYS)
def test_message_of_linear(args: tuple[Any, ...], message: str, activation: str | None, way: str) -> None:
    """Without an activation it is torch's own call, whose errors name neither the op nor the argument."""
    if way == "vmap" and (not isinstance(args[0], torch.Tensor) or "[2, 3, 4]" in message):
        pytest.skip("there is nothing to map over, or torch's own call takes the bias")
    if way == "autocast" and isinstance(args[0], torch.Tensor) and args[0].is_cpu:  # which casts what is not float64
        cast = "dtype torch.bfloat16" + (" or torch.float32" if message.startswith("bias") else "")
        message = message.replace("dtype torch.float32", cast)
    torch._dynamo.reset()
    with pytest.raises(TypeError if "must be a Tensor" in message else RuntimeError) as error:
        WAYS[way](*args, activation)
    assert f"[linear] {message}" in str(error.value)
    assert way == "compile" or str(error.value).startswith("[linear]")


def test_unsupported_dtype_says_why() -> None:
    """What the reference cannot do either keeps torch's own words."""
    with pytest.raises(RuntimeError) as error:
        fastops.relu(r(3).to(torch.complex64))
    assert "complex" in str(error.value).lower()
    assert "torch_edge" not in str(error.value), "the build machine's path"


def test_unknown_isa_level() -> None:
    from fastops import _C

    with pytest.raises(ValueError) as error:
        _C.set_isa("avx1024")
    levels = ", ".join(_C.build_info()["isa_levels"])
    assert str(error.value) == f"[fastops] CPU ISA level must be one of {levels}, got 'avx1024'"
