"""Arguments of the wrong kind, in every call of the kit: an error that names what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from common import needs_compiler

from fastops import kit

SOURCE, SIGNATURE = "void f(const float* x, int64_t n) {}", "const float* x, int64 n"
WRONG = (1, 2.5, [1], b"f", {"a": 1}, torch.ones(1))


def op(**parts: Any) -> Any:
    return kit.op("my::f(Tensor x) -> Tensor", **{"reference": lambda x: x.clone(), **parts})


def doubled(x: float) -> float:
    return x * 2


CALLS: dict[str, Callable[[Any], Any]] = {
    "elementwise signature": lambda wrong: kit.elementwise(wrong, "x"),
    "elementwise body": lambda wrong: kit.elementwise("f(x)", wrong),
    "elementwise backward": lambda wrong: kit.elementwise("f(x)", "x", backward=wrong),
    "reduction signature": lambda wrong: kit.reduction(wrong),
    "reduction map": lambda wrong: kit.reduction("f(x)", wrong),
    "reduction reduce": lambda wrong: kit.reduction("f(x)", reduce=wrong),
    "reduction post": lambda wrong: kit.reduction("f(x)", post=wrong),
    "reduction backward": lambda wrong: kit.reduction("f(x)", backward=wrong),
    "op schema": lambda wrong: kit.op(wrong, reference=lambda x: x),
    "op cpu": lambda wrong: op(cpu=wrong),
    "op cuda": lambda wrong: op(cuda=wrong),
    "op reference": lambda wrong: op(reference=wrong),
    "op backward": lambda wrong: op(backward=wrong),
    "op fake": lambda wrong: op(fake=wrong),
    "op vmap": lambda wrong: op(vmap=wrong),
    "op autocast": lambda wrong: op(autocast=wrong),
    "cpp_op source": lambda wrong: kit.cpp_op(wrong, "f", SIGNATURE),
    "cpp_op name": lambda wrong: kit.cpp_op(SOURCE, wrong, SIGNATURE),
    "cpp_op signature": lambda wrong: kit.cpp_op(SOURCE, "f", wrong),
    "cpp_op options": lambda wrong: kit.cpp_op(SOURCE, "f", SIGNATURE, options=wrong),
    "cpp_op contiguous": lambda wrong: kit.cpp_op(SOURCE, "f", SIGNATURE, contiguous=wrong),
    "cuda_kernel signature": lambda wrong: kit.cuda_kernel(SOURCE, "f", wrong, grid=1),
    "cuda_kernel options": lambda wrong: kit.cuda_kernel(SOURCE, "f", SIGNATURE, grid=1, options=wrong),
    "numba_op": lambda wrong: kit.numba_op(wrong),
    "numba_op backward": lambda wrong: kit.numba_op(doubled, backward=wrong),
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize("call", CALLS)
def test_wrong_types(call: str, wrong: Any) -> None:
    with pytest.raises((kit.KitError, TypeError), match=r"^\[\w+( \w+)?\] |^\[kit.op\] ") as raised:
        CALLS[call](wrong)
    assert "got" in str(raised.value)


@pytest.mark.parametrize("wrong", [0, 2, "1", [1], 1.5], ids=repr)
def test_outputs_of_an_op(wrong: Any) -> None:
    with pytest.raises(kit.KitError, match=r"\[f\] outputs must be 1 to 1, got"):
        op(outputs=wrong)


@pytest.mark.parametrize("wrong", ["gpu", "cpu:x", 2.5, None, []], ids=repr)
def test_device_to_prepare(wrong: Any) -> None:
    with pytest.raises(kit.KitError, match=r"\[f\] prepare expected a CPU or CUDA device, got"):
        kit.elementwise("f(x)", "x").prepare(device=wrong)


def test_a_text_is_no_list_of_options() -> None:
    with pytest.raises(kit.KitError, match=r"\[f\] options must be a list of texts, such as \['-O2'\], got '-O2'"):
        kit.cpp_op(SOURCE, "f", SIGNATURE, options="-O2")


def test_a_function_beside_a_body() -> None:
    for signature in (None, doubled):
        with pytest.raises(kit.KitError, match="a signature must be text"):
            kit.elementwise(signature, "x")


@needs_compiler
def test_half_types_have_another_name_in_a_kernel() -> None:
    wrong = kit.cpp_op("struct half {}; void f(const half* x, int64_t n) {}", "f", "const half* x, int64 n")
    with pytest.raises(
        kit.CompileError, match=r"'const half\* x', as the signature has it: write const fastops::float16\* x"
    ):
        wrong(torch.ones(2, dtype=torch.float16), 2)
