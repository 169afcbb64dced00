"""Finder of what turns queries and keys: the function that a forward calls by a global name.

The forward of the swapped class is the same code with that one global bound to ours. The module that defines the
function, other models of it among them, never hears of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product, zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from ..ops.rope import rope
from .calls import calls_of, this_thread
from .proof import HALF_ULPS, VALUES, attributes, numbers, remembered, unlike_its_class
from .rebinding import global_values, rebound, wrappers
from .swap import Members, Module, Site, Swap

Function = Callable[..., Any]


class Layout(NamedTuple):
    """How q, k and the tables lie: B, H, S, D are the batch, the heads, the sequence and a head's numbers."""

    q: str
    tables: str


LAYOUTS = (
    Layout("BHSD", "BSD"),
    Layout("BSHD", "BSD"),
    Layout("BHSD", "SD"),
    Layout("BSHD", "SD"),
    Layout("SHD", "SD"),
)
# All sizes differ, so that nothing broadcasts by chance. A second problem has tables of one batch for all.
SIZES = ({"B": 2, "H": 3, "S": 5, "D": 16}, {"B": 3, "H": 4, "S": 6, "D": 32})
# Widths of the tables in both problems: all of the head's width, half of it, more than half, or less.
WIDTHS = {"whole": (16, 32), "half": (8, 16), "most": (12, 20), "few": (4, 6)}
# What tables of such a width may mean: (they hold one number for each pair, the last numbers of a head are rotated).
# Tables of half of the head's width fit a rotation of the whole head and one of half of it: both are tried.
READINGS = {
    "whole": ((False, False),),
    "half": ((True, False), (False, False), (False, True)),
    "most": ((False, False), (False, True)),
    "few": ((False, False), (True, False), (False, True), (True, True)),
}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Form(NamedTuple):
    """The rotation of ours that a function computes."""

    interleaved: bool
    first_half: bool  # only the first half of the tables is read, each number for both of a pair
    gathered: bool  # the results hold the first numbers of all pairs, then the second ones
    per_pair: bool  # the tables hold one number for each pair, so that twice their width is rotated
    at_end: bool  # the last numbers of a head are rotated, in place of the first
    seq_dim: int
    promoted: bool = False  # q and k become what q * cos would be, where the tables' dtype is wider
    is_single: bool = False  # the result is one tensor, in place of a tuple

    def __call__(
        self, q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, kind: str
    ) -> tuple[Tensor, Tensor | None]:
        width = cos.shape[-1]
        if self.first_half:
            cos, sin = cos[..., : width // 2], sin[..., : width // 2]
        if self.promoted:
            q, k = q.to(cos.dtype), None if k is None else k.to(cos.dtype)
        if kind == "whole" and self[:6] == _USUAL:
            return rope(q, k, cos, sin)  # each argument costs time
        rotary = 2 * width if self.per_pair else width
        options: dict[str, Any] = {"rotary_dim": rotary, "interleaved": self.interleaved, "seq_dim": self.seq_dim}
        if not self.at_end and not self.gathered:
            return rope(q, k, cos, sin, **options)
        at = slice(q.shape[-1] - rotary, None) if self.at_end else slice(rotary)
        of_q, of_k = rope(q[..., at], None if k is None else k[..., at], cos, sin, **options)
        return self._join(q, of_q), None if k is None or of_k is None else self._join(k, of_k)

    def _join(self, x: Tensor, turned: Tensor) -> Tensor:
        """Return a head's rotated numbers in the function's order, beside those that are not rotated."""
        width, rotary = x.shape[-1], turned.shape[-1]
        if self.gathered:
            turned = turned.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        if rotary == width:
            return turned
        parts = (x[..., : width - rotary], turned) if self.at_end else (turned, x[..., rotary:])
        return torch.cat(parts, -1)

    def __str__(self) -> str:
        return f"rope{'(interleaved)' if self.interleaved else ''}{' in halves' if self.gathered else ''}"


_USUAL = (False, False, False, False, False, -2)


class Call(NamedTuple):
    """What of a call decides which form it has."""

    axis: int | None  # unsqueeze_dim, where it is given
    q_dims: int
    table_dims: int
    kind: str  # of the tables' width, a key of WIDTHS
    dtype: torch.dtype
    table_dtype: torch.dtype
    has_k: bool  # k is given and not None


class Signature(NamedTuple):
    rotated: tuple[str, ...]  # one or two, q and k by whatever name
    leading: Mapping[str, Any]  # defaults of the parameters up to cos and sin; Parameter.empty: it has none
    has_axis: bool  # unsqueeze_dim
    defaults: Mapping[str, Any]  # of all others


class Running(NamedTuple):
    """What a call of a module that is nothing but its forward runs."""

    of_class: Any
    of_instance: Any
    training: bool
    hooked: bool


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def running(function: Any) -> Running | None:
    """None: a function, which runs itself."""
    if not isinstance(function, Module):
        return None
    hooked = any(function.__dict__[hooks] for hooks in _HOOKS)
    return Running(type(function).forward, function.__dict__.get("forward"), function.training, hooked)


def is_function(value: Any) -> bool:
    """A function, or a module without state and hooks: Hugging Face's ``kernels`` makes one of a function."""
    runs = running(value)
    if runs is None:
        return callable(value) and not isinstance(value, type)
    has_state = attributes(value).keys() - {"forward"} or value._parameters or value._buffers or value._modules
    return not has_state and not runs.hooked


def parameters_of(function: Function) -> list[inspect.Parameter]:
    called = function.forward if isinstance(function, Module) else function
    return list(inspect.signature(called).parameters.values())


def signature_of(function: Any) -> Signature | None:
    """Of a function of one or two tensors, then cos and sin in either order, and nothing else that must be given."""
    if not is_function(function):
        return None
    try:
        parameters = parameters_of(function)
    except (TypeError, ValueError):
        return None
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(names) != len(parameters) or not {"cos", "sin"} <= set(names):
        return None
    first = min(names.index("cos"), names.index("sin"))
    if first not in (1, 2) or set(names[first : first + 2]) != {"cos", "sin"}:
        return None
    defaults = {p.name: p.default for p in parameters[first + 2 :]}
    if inspect.Parameter.empty in defaults.values():
        return None
    leading = {p.name: p.default for p in parameters[: first + 2]}
    return Signature(tuple(names[:first]), leading, defaults.pop("unsqueeze_dim", None) is not None, defaults)


def find_rope(site: Site) -> Swap | str | None:
    cls = type(site.module)
    forward = getattr(cls, "forward", None)
    functions = {} if forward is None else _functions_of(site, forward)
    if not functions:
        return None
    if why := unlike_its_class(site.module):
        return why
    dtype = next((p.dtype for p in site.module.parameters() if p.dtype in DTYPES), torch.float32)
    replacements: dict[str, Function] = {}
    forms: dict[str, Form] = {}
    bits = site.verify == "bits"
    for name, (function, signature) in functions.items():
        proofs: Proofs = remembered(site, ("rope", function), functools.partial(Proofs, function, signature, bits))
        form = proofs.usual(dtype)
        if form is not None:
            forms[name] = form
            replacements[name] = _replacement(signature, proofs)
    others = [name for name in functions if name not in replacements]
    refused = f"{', '.join(others)} is not a rotation that fastops has{', bit for bit' if bits else ''}"
    if not replacements:
        return refused
    eager = rebound(forward, replacements)  # type: ignore[arg-type]
    if eager is None:
        return "its forward is decorated by what does not hold it in a closure"
    proved = tuple((name, functions[name][0], running(functions[name][0])) for name in replacements)
    return Swap(
        ", ".join(f"{name} as {form}" for name, form in forms.items()),
        ("rope", forward, *proved, site.verify),
        lambda: _members(cls, forward, eager, proved),
        left=refused if others else None,
        counts_calls=True,
    )


def _functions_of(site: Site, forward: Function) -> dict[str, tuple[Function, Signature]]:
    def find() -> dict[str, tuple[Function, Signature]]:
        found = ((name, value, signature_of(value)) for name, value in global_values(forward))
        return {name: (value, signature) for name, value, signature in found if signature is not None}

    return remembered(site, ("rotary functions", forward), find)


def _members(cls: Any, forward: Any, eager: Any, proved: Sequence[tuple[str, Any, Running | None]]) -> Members:
    namespace = wrappers(forward)[-1].__globals__  # type: ignore[attr-defined]

    def changed() -> bool:
        """Whether the class, its module or the function has another since, as by ``kernelize``, which then is meant."""
        if cls.forward is not forward:
            return True
        for name, function, runs in proved:
            if namespace.get(name) is not function or (runs is not None and running(function) != runs):
                return True
        return False

    @functools.wraps(forward)
    def of_class(self: Module, *args: Any, **kwargs: Any) -> Any:
        # torch.compile fuses the function itself with what surrounds it.
        if torch.compiler.is_compiling():
            return cls.forward(self, *args, **kwargs)
        calls = calls_of(self)
        if changed():
            calls.made += 1
            return cls.forward(self, *args, **kwargs)
        outer, this_thread.calls = this_thread.calls, calls
        try:
            return eager(self, *args, **kwargs)
        finally:
            this_thread.calls = outer

    return {"forward": of_class}


def _replacement(signature: Signature, proofs: Proofs) -> Function:
    """Return a function that calls ours where that was proved, and the original for all other calls."""
    function, defaults, leading = proofs.function, signature.defaults, signature.leading
    names = tuple(parameter.name for parameter in parameters_of(function))
    pair = len(signature.rotated) == 2
    usual, at_cos, at_sin = len(leading), names.index("cos"), names.index("sin")

    # What a module has in its __dict__ is no attribute of a function.
    @functools.wraps(function, updated=() if isinstance(function, Module) else functools.WRAPPER_UPDATES)
    def turned(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # Dynamo must not guard on a count
            return function(*args, **kwargs)
        calls = this_thread.calls
        calls.made += 1
        if len(args) == usual and not kwargs:
            given, axis, plain = args, None, True
        else:
            named = dict(zip(names, args, strict=False)) | kwargs
            given = tuple(named.pop(name, default) for name, default in leading.items())
            axis = named.pop("unsqueeze_dim", None)
            plain = all(value is defaults.get(name, named) for name, value in named.items())
        if plain:
            found = _ours(proofs, axis, given[0], given[1] if pair else None, given[at_cos], given[at_sin])
            if found is not None:
                calls.ran += 1
                return found
        return function(*args, **kwargs)

    return turned


def _ours(proofs: Proofs, axis: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """Return the function's results, computed by ours, or None if this kind of call was not proved."""
    if not (_is_plain(q) and _is_plain(cos) and _is_plain(sin) and (k is None or _is_plain(k))):
        return None
    if axis is not None and type(axis) is not int:
        return None
    shape, table = q.shape, cos.shape
    if not shape or not table or sin.shape != table or sin.dtype != cos.dtype:
        return None
    width, dim = table[-1], shape[-1]
    if width > dim:
        return None
    kind = "whole" if width == dim else "half" if 2 * width == dim else "most" if 2 * width > dim else "few"
    form = proofs.of((axis, len(shape), len(table), kind, q.dtype, cos.dtype, k is not None))
    if form is None or (width % 2 and not form.per_pair):
        return None
    if k is not None and (k.dtype != q.dtype or not _alike(form, k.shape, shape)):
        return None
    # A row for each token, and as many batches or one.
    if shape[form.seq_dim] != table[-2] or (len(table) == 3 and table[0] != 1 and table[0] != shape[0]):
        return None
    found = form(q, k, cos, sin, kind)
    return found[0] if form.is_single else found


def _is_plain(x: Any) -> bool:
    return type(x) is Tensor or isinstance(x, FakeTensor)


def _alike(form: Form, one: torch.Size, other: torch.Size) -> bool:
    """Whether two shapes differ in their heads alone."""
    heads = -2 if form.seq_dim == -3 else -3
    return len(one) == len(other) and all(one[d] == other[d] for d in range(-len(one), 0) if d != heads)


class Proofs:
    """What was proved of a function, each kind of call when it is first made.

    A proof runs in a thread of its own, which has none of the caller's modes: neither autocast nor saved-tensor hooks,
    as of a checkpoint that counts what is saved.
    """

    def __init__(self, function: Function, signature: Signature, bits: bool) -> None:
        self.function, self.signature, self.bits = function, signature, bits
        self._forms: dict[tuple[Any, ...], Form | None] = {}

    def of(self, call: tuple[Any, ...]) -> Form | None:
        """The form that computes the same as a :class:`Call`, or None."""
        if call not in self._forms:
            with ThreadPoolExecutor(1) as thread:
                self._forms[call] = thread.submit(self._prove, Call(*call)).result()
        return self._forms[call]

    def usual(self, dtype: torch.dtype) -> Form | None:
        """Return the form of a call with the required arguments alone, in the first layout that the function takes."""
        has_k = len(self.signature.rotated) == 2
        layouts = ((len(q), len(tables), kind) for (q, tables), kind in product(LAYOUTS, WIDTHS))
        calls = (Call(None, *layout, dtype, dtype, has_k) for layout in layouts)
        return next((form for call in calls if (form := self.of(call)) is not None), None)

    def _prove(self, call: Call) -> Form | None:
        if call.dtype not in DTYPES or call.table_dtype not in DTYPES:
            return None
        exact = call._replace(dtype=torch.float64, table_dtype=torch.float64)
        for layout in LAYOUTS:
            if (len(layout.q), len(layout.tables)) == (call.q_dims, call.table_dims):
                trials = [Trial.of(self.function, self.signature, layout, exact, n) for n in (0, 1)]
                form = next((f for f in _candidates(layout, call.kind) if all(t and t.agrees(f) for t in trials)), None)
                if form is not None and trials[0] is not None:
                    return self._in_its_dtypes(form._replace(is_single=trials[0].is_single), layout, call)
        return None

    def _in_its_dtypes(self, form: Form, layout: Layout, call: Call) -> Form | None:
        trial = Trial.of(self.function, self.signature, layout, call, 0)
        wider = (form, form._replace(promoted=True)) if call.table_dtype.itemsize > call.dtype.itemsize else (form,)
        return next((f for f in wider if trial and trial.agrees(f, self.bits)), None)


def _candidates(layout: Layout, kind: str) -> list[Form]:
    """Return the forms that the tables' width allows, the usual ones first."""
    seq_dim = layout.q.index("S") - len(layout.q)
    orders = ((False, False), (True, False), (True, True))  # interleaved, and gathered afterwards
    return [
        Form(interleaved, first_half, gathered, per_pair, at_end, seq_dim)
        for per_pair, at_end in READINGS[kind]
        for first_half in ((False,) if per_pair else (False, True))
        for interleaved, gathered in orders
    ]


class Trial(NamedTuple):
    """A problem, what the function gave for it, and in float64 the gradients."""

    rotated: tuple[Tensor, ...]
    cos: Tensor
    sin: Tensor
    kind: str
    expected: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...] | None
    is_single: bool  # the function returned one tensor, and no tuple

    @classmethod
    def of(cls, function: Function, signature: Signature, layout: Layout, call: Call, problem: int) -> Trial | None:
        """Return None if the function does not take the problem, or returns something else than what it rotates."""
        sizes, axis, dtype = SIZES[problem], call.axis, call.dtype
        shape = [sizes[d] for d in layout.q]
        keys = [sizes[d] - 1 if d == "H" else sizes[d] for d in layout.q]
        of_table = [1 if d == "B" and problem else sizes[d] for d in layout.tables[:-1]]
        of_table.append(WIDTHS[call.kind][problem])
        both = [numbers(tuple(s), seed).to(dtype).requires_grad_() for s, seed in ((shape, 1), (keys, 2))]
        rotated = tuple(both[: 1 + call.has_k])
        cos, sin = (numbers(tuple(of_table), seed).to(call.table_dtype) for seed in (3, 4))
        given = dict(zip_longest(signature.rotated, rotated)) | {"cos": cos, "sin": sin}
        try:
            found = function(**given, **({} if axis is None else {"unsqueeze_dim": axis}))
        except Exception:  # whatever it says to shapes that it does not take
            return None
        is_single = isinstance(found, Tensor)
        if not is_single and (type(found) is not tuple or len(found) != 2):
            return None
        results = (found,) if is_single else found
        without = [None] * (len(results) - len(rotated))  # the result for a k that is None
        if [getattr(y, "shape", y) for y in results] != [*(x.shape for x in rotated), *without]:
            return None
        expected = results[: len(rotated)]
        gradients = _gradients(expected, rotated) if dtype == torch.float64 else None
        return cls(rotated, cos, sin, call.kind, tuple(y.detach() for y in expected), gradients, is_single)

    def agrees(self, form: Form, bits: bool = False) -> bool:
        pair = len(self.rotated) == 2
        try:
            found = form(self.rotated[0], self.rotated[1] if pair else None, self.cos, self.sin, self.kind)
        except RuntimeError:
            return False
        ours = tuple(y for y in found if y is not None)
        dtype = self.rotated[0].dtype
        if not all(_close(y, y0, dtype, bits) for y, y0 in zip(ours, self.expected, strict=True)):
            return False
        if dtype != torch.float64:
            return True
        gradients = _gradients(ours, self.rotated)
        if gradients is None or self.gradients is None:
            return False
        return all(_close(g, g0, dtype, False) for g, g0 in zip(gradients, self.gradients, strict=True))


def _gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    if not all(y.requires_grad for y in outputs):
        return None
    directions = [numbers(tuple(y.shape), 5).to(y) for y in outputs]
    found = torch.autograd.grad(outputs, inputs, directions, allow_unused=True)
    return None if any(g is None for g in found) else found


def _close(found: Tensor, expected: Tensor, computed: torch.dtype, bits: bool) -> bool:
    """Within roundings of the largest number: a function may round both products, and their sum may be small."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if bits:
        return torch.equal(found, expected)
    bound = VALUES if computed.itemsize >= 4 else HALF_ULPS * torch.finfo(computed).eps
    a, b = found.detach().double(), expected.detach().double()
    return float((a - b).abs().max()) <= bound * float(b.abs().max())
