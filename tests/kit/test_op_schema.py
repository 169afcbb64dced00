"""kit.op's schemas: defaults of every kind arrive as torch parsed them, in every mode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fastops import kit

# The arguments behind the tensor, and what the kernel gets when a call leaves them out.
DEFAULTS: dict[str, tuple[Any, ...]] = {
    r'str mode="a\"b"': ('a"b',),
    """str mode='a"b'""": ('a"b',),
    r"str mode='it\'s'": ("it's",),
    r'str a="\\", str b="x\"", str c="\n"': ("\\", 'x"', "\n"),
    'str a=")", str b=",", str c="=", str d="]", str e="[(*, ", str f="=1, int g=2) -> Tensor"': (
        *(")", ",", "=", "]", "[(*, "),
        "=1, int g=2) -> Tensor",
    ),
    'str a="é日", str b=""': ("é日", ""),
    'str? a=None, str? b="None"': (None, "None"),
    "float a=1e-5, float b=-1.5e-05, float c=2, float? d=0.5": (1e-5, -1.5e-5, 2.0, 0.5),
    "int a=-3, int? b=None, SymInt c=4, bool d=True, bool? e=False": (-3, None, 4, True, False),
    "int[2] a=1, int[2] b=[1, 2], int[] c=[], int[2]? d=3, int[]? e=None": ([1, 1], [1, 2], [], [3, 3], None),
    "SymInt[2] a=2, float[2] b=0.5, bool[] c=[True, False]": ([2, 2], [0.5, 0.5], [True, False]),
    "Scalar a=1, Scalar? b=2.5, complex c=1j": (1, 2.5, 1j),
    "ScalarType a=float64, ScalarType? b=bfloat16, ScalarType? c=None": (torch.float64, torch.bfloat16, None),
    "Layout a=strided, MemoryFormat b=contiguous_format": (torch.strided, torch.contiguous_format),
    'Device a="cpu", Device? b=None, Tensor? c=None, Generator? d=None': (torch.device("cpu"), None, None, None),
    '*, str a=")", int b=2': (")", 2),
}


@pytest.mark.parametrize("arguments", DEFAULTS)
def test_defaults_arrive(arguments: str) -> None:
    expected = DEFAULTS[arguments]

    def agree(given: tuple[Any, ...]) -> bool:
        return len(given) == len(expected) and all(
            isinstance(x, type(y)) and x == y for x, y in zip(given, expected, strict=True)
        )

    def scaled(x: torch.Tensor, *given: Any) -> torch.Tensor:
        return x * (2 if agree(given) else float("nan"))

    op = kit.op(f"kit_test::with_defaults(Tensor x, {arguments}) -> Tensor", reference=scaled)
    x = torch.ones(2, requires_grad=True)
    assert torch.equal(op(x).detach(), torch.full((2,), 2.0))  # by torch's dispatcher
    assert torch.equal(torch.autograd.grad(op(x).sum(), x)[0], torch.full((2,), 2.0))
    assert torch.equal(torch.func.jvp(op, (x.detach(),), (torch.ones(2),))[1], torch.full((2,), 2.0))  # not by it
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: op(x), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x).detach(), torch.full((2,), 2.0))
    assert [a.N for a in op.raw._schema.arguments] == [a.N for a in torch._C.parse_schema(op.schema.text).arguments]


@pytest.mark.parametrize("arguments", ["float a=inf", "float a=1e400", 'str a="x', "Stream a", "int a="])
def test_what_torch_cannot_parse_is_an_error(arguments: str) -> None:
    with pytest.raises(kit.KitError, match=r"^\[(kit\.op|f)\] .*got "):
        kit.op(f"kit_test::f(Tensor x, {arguments}) -> Tensor", reference=lambda x, a: x + 1)


def test_one_number_for_a_list() -> None:
    """The dispatcher makes a list of it; the reference and the backward get that too."""

    def total(x: torch.Tensor, k: list[int]) -> torch.Tensor:
        return x * (k[0] + 10 * k[1])

    op = kit.op(
        "kit_test::of_a_pair(Tensor x, int[2] k=1) -> Tensor", reference=total, backward=lambda grad, k: total(grad, k)
    )
    x = torch.ones(2, requires_grad=True)
    for given, expected in (((), 11.0), ((3,), 33.0), (([3, 4],), 43.0), (((3, 4),), 43.0)):
        assert op(x, *given).tolist() == [expected] * 2
        assert torch.autograd.grad(op(x, *given).sum(), x)[0].tolist() == [expected] * 2
        assert torch.func.vmap(lambda x, given=given: op(x, *given))(x).tolist() == [expected] * 2
