"""patch of rope: functions that turn q and k, called by a global name, beside themselves; and what is left."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fastops
from fastops.patching import rebinding, rope

Function = Callable[..., Any]
B, HEADS, KEYS, S, D = 2, 4, 2, 6, 16


def half_turned(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def pair_turned(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def halves(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + half_turned(q) * sin, k * cos + half_turned(k) * sin


def pairs(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
    if position_ids is not None:
        raise ValueError("told apart")
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + pair_turned(q) * sin, k * cos + pair_turned(k) * sin


def in_float32(q, k, cos, sin, unsqueeze_dim=1):
    found = halves(q.float(), k.float(), cos.float(), sin.float(), unsqueeze_dim)
    return tuple(x.to(q.dtype) for x in found)


def of_a_part(q, k, cos, sin, unsqueeze_dim=1):
    width = cos.shape[-1]
    found = halves(q[..., :width], k[..., :width], cos, sin, unsqueeze_dim)
    return tuple(torch.cat((x, rest[..., width:]), -1) for x, rest in zip(found, (q, k), strict=True))


def of_half_tables(q, k, cos, sin, unsqueeze_dim=1):
    return halves(q, k, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1), unsqueeze_dim)


def of_first_halves(q, k, cos, sin, unsqueeze_dim=1):
    n = cos.shape[-1] // 2
    return pairs(
        q, k, cos[..., :n].repeat_interleave(2, -1), sin[..., :n].repeat_interleave(2, -1), None, unsqueeze_dim
    )


def heads_last(query, key, cos, sin):
    return halves(query, key, cos, sin, -2)


def of_one(x, sin, cos, unsqueeze_dim=1):
    return halves(x, x, cos, sin, unsqueeze_dim)[0]


def sorted_after(q, k, cos, sin, unsqueeze_dim=1):
    found = pairs(q, k, cos, sin, None, unsqueeze_dim)
    return tuple(torch.cat((x[..., ::2], x[..., 1::2]), -1) for x in found)


def pairs_of_a_part(q, k, cos, sin, unsqueeze_dim=1):
    width = cos.shape[-1]
    found = of_first_halves(q[..., :width], k[..., :width], cos, sin, unsqueeze_dim)
    return tuple(torch.cat((x, rest[..., width:]), -1) for x, rest in zip(found, (q, k), strict=True))


def of_the_last_part(q, k, cos, sin, unsqueeze_dim=1):
    width = cos.shape[-1]
    found = halves(q[..., -width:], k[..., -width:], cos, sin, unsqueeze_dim)
    return tuple(torch.cat((rest[..., :-width], x), -1) for x, rest in zip(found, (q, k), strict=True))


def pairs_of_the_last_part(x, cos, sin, unsqueeze_dim=1):
    """In float32, of tables that have one number for each pair."""
    cos, sin = (table.repeat_interleave(2, -1).float().unsqueeze(unsqueeze_dim) for table in (cos, sin))
    rest, part = x.split([x.shape[-1] - cos.shape[-1], cos.shape[-1]], -1)
    turned = part.float() * cos + pair_turned(part).float() * sin
    return torch.cat((rest, turned.to(x.dtype)), -1)


def sorted_part_of_half_tables(q, k, cos, sin, unsqueeze_dim=1):
    width, cos, sin = 2 * cos.shape[-1], cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    found = sorted_after(q[..., :width], k[..., :width], cos, sin, unsqueeze_dim)
    return tuple(torch.cat((x, rest[..., width:]), -1) for x, rest in zip(found, (q, k), strict=True))


# By function: its tables' width, and whether it promotes half types beside float32 tables.
PROVED: dict[Function, tuple[int, bool]] = {
    halves: (D, True),
    pairs: (D, True),
    in_float32: (D, False),
    of_a_part: (12, True),
    of_half_tables: (D // 2, True),
    of_first_halves: (D, True),
    heads_last: (D, True),
    of_one: (D, True),
    sorted_after: (D, True),
}
# Functions of a part of a head, by the widths of tables that leave a part.
PARTS: dict[Function, tuple[int, ...]] = {
    of_a_part: (4, 8, 12),
    pairs_of_a_part: (4, 8, 12),
    of_the_last_part: (4, 8, 12),
    pairs_of_the_last_part: (2, 3, 4, 5, 8),
    sorted_part_of_half_tables: (2, 3, 4, 5, 8),
}


def turned_back(q, k, cos, sin, unsqueeze_dim=1):
    return halves(q, k, cos, -sin, unsqueeze_dim)


def scaled(q, k, cos, sin, unsqueeze_dim=1):
    return halves(q * 1.001, k, cos, sin, unsqueeze_dim)


def keys_alone(q, k, cos, sin, unsqueeze_dim=1):
    return q, halves(q, k, cos, sin, unsqueeze_dim)[1]


def exchanged(q, k, cos, sin, unsqueeze_dim=1):
    return halves(q, k, cos, sin, unsqueeze_dim)[::-1]


def detached(q, k, cos, sin, unsqueeze_dim=1):
    return tuple(x.detach() for x in halves(q, k, cos, sin, unsqueeze_dim))


def sorted_before(q, k, cos, sin, unsqueeze_dim=1):
    return pairs(*(torch.cat((x[..., ::2], x[..., 1::2]), -1) for x in (q, k)), cos, sin, None, unsqueeze_dim)


def of_the_middle(q, k, cos, sin, unsqueeze_dim=1):
    width = cos.shape[-1]
    return tuple(x.roll(2, -1) for x in of_a_part(q.roll(-2, -1), k.roll(-2, -1), cos[..., :width], sin, unsqueeze_dim))


def a_list(q, k, cos, sin, unsqueeze_dim=1):
    return list(halves(q, k, cos, sin, unsqueeze_dim))


def with_a_mean(q, k, cos, sin, unsqueeze_dim=1):
    return halves(q, k, cos + 1e-3 * cos.mean(), sin, unsqueeze_dim)


IMPOSTORS = (
    *(turned_back, scaled, keys_alone, exchanged, detached, with_a_mean),
    *(sorted_before, of_the_middle, a_list),
)

_SOURCE = """
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones({D}))

    {decorator}
    def forward(self, {names}, factor: float = 1.0, *, more=0.0):
        "What it is."
        assert isinstance(self, __class__)
        found = {call}
        return tuple(plus(x * self.scale * factor, more) for x in (found if isinstance(found, tuple) else (found,)))
"""


_numbers = itertools.count()


def attention(
    function: Function, call: str = "", names: str = "q, k, cos, sin", decorator: str = "", **more: Any
) -> Any:
    """A module whose forward calls the function by the global name ``rotate``, and its namespace as ``.space``."""
    defining = ModuleType(f"attention_of_{next(_numbers)}")
    sys.modules[defining.__name__] = defining  # where torch.compile looks
    space = vars(defining)
    space.update({"torch": torch, "rotate": function, "plus": torch.add} | more)
    call = call or ("rotate(q, cos=cos, sin=sin)" if function is of_one else "rotate(q, k, cos, sin)")
    exec(_SOURCE.format(D=D, decorator=decorator, names=names, call=call), space)
    made = space["Attention"]()
    made.space = space
    return made


def problem(function: Function, dtype: torch.dtype = torch.float32, tables: torch.dtype | None = None) -> list[Tensor]:
    width, order = PROVED.get(function, (D, True))[0], (0, 2, 1, 3) if function is heads_last else (0, 1, 2, 3)
    q, k = (torch.randn(B, h, S, D).permute(order).to(dtype).requires_grad_() for h in (HEADS, KEYS))
    cos, sin = (torch.randn(B, S, width).to(tables or dtype) for _ in range(2))
    return [q, k, cos, sin]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Of our rope by patched forwards, in which proofs, which are made in other threads, do not count."""
    seen: list[tuple[Any, ...]] = []
    ours, here = rope.rope, threading.get_ident()

    def counted(*args: Any, **options: Any) -> Any:
        if threading.get_ident() == here:
            seen.append(args)
        return ours(*args, **options)

    monkeypatch.setattr(rope, "rope", counted)
    return seen


def run(module: Any, given: list[Tensor], **options: Any) -> list[Tensor]:
    outputs = module(*given, **options)
    inputs = [given[0], given[1]][: len(outputs)]
    directions = [torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype) for y in outputs]
    return [*outputs, *torch.autograd.grad(outputs, inputs, directions)]


def same(found: list[Tensor], expected: list[Tensor], coarse: torch.dtype) -> None:
    bound = 2e-6 if coarse.itemsize >= 4 else 4 * torch.finfo(coarse).eps
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=bound * float(b.detach().abs().max()))


@pytest.mark.parametrize("function", PROVED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tables", [None, torch.float32], ids=["same", "float32"])
def test_proved(function: Function, dtype: torch.dtype, tables: torch.dtype | None, calls: list[Any]) -> None:
    module, given = attention(function).to(dtype), problem(function, dtype, tables)
    expected = run(module, given)
    report = fastops.patch(module, only=["rope"])
    assert list(report.swapped) == [""]
    assert not calls
    found = run(module, given)
    assert len(calls) == 1
    promotes = PROVED[function][1] and tables is not None
    assert found[0].dtype == (torch.promote_types(dtype, torch.float32) if promotes else dtype)
    same(found, expected, dtype)


@pytest.mark.parametrize(
    ("function", "width"),
    [(function, width) for function, widths in PARTS.items() for width in widths],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_parts(function: Function, width: int, dtype: torch.dtype, calls: list[Any]) -> None:
    """A part of a head is rotated, also where the tables' width would fit a rotation of the whole head."""
    call = "rotate(q, cos, sin)" if function is pairs_of_the_last_part else ""
    module = attention(function, call).to(dtype)
    q, k, cos, sin = problem(halves, dtype, torch.float32 if dtype.itemsize < 4 else None)
    given = [q, k, cos[..., :width], sin[..., :width]]
    expected = run(module, given)
    report = fastops.patch(module, only=["rope"])
    same(run(module, given), expected, dtype)
    assert len(calls) == 1
    assert (report.calls[""].made, report.calls[""].ran) == (1, 1)


def test_both_readings_of_one_width(calls: list[Any]) -> None:
    """Tables of half of the head's width: one function rotates half of the head, the other all of it."""
    q, k, cos, sin = problem(of_half_tables)
    for function in (of_a_part, of_half_tables):
        module = attention(function)
        expected = run(module, [q, k, cos, sin])
        fastops.patch(module, only=["rope"])
        same(run(module, [q, k, cos, sin]), expected, torch.float32)
    assert len(calls) == 2


def test_odd_width(calls: list[Any]) -> None:
    """An odd number of a head's numbers is nothing that ours rotates: the function does."""
    module = attention(of_a_part)
    q, k, cos, sin = (x.detach()[..., :w] for x, w in zip(problem(halves), (D, D, 3, 3), strict=True))
    expected = module(q, k, cos, sin)
    fastops.patch(module, only=["rope"])
    assert all(torch.equal(a, b) for a, b in zip(module(q, k, cos, sin), expected, strict=True))
    assert not calls


def keys_or_none(q, k=None, cos=None, sin=None, unsqueeze_dim=1):
    turned = halves(q, q if k is None else k, cos, sin, unsqueeze_dim)
    return turned[0] if k is None else turned


def keys_or_none_in_a_tuple(q, k, cos, sin, unsqueeze_dim=1):
    turned = halves(q, q if k is None else k, cos, sin, unsqueeze_dim)
    return turned[0], None if k is None else turned[1]


@pytest.mark.parametrize(
    ("function", "call"),
    [
        (keys_or_none, "rotate(q, cos=cos, sin=sin)"),
        (keys_or_none, "rotate(q, None, cos, sin)"),
        (keys_or_none_in_a_tuple, "(lambda turned, none: (turned, *(none or ())))(*rotate(q, None, cos, sin))"),
    ],
)
def test_queries_alone(function: Function, call: str, calls: list[Any]) -> None:
    """A function of q and k that takes None for k, and returns one tensor then, or None for k."""
    module, given = attention(function, call), problem(halves)
    expected = run(module, given)
    fastops.patch(module, only=["rope"])
    same(run(module, given), expected, torch.float32)
    assert len(calls) == 1


def test_missing_keys_are_an_error() -> None:
    module = attention(keys_or_none_in_a_tuple, "rotate(q, cos=cos, sin=sin)")
    fastops.patch(module, only=["rope"])
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'k'"):
        module(*problem(halves))


def test_several_functions_of_one_forward(calls: list[Any]) -> None:
    """Each is tried by itself, and one that is left is in the report beside one that is swapped."""
    call = "other(*rotate(q, k, cos, sin), cos, sin)"
    module, given = attention(halves, call, other=sorted_after), problem(halves)
    expected = run(module, given)
    report = fastops.patch(module, only=["rope"])
    assert report.swapped == {"": "Attention as other as rope(interleaved) in halves, rotate as rope"}
    assert not report.left
    same(run(module, given), expected, torch.float32)
    assert len(calls) == 2
    module = attention(halves, call, other=turned_back)
    expected = run(module, given)
    report = fastops.patch(module, only=["rope"])
    assert report.swapped == {"": "Attention as rotate as rope"}
    assert report.left == {"": "Attention: other is not a rotation that fastops has"}
    same(run(module, given), expected, torch.float32)
    assert len(calls) == 3


@pytest.mark.parametrize("axis", [2, -2, 1, -3])
@pytest.mark.parametrize("tables", ["BSD", "1SD", "SD"])
def test_layouts(axis: int, tables: str, calls: list[Any]) -> None:
    """Heads before or behind the tokens, by unsqueeze_dim; tables of each batch or of all."""
    heads_behind = axis == 2 or axis == -2 or (tables == "SD" and axis == 1)
    if tables == "SD" and axis == 2:
        return  # it is out of range
    module = attention(halves, f"rotate(q, k, cos, sin, unsqueeze_dim={axis})")
    q, k, cos, sin = problem(halves)
    if heads_behind:
        q, k = (x.detach().transpose(1, 2).requires_grad_() for x in (q, k))
    cos, sin = {"BSD": (cos, sin), "1SD": (cos[:1], sin[:1]), "SD": (cos[0], sin[0])}[tables]
    expected = run(module, [q, k, cos, sin])
    fastops.patch(module, only=["rope"])
    same(run(module, [q, k, cos, sin]), expected, torch.float32)
    assert len(calls) == 1


@pytest.mark.parametrize("function", IMPOSTORS, ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore:.*nothing was swapped")
def test_impostors(function: Function) -> None:
    module = attention(function)
    report = fastops.patch(module, only=["rope"])
    assert report.swapped == {}
    assert report.left == {"": "Attention: rotate is not a rotation that fastops has"}


def _of_three(q, k, v, cos, sin):
    return halves(q, k, cos, sin)


def _with_more(q, k, cos, sin, scale):
    return halves(q, k, cos, sin)


def _of_other_names(q, k, c, s):
    return halves(q, k, c, s)


class Rotation(nn.Module):
    """A function that is a module, as Hugging Face's kernels makes it."""

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        return halves(q, k, cos, sin, unsqueeze_dim)


def _stateful(**state: Any) -> Rotation:
    made = Rotation()
    for name, value in state.items():
        setattr(made, name, value)
    return made


def _hooked() -> Rotation:
    made = Rotation()
    made.register_forward_hook(lambda *_: None)
    return made


@pytest.mark.parametrize(
    "function",
    [
        *(_of_three, _with_more, _of_other_names, print, 3, nn.Linear, Rotation, nn.Linear(2, 2), _hooked()),
        *(_stateful(scale=1.0), _stateful(scale=nn.Parameter(torch.ones(1))), _stateful(inner=nn.ReLU())),
    ],
)
@pytest.mark.filterwarnings("ignore:.*nothing was swapped")
def test_none_of_its_kind(function: Any) -> None:
    """Of another signature: never run, and not mentioned."""
    report = fastops.patch(attention(halves, "rotate", rotate=function), only=["rope"])
    assert report.swapped == report.left == {}


CALLS: dict[str, Callable[[list[Tensor]], list[Any]]] = {
    "another dtype of k": lambda g: [g[0], g[1].double(), *g[2:]],
    "tables that broadcast over tokens": lambda g: [*g[:2], g[2][:, :1], g[3][:, :1]],
    "one k for all batches": lambda g: [g[0], g[1][:1], g[2][:1], g[3][:1]],
    "integers": lambda g: [(x * 4).long() for x in g],
    "a subclass": lambda g: [g[0].as_subclass(type("Other", (Tensor,), {})), *g[1:]],
    "tables that differ": lambda g: [*g[:3], g[3][:, :1]],
}


@pytest.mark.parametrize("change", CALLS.values(), ids=CALLS)
def test_calls_that_are_the_functions(change: Callable[[list[Tensor]], list[Any]], calls: list[Any]) -> None:
    """What was not proved goes to the function itself."""
    module = attention(halves)
    given = change([x.detach() for x in problem(halves)])
    expected = module(*given)
    fastops.patch(module, only=["rope"])
    found = module(*given)
    assert not calls
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_arguments_beside_them(calls: list[Any]) -> None:
    """Defaults are understood, whether given or not; anything else goes to the function, and so do its errors."""
    module = attention(pairs, "rotate(q, k, cos, sin, None, unsqueeze_dim=1)")
    fastops.patch(module, only=["rope"])
    module(*problem(pairs))
    assert len(calls) == 1
    other = attention(pairs, "rotate(q, k, cos, sin, position_ids=torch.arange(6))")
    fastops.patch(other, only=["rope"])
    with pytest.raises(ValueError, match="told apart"):
        other(*problem(pairs))
    wrong = attention(pairs, "rotate(q, k, cos)")
    fastops.patch(wrong, only=["rope"])
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'sin'"):
        wrong(*problem(pairs))


def test_the_defining_module_is_as_it_was(calls: list[Any]) -> None:
    """Its names, another instance, and the class; and what it changes later is seen."""
    module = attention(halves)
    other, cls, space = type(module)(), type(module), module.space
    before = dict(space)
    given = problem(halves)
    fastops.patch(module, only=["rope"])
    assert space == before
    assert type(other) is cls
    other(*given)
    assert not calls
    module(*given)
    assert len(calls) == 1
    space["plus"] = lambda x, y: x * 0 + 7  # another global of the forward
    assert (module(*given)[0] == 7).all()
    assert len(calls) == 2
    space["rotate"] = lambda q, k, cos, sin: (q * 0, k * 0)  # the one that was replaced
    module(*given)
    assert len(calls) == 2
    space["rotate"] = halves
    module(*given)
    assert len(calls) == 3
    cls.forward = lambda self, *given: "another"
    assert module(*given) == "another"


def test_a_module_as_the_function(calls: list[Any]) -> None:
    """It is proved by its forward; another one since, or a hook, is what runs; and a later patch is of the new one."""
    rotation = Rotation()
    module, given = attention(rotation), problem(halves)
    expected = run(module, given)
    fastops.patch(module, only=["rope"])
    same(run(module, given), expected, torch.float32)
    assert len(calls) == 1
    given = [x.detach() for x in given]
    rotation.forward = lambda q, k, cos, sin, unsqueeze_dim=1: (q * 0, k * 0)  # as kernelize does
    assert not any(x.any() for x in module(*given))
    assert len(calls) == 1
    rotation.forward = pairs
    swapped = type(module)
    other = type(module).__mro__[1]()
    fastops.patch(other, only=["rope"])
    assert type(other) is not swapped
    assert "rotate as rope(interleaved)" in repr(other)
    other(*given)
    assert len(calls) == 2
    del rotation.forward
    module(*given)
    assert len(calls) == 3
    seen: list[Any] = []
    handle = rotation.register_forward_hook(lambda *_: seen.append(1))
    module(*given)
    assert (len(calls), len(seen)) == (3, 1)
    handle.remove()
    module(*given)
    assert len(calls) == 4


def test_forward_is_the_same(calls: list[Any]) -> None:
    """Defaults, keywords, annotations, docstring, signature, closures; and undo."""
    module = attention(halves)
    given, cls = problem(halves), type(module)
    expected = run(module, given, factor=2.0, more=0.5)
    report = fastops.patch(module, only=["rope"])
    same(run(module, given, factor=2.0, more=0.5), expected, torch.float32)
    same(run(module, given), run(cls(), given), torch.float32)
    assert len(calls) == 2
    forward = type(module).forward
    assert inspect.signature(forward) == inspect.signature(cls.forward)
    for name in ("__doc__", "__name__", "__qualname__", "__module__", "__annotations__"):
        assert getattr(forward, name) == getattr(cls.forward, name)
    assert "rotate as rope" in repr(module)
    report.undo()
    assert type(module) is cls


def _kept(function: Function) -> Function:
    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        wrapper.count += 1  # type: ignore[attr-defined]
        return function(*args, **options)

    wrapper.count = 0  # type: ignore[attr-defined]
    return wrapper


def _in_a_list(function: Function) -> Function:
    inside = [function]
    return functools.wraps(function)(lambda *args, **options: inside[0](*args, **options))


def test_decorated(calls: list[Any]) -> None:
    """Decorators run as before, one around the other; and one that hides what it wraps is a reason."""
    module = attention(halves, decorator="@kept\n    @kept", kept=_kept)
    given = problem(halves)
    expected = run(module, given)
    fastops.patch(module, only=["rope"])
    same(run(module, given), expected, torch.float32)
    assert len(calls) == 1
    hidden = attention(halves, decorator="@hide", hide=_in_a_list)
    with pytest.warns(UserWarning, match="nothing was swapped"):
        report = fastops.patch(hidden, only=["rope"])
    assert report.left == {"": "Attention: its forward is decorated by what does not hold it in a closure"}


@pytest.mark.filterwarnings("ignore:.*nothing was swapped")
def test_left() -> None:
    module = attention(halves)
    module.forward = functools.partial(type(module).forward, module)
    report = fastops.patch(module, only=["rope"])
    assert report.left == {"": "Attention: its forward was replaced on the instance"}


def of_ours(q, k, cos, sin):
    return fastops.rope(q, k, cos, sin)


def test_bits(calls: list[Any]) -> None:
    """With verify="bits" a function of the same bits is swapped, and one that rounds more often is left."""
    module = attention(of_ours).bfloat16()
    report = fastops.patch(module, only=["rope"], verify="bits")
    assert list(report.swapped) == [""]
    given = problem(of_ours, torch.bfloat16)
    assert all(torch.equal(a, b) for a, b in zip(module(*given), of_ours(*given), strict=True))
    assert len(calls) == 1
    with pytest.warns(UserWarning, match="nothing was swapped"):
        report = fastops.patch(attention(halves).bfloat16(), only=["rope"], verify="bits")
    assert report.left == {"": "Attention: rotate is not a rotation that fastops has, bit for bit"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_first_call_in_modes(reentrant: bool, calls: list[Any]) -> None:
    """Proofs at the first call see neither a checkpoint's hooks, autocast, inference, nor a device's mode."""
    module, given = attention(halves), problem(halves)
    expected = run(module, given)
    fastops.patch(module, only=["rope"])
    found = checkpoint(module, *given, use_reentrant=reentrant)
    directions = [torch.linspace(-1, 1, y.numel()).view(y.shape) for y in found]
    for x in given[:2]:
        x.grad = None
    torch.autograd.backward(found, directions)
    same([*found, given[0].grad, given[1].grad], expected, torch.float32)
    half = [x.detach().bfloat16() for x in given]
    wanted = halves(*half)
    calls.clear()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        found = module(*half)
    assert len(calls) == 1
    same([x.bfloat16() for x in found], list(wanted), torch.bfloat16)


def test_compile(calls: list[Any]) -> None:
    """Without a break, by the function itself, and again after undo."""
    torch._dynamo.reset()
    module, given = attention(halves, decorator="@passing", passing=_passing), problem(halves)
    expected = run(module, given)
    report = fastops.patch(module, only=["rope"])
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    same(run(compiled, given), expected, torch.float32)
    assert not calls
    same(run(module, given), expected, torch.float32)
    assert len(calls) == 1
    report.undo()
    same(run(compiled, given), expected, torch.float32)


def _passing(function: Function) -> Function:
    return functools.wraps(function)(lambda *args, **options: function(*args, **options))


def test_vmap(calls: list[Any]) -> None:
    module, given = attention(halves), [x.detach() for x in problem(halves)]
    batches = [torch.stack((x, 2 * x)) for x in given]
    expected = torch.vmap(module)(*batches)
    fastops.patch(module, only=["rope"])
    same(list(torch.vmap(module)(*batches)), list(expected), torch.float32)
    assert len(calls) == 1


@pytest.fixture
def empty() -> dict[str, Any]:
    space: dict[str, Any] = {"a": 1, "b": 2}
    exec("def f(x, y=3, *, z=4):\n    return [a, b, len((x, y, z)), (lambda: b)(), [a for _ in '12']]", space)
    return space


def test_rebound(empty: dict[str, Any]) -> None:
    """One global in place of another, in what the function holds too; builtins and later values of the rest."""
    function = empty["f"]
    made = rebinding.rebound(function, {"a": 10})
    assert type(made) is FunctionType
    assert made(0) == [10, 2, 3, 2, [10, 10]]
    empty["b"] = 5
    assert made(0) == [10, 5, 3, 5, [10, 10]]
    empty["len"] = lambda _: 8
    assert made(0, z=9) == [10, 5, 8, 5, [10, 10]]
    del empty["b"]
    with pytest.raises(NameError, match="'b' is not defined"):
        made(0)
    assert function.__globals__ is empty
    assert empty["a"] == 1
    assert made.__kwdefaults__ == {"z": 4}
    assert made.__defaults__ == (3,)
    assert {"a", "b", "len"} <= rebinding.loaded_globals(function.__code__)
