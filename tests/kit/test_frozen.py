"""What is compiled later has the values of the definition: globals, closures, modules, arrays, functions it calls."""

from __future__ import annotations

import copy
import math
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fastops import kit
from fastops.kit.frozen import Frozen

numba = pytest.importorskip("numba", reason='Numba is not installed: pip install "fastops[numba]"')
import numpy  # noqa: E402
from numba import cuda  # noqa: E402
from numba.extending import register_jitable  # noqa: E402

GAIN = 2.0
ARRAY = numpy.array([2.0, 3.0])
PAIR = (1.0, (ARRAY, 2.0))
settings = types.ModuleType("settings")
settings.GAIN = 2.0  # type: ignore[attr-defined]
settings.inner = types.ModuleType("settings.inner")  # type: ignore[attr-defined]
settings.inner.GAIN = 2.0  # type: ignore[attr-defined]
FACTORS = [2.0]
UNCHANGED = dict(vars(settings))


@numba.njit
def inner(x: Any) -> Any:
    return x * GAIN


@numba.njit
def helper(x: Any) -> Any:
    return inner(x)


@numba.vectorize
def ufunc(x: Any) -> Any:
    return x * GAIN


@register_jitable
def jitable(x: Any) -> Any:
    return x * GAIN


@cuda.jit(device=True)
def on_the_device(x: Any) -> Any:
    return x * GAIN


def twice_global(x: Any) -> Any:
    for _ in range(1):
        x = x * GAIN
    return x


def expression_of_global(x: Any) -> Any:
    return x * GAIN


def of_array(x: Any) -> Any:
    for _ in range(1):
        x = x * ARRAY[0]
    return x


def of_tuple(x: Any) -> Any:
    for _ in range(1):
        x = x * PAIR[1][0][0]
    return x


def of_module(x: Any) -> Any:
    for _ in range(1):
        x = x * settings.GAIN
    return x


def of_module_in_module(x: Any) -> Any:
    for _ in range(1):
        x = x * settings.inner.GAIN + 0 * math.pi
    return x


def of_helper(x: Any) -> Any:
    for _ in range(1):
        x = helper(x)
    return x


def of_ufunc(x: Any) -> Any:
    for _ in range(1):
        x = ufunc(x)
    return x


def closing_over(gain: float, module: types.ModuleType) -> tuple[Any, Callable[[float], None]]:
    def function(x: Any) -> Any:
        for _ in range(1):
            x = x * (gain + module.GAIN) / 2
        return x

    def change(value: float) -> None:
        nonlocal gain
        gain = value
        module.GAIN = value  # type: ignore[attr-defined]

    return function, change


closure, change_closure = closing_over(2.0, settings)


@pytest.fixture
def change(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets all of these to another value, and back behind the test."""

    def set_all(value: float) -> None:
        monkeypatch.setitem(globals(), "GAIN", value)
        ARRAY[:] = value
        settings.GAIN = settings.inner.GAIN = value  # type: ignore[attr-defined]
        change_closure(value)

    set_all(2.0)
    yield set_all
    set_all(2.0)


FUNCTIONS = [
    *(twice_global, expression_of_global, of_array, of_tuple, of_module, of_module_in_module),
    *(of_helper, of_ufunc, closure),
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_value_for_all_dtypes(function: Any, change: Any) -> None:
    op = kit.numba_op(function)
    x = torch.tensor([1.5])
    assert op(x).item() == 3.0
    change(5.0)
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        assert op(x.to(dtype)).item() == 3.0
    again = kit.numba_op(function)
    assert again.content_hash != op.content_hash
    for dtype in (torch.float64, torch.float32):
        assert again(x.to(dtype)).item() == 7.5
        assert op(x.to(dtype)).item() == 3.0
    change(2.0)
    assert kit.numba_op(function).content_hash == op.content_hash


def test_a_helper_compiled_before_the_definition(change: Any) -> None:
    """Its code for float64 has the value of then, and the op is of another."""
    change(5.0)
    assert helper(1.0) == 5.0
    change(2.0)
    op = kit.numba_op(of_helper)
    assert [op(torch.ones(1, dtype=dtype)).item() for dtype in (torch.float64, torch.float32)] == [2.0, 2.0]
    assert helper(1.0) == 5.0  # Numba's own, which is the caller's


def test_nothing_of_the_programs_is_changed(change: Any) -> None:
    before = dict(vars(settings)), helper.signatures
    kit.numba_op(of_module_in_module)(torch.ones(1))
    kit.numba_op(of_helper)(torch.ones(1))
    assert (dict(vars(settings)), helper.signatures) == before


def test_what_cannot_be_copied_must_stay(change: Any) -> None:
    def of_jitable(x: Any) -> Any:
        for _ in range(1):
            x = jitable(x)
        return x

    op = kit.numba_op(of_jitable)
    assert op(torch.ones(1)).item() == 2.0
    change(5.0)
    assert op(torch.ones(1)).item() == 2.0
    with pytest.raises(kit.KitError, match=r"^\[of_jitable\] .*jitable as it was at the definition, got another"):
        op(torch.ones(1, dtype=torch.float64))
    change(2.0)
    assert op(torch.ones(1, dtype=torch.float64)).item() == 2.0


@numba.njit
def even(x: Any) -> Any:
    return GAIN if x < 1 else odd(x - 1)


@numba.njit
def odd(x: Any) -> Any:
    return -GAIN if x < 1 else even(x - 1)


@numba.njit
def factorial(x: Any) -> Any:
    return GAIN if x < 1 else x * factorial(x - 1)


def of_functions_that_call_themselves(x: Any) -> Any:
    for _ in range(1):
        x = factorial(x) + (even(x) if x > 3 else 0.0)
    return x


def test_functions_that_call_themselves(change: Any) -> None:
    op = kit.numba_op(of_functions_that_call_themselves)
    change(5.0)
    for dtype in (torch.float64, torch.float32):
        assert op(torch.tensor([3.0, 4.0], dtype=dtype)).tolist() == [12.0, 50.0]


def test_a_list_is_no_constant_of_numbas() -> None:
    def of_list(x: Any) -> Any:
        for _ in range(1):
            x = x * FACTORS[0]
        return x

    with pytest.raises(RuntimeError, match="Numba does not compile it"):
        kit.numba_op(of_list)(torch.ones(1))


def test_a_backward_may_name_its_own_op() -> None:
    def make() -> Any:
        def sine(x: Any) -> Any:
            for _ in range(1):
                x = math.sin(x)
            return x

        def backward(grad: Any, x: Any) -> Any:
            return grad * op(x + math.pi / 2)

        op = kit.numba_op(sine, backward=backward)
        return op

    x = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(torch.autograd.grad(make()(x).sum(), x)[0], x.cos())


def test_no_function_of_pythons() -> None:
    with pytest.raises(kit.KitError, match=r"^\[sin\] expected a function that is written in Python, got <built-in"):
        kit.numba_op(math.sin)


def test_what_numba_compiles_already(change: Any) -> None:
    """A decorated function is taken for the one in it."""
    op = kit.numba_op(numba.njit(twice_global))
    change(5.0)
    assert op(torch.ones(1, dtype=torch.float64)).item() == 2.0


def test_a_name_without_a_value_is_an_error_of_the_definition() -> None:
    def early(x: Any) -> Any:
        return later(x)

    with pytest.raises(kit.KitError, match=r"^\[early\] expected a value of later at the definition, got none yet"):
        kit.numba_op(early)

    def later(x: Any) -> Any:
        return x


def test_gradients_are_of_the_definition(change: Any) -> None:
    def scaled(x: Any) -> Any:
        return x * GAIN

    def given(grad: Any) -> Any:
        return grad * GAIN

    ops = [kit.numba_op(scaled), kit.numba_op(scaled, backward=given), kit.elementwise(scaled)]
    change(5.0)
    for op in ops:
        for dtype in (torch.float32, torch.float64):
            x = torch.ones(1, dtype=dtype, requires_grad=True)
            assert op(x).item() == torch.autograd.grad(op(x).sum(), x)[0].item() == 2.0
            assert torch.compile(op, backend="aot_eager")(x).item() == 2.0


@cuda.jit
def kernel(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = on_the_device(x[i]) + GAIN + ARRAY[0] + settings.GAIN


def test_whole_kernels(change: Any) -> None:
    op = kit.numba_op(kernel, grid=1, reference=lambda x: x + 1)
    change(5.0)
    assert kit.numba_op(kernel, grid=1, reference=lambda x: x + 1) is not op
    function = op._parts.cuda._frozen.function
    scope = function.__globals__
    assert scope["GAIN"] == scope["ARRAY"][0] == scope["settings"].GAIN == 2.0
    device = scope["on_the_device"]
    assert device.py_func.__globals__["GAIN"] == 2.0
    assert device.targetoptions == on_the_device.targetoptions
    assert copy.deepcopy(op) is op


def test_copies(change: Any) -> None:
    frozen = Frozen(of_array)
    assert copy.copy(frozen) is copy.deepcopy(frozen) is frozen
    change(5.0)
    again = pickle.loads(pickle.dumps(frozen))
    assert again.content_hash != frozen.content_hash
    assert again.function.__globals__["ARRAY"][0] == 5.0


def test_a_module_that_is_imported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of the program's own modules are followed."""
    (tmp_path / "kit_test_helpers.py").write_text(
        "import numba\nGAIN = 2.0\n@numba.njit\ndef helper(x):\n    return x * GAIN\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import kit_test_helpers  # type: ignore[import-not-found,unused-ignore]

    def of_imported(x: Any) -> Any:
        for _ in range(1):
            x = kit_test_helpers.helper(x)
        return x

    op = kit.numba_op(of_imported)
    assert op(torch.ones(1)).item() == 2.0
    kit_test_helpers.GAIN = 5.0
    assert op(torch.ones(1, dtype=torch.float64)).item() == 2.0
    assert kit.numba_op(of_imported)(torch.ones(1)).item() == 5.0
    del sys.modules["kit_test_helpers"]
