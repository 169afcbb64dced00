"""What the kit makes can be pickled and copied, as the modules that hold it are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fastops import kit
from fastops.kit import compiler

x = torch.tensor([0.5, 2.0])


@kit.elementwise
def cubed(x: Any, *, s: float = 1.0) -> Any:
    return s * x**3


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def call(kernel: Any) -> Tensor:
    y = torch.empty_like(x)
    kernel(x, y, 2)
    return y


SOURCE = "void halve(const float* x, float* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = x[i] / 2; }"
OPS: dict[str, tuple[Any, Callable[[Any], Tensor]]] = {
    "text": (kit.elementwise("swish(x, *, b=2.0)", "x / (1 + exp(-b * x))", backward="grad"), lambda op: op(x)),
    "function": (cubed, lambda op: op(x, s=2.0)),
    "reduction": (kit.reduction("norm(x)", map="x * x", post="sqrt(a)", backward="grad * x / out"), lambda op: op(x)),
    "op": (kit.op("kit_test::doubled(Tensor x) -> Tensor", reference=doubled), lambda op: op(x)),
    "cpp_op": (kit.cpp_op(SOURCE, "halve", "const float* x, float* y, int64 n"), call),
}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))])
@pytest.mark.parametrize("kind", OPS)
def test_copies(kind: str, copied: Callable[[Any], Any]) -> None:
    if kind == "cpp_op" and not compiler.available():
        pytest.skip("no C++ compiler")
    op, run = OPS[kind]
    before = run(op)
    again = copied(op)
    assert again.content_hash == op.content_hash
    assert torch.equal(run(again), before)


def test_a_kernel_of_cuda() -> None:
    source = "__global__ void halve(const float* x, float* y, int64_t n) {}"
    kernel = kit.cuda_kernel(source, "halve", "const float* x, float* y, int64 n", grid="ceil(n / 256)")
    assert pickle.loads(pickle.dumps(kernel)).content_hash == kernel.content_hash == copy.deepcopy(kernel).content_hash


def test_a_module_that_holds_an_op() -> None:
    module = torch.nn.Module()
    module.activation = OPS["text"][0]  # type: ignore[assignment]
    assert torch.equal(copy.deepcopy(module).activation(x), module.activation(x))
