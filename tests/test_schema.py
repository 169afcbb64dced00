"""The schema in C++, the reference, the public function, its docstring and the table say one thing."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

import fastops
from fastops import _C, ops, reference
from fastops._operator import OPERATORS, WRITERS, Operator
from fastops.cases import CASES, Case, Make

REGISTERED = {
    name.removeprefix("fastops::").partition(".")[0]
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("fastops::")
}
every_operator = pytest.mark.parametrize("op", OPERATORS.values(), ids=OPERATORS)


def test_every_registered_op_has_python() -> None:
    # Behind what enable() overrides is the kernel that was there before.
    before = {f"{operator}_before" for operators in _C.overridden().values() for operator in operators}
    assert {name for name in REGISTERED if not name.endswith("_reference")} == {*OPERATORS, *WRITERS, *before}


@every_operator
def test_schema_is_the_references_signature(op: Operator) -> None:
    arguments = op.raw._schema.arguments
    parameters = inspect.signature(op.reference).parameters
    assert [a.name for a in arguments] == list(parameters)
    for argument in arguments:
        default = parameters[argument.name].default
        assert argument.has_default_value() == (default is not inspect.Parameter.empty), argument.name
        if argument.has_default_value():
            assert argument.default_value == default, argument.name


@every_operator
def test_reference_op_has_the_same_schema(op: Operator) -> None:
    twin = getattr(torch.ops.fastops, f"{op.name}_reference").default
    assert str(twin._schema).replace(f"{op.name}_reference(", f"{op.name}(") == str(op.raw._schema)


@every_operator
def test_kernels_are_registered(op: Operator) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fastops::{op.name}", "CPU")
    if "cuda" in fastops.capabilities().paths.values():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fastops::{op.name}", "CUDA")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fastops::{op.name}_reference", "CompositeExplicitAutograd")


@pytest.mark.parametrize("name", ops.__all__)
def test_public_function(name: str) -> None:
    function = getattr(fastops, name)
    parameters = inspect.signature(function).parameters
    assert function.__doc__
    described = function.__doc__.partition("Args:")[2].partition("Returns:")[0]
    for parameter in parameters:
        assert re.search(rf"^ +(\w+, )*{parameter}(, \w+)*:", described, re.MULTILINE), parameter
    assert "Returns:" in function.__doc__
    twin = inspect.signature(getattr(reference, name)).parameters
    alone = {k: p for k, p in parameters.items() if k not in ("group", "classes")}  # a reference has all classes
    assert list(alone) == list(twin)
    assert [p.default for p in alone.values()] == [p.default for p in twin.values()]
    if name in OPERATORS:
        raw = inspect.signature(OPERATORS[name].reference).parameters
        # Of a shape raw ops know the length alone; statistics they always return; what is saved comes in numbers.
        assert set(alone) - set(raw) <= {"normalized_shape", "return_lse", "save"}
        for shared in set(parameters) & set(raw) - {"reduction"}:  # a name, of raw ops a number
            assert parameters[shared].default in (raw[shared].default, inspect.Parameter.empty), shared


def test_every_op_has_a_row() -> None:
    assert sorted(case.name for case in CASES) == sorted(ops.__all__)
    assert set(ops.__all__) == set(reference.__all__)
    assert set(ops.__all__) <= set(fastops.__all__)


@pytest.mark.parametrize("case", CASES)
def test_row(case: Case) -> None:
    assert case.function is getattr(fastops, case.name)
    assert case.reference is getattr(reference, case.name)
    assert set(case.bounds) == set(case.dtypes)
    names = [sample.name for sample in case.samples]
    assert len(names) == len(set(names))
    assert any(sample.small for sample in case.samples)


def test_every_raw_op_is_called_by_a_row() -> None:
    called = {call.op for case in CASES for call in case.raw(Make("cpu", torch.float32), 3, 4)}
    assert called == {op.name for op in OPERATORS.values() if not op.composed}
