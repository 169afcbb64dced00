"""The typed signature of a kernel, ``const T* x, T* y, int64 n``: what a call must bring, and its bytes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import KitError
from .layouts import special, without_memory
from .number import integer, real
from .source import text_of

_BEFORE = "".join(f'#line 1 "{name}"\n{text_of(name)}' for name in ("types.h", "kernel.h"))


@dataclass(frozen=True)
class Element:
    """A dtype: its C++ type in a kernel, the letter that ``struct`` has for it, and its names in a signature."""

    dtype: torch.dtype
    kernel: str
    code: str
    words: tuple[str, ...]


_ELEMENTS = (
    Element(torch.float32, "float", "f", ("float", "float32")),
    Element(torch.float64, "double", "d", ("double", "float64")),
    Element(torch.float16, "fastops::float16", "H", ("half", "float16")),
    Element(torch.bfloat16, "fastops::bfloat16", "H", ("bfloat16",)),
    Element(torch.bool, "bool", "?", ("bool",)),
    Element(torch.int8, "int8_t", "b", ("int8", "int8_t", "signed char")),
    Element(torch.int16, "int16_t", "h", ("int16", "int16_t", "short")),
    Element(torch.int32, "int32_t", "i", ("int32", "int32_t", "int")),
    Element(torch.int64, "int64_t", "q", ("int64", "int64_t", "long", "long long")),
    Element(torch.uint8, "uint8_t", "B", ("uint8", "uint8_t", "unsigned char")),
    Element(torch.uint16, "uint16_t", "H", ("uint16", "uint16_t", "unsigned short")),
    Element(torch.uint32, "uint32_t", "I", ("uint32", "uint32_t", "unsigned", "unsigned int")),
    Element(torch.uint64, "uint64_t", "Q", ("uint64", "uint64_t", "size_t", "unsigned long", "unsigned long long")),
)
# torch.autograd.graph.increment_version of several tensors, at half its time.
increment_version: Callable[[Sequence[Tensor]], None] = torch._C._increment_version  # type: ignore[attr-defined]

_BY_DTYPE = {element.dtype: element for element in _ELEMENTS}
_BY_WORD = {word: element.dtype for element in _ELEMENTS for word in element.words}
_FLOATING = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_PARAMETER = re.compile(r"(?P<const>const\s+)?(?P<type>\w+(?:\s+\w+)*?)\s*(?P<pointer>\*?)\s*\b(?P<name>[A-Za-z_]\w*)")


@dataclass(frozen=True)
class Parameter:
    """One argument of a kernel: a tensor (``pointer``) or a number; ``variable``: its type is bound by the call."""

    name: str
    type: str
    pointer: bool
    const: bool

    @property
    def variable(self) -> bool:
        return self.type not in _BY_WORD

    def __str__(self) -> str:
        return f"{'const ' if self.const else ''}{self.type}{'*' if self.pointer else ''} {self.name}"


class Signature:
    """The parameters of a kernel, and its type variables (``T``) in the order in which they appear.

    Raises:
        KitError: the text is no signature.
    """

    def __init__(self, text: str, name: str):
        self.name = name
        self.parameters = tuple(self._parse(part) for part in text.split(",")) if text.strip() else ()
        names = [p.name for p in self.parameters]
        if twice := {n for n in names if names.count(n) > 1}:
            raise KitError(f"[{name}] a signature must name each parameter once, got {sorted(twice)[0]} twice")
        self.variables = tuple(dict.fromkeys(p.type for p in self.parameters if p.variable))
        self._written = [k for k, p in enumerate(self.parameters) if p.pointer and not p.const]
        for variable in self.variables:
            if not any(p.pointer and p.type == variable for p in self.parameters):
                raise KitError(f"[{name}] type variable {variable} must be the type of a tensor, to be bound by a call")

    def _parse(self, text: str) -> Parameter:
        match = _PARAMETER.fullmatch(text.strip())
        if not match:
            raise KitError(
                f"[{self.name}] a signature must list parameters like 'const T* x' and 'int64 n', got {text.strip()!r}"
            )
        word = " ".join(match["type"].split())
        if word not in _BY_WORD and not re.fullmatch(r"[A-Z]\w*", word):
            known = ", ".join(element.words[0] for element in _ELEMENTS)
            raise KitError(
                f"[{self.name}] {match['name']} must have a type variable such as T as its type, or one of {known}; "
                f"got {word}"
            )
        return Parameter(match["name"], word, bool(match["pointer"]), bool(match["const"]))

    def bind(
        self, arguments: Sequence[Any], device: str, contiguous: bool
    ) -> tuple[tuple[torch.dtype, ...], torch.device]:
        """Checks the arguments of a call, and returns the type variables' dtypes and the tensors' device.

        Args:
            arguments: as many as parameters; None is a null pointer.
            device: the type that every tensor's device must be of, ``cuda`` or ``cpu``.
            contiguous: whether every tensor must be.
        """
        if len(arguments) != len(self.parameters):
            listed = ", ".join(map(str, self.parameters))
            raise KitError(f"[{self.name}] expected {len(self.parameters)} arguments ({listed}), got {len(arguments)}")
        bound: dict[str, torch.dtype] = {}
        found: torch.device | None = None
        for parameter, value in zip(self.parameters, arguments, strict=True):
            if not parameter.pointer:
                self._check_number(parameter, value)
                continue
            if value is None:
                continue
            self._check_tensor(parameter, value, device, contiguous)
            if found is None:
                found = value.device
            elif value.device != found:
                raise KitError(f"[{self.name}] all tensors must be on one device, got {found} and {value.device}")
            wanted = bound.setdefault(parameter.type, value.dtype) if parameter.variable else _BY_WORD[parameter.type]
            if value.dtype != wanted or wanted not in _BY_DTYPE:
                expected = str(wanted) if wanted in _BY_DTYPE else "a real one"
                what = f" by {parameter.type}" if parameter.variable and wanted in _BY_DTYPE else ""
                raise KitError(f"[{self.name}] {parameter.name} must have dtype {expected}{what}, got {value.dtype}")
        unbound = next((v for v in self.variables if v not in bound), None)
        if unbound or found is None:
            raise KitError(
                f"[{self.name}] at least one tensor{f' of type {unbound}' if unbound else ''} must not be None"
            )
        return tuple(bound[v] for v in self.variables), found

    def _check_tensor(self, parameter: Parameter, value: Any, device: str, contiguous: bool) -> None:
        where = f"[{self.name}] {parameter.name} must be"
        if type(value) not in (Tensor, torch.nn.Parameter):
            kind = type(value).__name__
            hint = ": wrap the kernel by kit.op, which torch.compile and its fake tensors understand"
            raise KitError(f"{where} a plain tensor, got {kind}{hint if isinstance(value, Tensor) else ''}")
        if value.device.type != device:
            raise KitError(f"{where} on a {device.upper()} device, got {value.device}")
        # Of the rest of what has no elements of its own in memory, data_ptr says so.
        if value.is_nested or value.layout is not torch.strided:
            raise KitError(f"{where} a dense tensor, got {special(value)}")
        if contiguous and not value.is_contiguous():
            raise KitError(
                f"{where} contiguous, got strides {list(value.stride())} of shape {list(value.shape)}: "
                "call .contiguous(), or define the kernel with contiguous=False and pass it the strides"
            )
        if value.is_neg():
            raise KitError(f"{where} without a pending sign: call .resolve_neg()")
        if value.requires_grad and torch.is_grad_enabled():
            raise KitError(
                f"{where} without grad, for a kernel has no gradient: give it one by kit.op, or use torch.no_grad()"
            )

    def _check_number(self, parameter: Parameter, value: Any) -> None:
        convert = real if parameter.variable or _BY_WORD[parameter.type] in _FLOATING else integer
        try:
            convert(value)
        except TypeError as error:
            hint = " (use .item(), which waits for the device)" if isinstance(value, Tensor) else ""
            raise KitError(f"[{self.name}] {parameter.name} {error}{hint}") from None

    def types(self, dtypes: Sequence[torch.dtype]) -> dict[str, torch.dtype]:
        """The type variables with these dtypes."""
        if len(dtypes) != len(self.variables):
            listed = ", ".join(self.variables) or "none"
            raise KitError(f"[{self.name}] expected a dtype for each type variable ({listed}), got {len(dtypes)}")
        for dtype in dtypes:
            if dtype not in _BY_DTYPE:
                raise KitError(f"[{self.name}] no kernel has dtype {dtype}")
        return dict(zip(self.variables, dtypes, strict=True))

    def packing(self, types: Mapping[str, torch.dtype]) -> Packing:
        return Packing(self, tuple(types.get(p.type) or _BY_WORD[p.type] for p in self.parameters))

    def prelude(self, types: Mapping[str, torch.dtype]) -> str:
        """What comes before the source: the element types and the type variables, then line 1 of the user's own."""
        aliases = "".join(f"using {name} = {_BY_DTYPE[dtype].kernel};\n" for name, dtype in types.items())
        return f'{_BEFORE}{aliases}#line 1 "{self.name}"\n'

    def checks(self, function: str) -> str:
        """What comes behind it: ``function`` must have this signature."""
        hint = "" if "<" in function else f'  // of a template: name="{function}<T>"'
        count = len(self.parameters)
        # In a template, so that a function that is not there is one error and not one more for each parameter.
        lines = [
            f'\n#line 1 "signature of {self.name}"',
            "template <class Function> constexpr bool fastops_kit_fits() {",
            f"  static_assert(fastops::kit::parameters<Function>::count == {count}, "
            f'"{function} must have the {count} parameters of the signature");',
        ]
        for k, p in enumerate(self.parameters):
            written = _written(p)
            # The half types have other names in C++ than in a signature.
            write = f": write {written} {p.name}" if "fastops::" in written else ""
            lines.append(
                f"  static_assert(fastops::kit::alike<fastops::kit::parameter<{k}, Function>, {written}>, "
                f"\"parameter {k + 1} of {function} must be '{p}', as the signature has it{write}\");"
            )
        lines += ["  return true;", "}", f"static_assert(fastops_kit_fits<decltype(&{function})>());{hint}"]
        return "\n".join(lines) + "\n"

    def declarations(self) -> str:
        """The parameters as members of a struct, laid out as ``Packing`` does."""
        return " ".join(f"{_written(p)} {p.name};" for p in self.parameters)

    def passed(self, function: str) -> str:
        """Those members as arguments of ``function``, whose own word for a type of 64 bits may be another."""
        return ", ".join(
            f"(fastops::kit::parameter<{k}, decltype(&{function})>::type)arguments->{p.name}"
            for k, p in enumerate(self.parameters)
        )

    def mark_written(self, arguments: Sequence[Any]) -> None:
        """Before a call writes: autograd is told as torch's own in-place functions tell it, so that no backward reads
        what it had saved in these tensors.
        """
        if written := [arguments[k] for k in self._written if arguments[k] is not None]:
            increment_version(written)


class Packing:
    """A call's arguments as bytes, each at the offset that C gives it in a struct."""

    def __init__(self, signature: Signature, dtypes: Sequence[torch.dtype]):
        self._signature = signature
        self._dtypes = tuple(dtypes)
        pairs = list(zip(signature.parameters, dtypes, strict=True))
        self._codes = ["P" if p.pointer else _BY_DTYPE[dtype].code for p, dtype in pairs]
        self._convert = [_address if p.pointer else _number(dtype) for p, dtype in pairs]
        self._struct = struct.Struct("@" + "".join(self._codes))
        self.offsets = offsets(self._codes)

    def __call__(self, arguments: Sequence[Any]) -> bytes:
        try:
            values = [convert(value) for convert, value in zip(self._convert, arguments, strict=True)]
        except RuntimeError:
            raise self._without_memory(arguments) from None
        try:
            return self._struct.pack(*values)
        except struct.error:
            raise self._misfit(values) from None

    def _without_memory(self, arguments: Sequence[Any]) -> KitError:
        name = self._signature.name
        for parameter, value in zip(self._signature.parameters, arguments, strict=True):
            if isinstance(value, Tensor) and (why := without_memory(value)):
                return KitError(f"[{name}] {parameter.name} must be a tensor with memory of its own, got {why}")
        return KitError(f"[{name}] the arguments cannot be packed")

    def _misfit(self, values: Sequence[Any]) -> KitError:
        parameters = zip(self._signature.parameters, self._dtypes, self._codes, values, strict=True)
        for parameter, dtype, code, value in parameters:
            try:
                struct.pack("@" + code, value)
            except struct.error:
                kind = str(dtype).removeprefix("torch.")
                return KitError(f"[{self._signature.name}] {parameter.name} must fit {kind}, got {value}")
        return KitError(f"[{self._signature.name}] the arguments cannot be packed")


def _written(parameter: Parameter) -> str:
    """Its type in C++."""
    element = parameter.type if parameter.variable else _BY_DTYPE[_BY_WORD[parameter.type]].kernel
    return f"{'const ' if parameter.const else ''}{element}*" if parameter.pointer else element


def offsets(codes: Sequence[str]) -> list[int]:
    """Where ``struct``, and C, put each of these types."""
    # A count of zero pads up to the type's alignment and no more.
    return [struct.calcsize("@" + "".join(codes[:k]) + "0" + code) for k, code in enumerate(codes)]


def _address(tensor: Tensor | None) -> int:
    if tensor is None:
        return 0
    address = tensor.data_ptr()
    if not address and tensor.numel():
        raise RuntimeError(without_memory(tensor))
    return address


def _number(dtype: torch.dtype) -> Callable[[Any], Any]:
    """From what a caller gives to what ``struct`` packs."""
    if dtype in (torch.float16, torch.bfloat16):
        return lambda value: torch.tensor(float(value), dtype=dtype).view(torch.uint16).item()
    if dtype in _FLOATING:
        return float
    return bool if dtype == torch.bool else integer
