"""An op's content: names that have no value yet, variables that get another, modules and NumPy's arrays."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor

from fastops import kit
from fastops.kit.content import content_hash

x = torch.tensor([1.5, -2.0], dtype=torch.float64)


def sine() -> Any:
    """Its derivative is itself, shifted."""

    def backward(grad: Tensor, x: Tensor) -> Tensor:
        return grad * op(x + torch.pi / 2)

    op = kit.op("kit_test::sine(Tensor x) -> Tensor", reference=lambda x: x.sin(), backward=backward)
    return op


def test_a_backward_may_name_its_own_op() -> None:
    op = sine()
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(op(leaf).sum(), leaf, create_graph=True)
    torch.testing.assert_close(first, x.cos())
    torch.testing.assert_close(torch.autograd.grad(first.sum(), leaf)[0], -x.sin())
    torch.testing.assert_close(torch.func.grad(lambda x: op(x).sum())(x), x.cos())
    compiled = torch.compile(lambda x: op(x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(leaf).sum(), leaf)[0], x.cos())
    kit.check(op, x)


def test_every_part_may_name_its_own_op() -> None:
    def make() -> Any:
        def cpu(x: Tensor, n: int) -> Tensor:
            return x * 2 if n == 1 else op(x, n - 1) * 2

        op = kit.op("kit_test::power_of_two(Tensor x, int n) -> Tensor", cpu=cpu, fake=lambda x, n: torch.empty_like(x))
        return op

    assert torch.equal(make()(x, 3), 8 * x)


def test_a_name_that_gets_its_value_later_is_no_equal_content() -> None:
    def make(factor: float) -> Any:
        def backward(grad: Tensor) -> Tensor:
            return scale(grad)

        op = kit.op("kit_test::scaled(Tensor x) -> Tensor", reference=lambda x: x + 1, backward=backward)

        def scale(grad: Tensor) -> Tensor:
            return grad * factor

        return op

    for factor in (2.0, 3.0):
        leaf = x.clone().requires_grad_()
        assert torch.equal(torch.autograd.grad(make(factor)(leaf).sum(), leaf)[0], torch.full_like(x, factor))


def test_a_global_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def later(x: Any) -> Any:
        return x * NOT_YET  # type: ignore[name-defined] # noqa: F821

    before = content_hash(later)
    monkeypatch.setitem(globals(), "NOT_YET", 2)
    two = content_hash(later)
    monkeypatch.setitem(globals(), "NOT_YET", 3)
    assert len({before, two, content_hash(later)}) == 3


def test_a_variable_that_got_another_value() -> None:
    """An op that was defined in a loop reads what the variable has behind it, as Python's functions do."""

    def defined() -> tuple[list[Any], list[Tensor]]:
        ops: list[Any] = []
        at_once: list[Tensor] = []
        for k in (2, 3):
            ops.append(kit.op("kit_test::loop(Tensor x) -> Tensor", cpu=lambda x: x * k))  # noqa: B023
            at_once.append(ops[-1](x))
        return ops, at_once

    for _ in range(2):
        ops, at_once = defined()
        assert torch.equal(torch.stack(at_once), torch.stack([2 * x, 3 * x]))
        assert torch.equal(ops[0](x), 3 * x)


def test_globals_of_another_namespace_are_others() -> None:
    code = "import torch\nG = 2\ndef cpu(x):\n    return x * G\n"
    spaces: list[dict[str, Any]] = [{"__name__": "first"}, {"__name__": "first"}]
    ops = []
    for space in spaces:
        exec(code, space)
        ops.append(kit.op("kit_test::of_space(Tensor x) -> Tensor", cpu=space["cpu"]))
    spaces[1]["G"] = 5
    assert [op(torch.ones(1)).item() for op in ops] == [2, 5]


def test_attributes_of_modules() -> None:
    settings = types.ModuleType("settings")
    settings.gain = 2.0  # type: ignore[attr-defined]
    settings.other = 2.0  # type: ignore[attr-defined]

    def reads(x: Any) -> Any:
        return torch.nn.functional.silu(x * settings.gain) + torch.ops.aten.sin(x)

    before = content_hash(reads)
    settings.other = 3.0  # type: ignore[attr-defined]
    assert content_hash(reads) == before
    settings.gain = 3.0  # type: ignore[attr-defined]
    assert content_hash(reads) != before


def test_numpys_arrays_and_numbers_by_value() -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(6.0)
    same = array.copy()
    assert content_hash(array) == content_hash(same)
    assert content_hash(numpy.float32(2)) == content_hash(numpy.float32(2))
    different = (array, array + 1, array.reshape(2, 3), array.astype("f4"), numpy.float32(2), numpy.float64(2))
    assert len(set(map(content_hash, different))) == len(different)

    def make(array: Any) -> Any:
        return kit.op("kit_test::of_array(Tensor x) -> Tensor", cpu=lambda x: x * float(array[0]))

    ops = [make(array), make(same)]
    array[0], same[0] = 2.0, 3.0
    assert [op(torch.ones(1)).item() for op in ops] == [2.0, 3.0]


def test_builtins_that_a_module_has_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def reads(x: Any) -> Any:
        return abs(x)

    before = content_hash(reads)
    monkeypatch.setitem(globals(), "abs", lambda x: x + 1)
    assert content_hash(reads) != before
