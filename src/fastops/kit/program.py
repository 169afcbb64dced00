"""Ops that are defined at run time and run by the extension: their registration, and their kernels as calls need them.

The other half is cpp/kit/program.h.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .. import _C
from .._operator import keep_error
from .._promotion import promoted
from .._registration import on_one_device
from . import compiler, expression, nvrtc
from .errors import KitError, NoCompiler

SPACE = "fastops_kit"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # in the order of cpp/core/dtype.h

MOST_ARGUMENTS = 64  # of an op of torch's

_library = torch.library.Library(SPACE, "FRAGMENT")
_programs: dict[int, Program] = {}
_by_name: dict[str, Any] = {}
_lock = threading.RLock()


def _for_cpp(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as the extension calls it: what it raises, Ctrl-C too, is raised again behind the extension."""

    def call(*inputs: Any) -> Any:
        try:
            return function(*inputs)
        except BaseException as error:
            keep_error(error)
            raise

    return call


class Undispatched:
    """A function in the place of an op of torch's, as far as :class:`Differentiable` asks."""

    def __init__(self, function: Callable[..., Any], outputs: int) -> None:
        self._op = self._function = function
        self._schema = SimpleNamespace(arguments=(), returns=(None,) * outputs)

    @property
    def overloadpacket(self) -> Undispatched:
        return self

    def __call__(self, *inputs: Any) -> Any:
        return self._function(*inputs)


class Program:
    """An op of torch's, ``raw``, whose kernels are compiled at the first call for their dtypes, device and variant.

    One with more tensors or scalars than kernels take, as high derivatives have, runs the reference. With more
    arguments than torch's dispatcher takes, it is no op of torch's: ``raw`` is the reference itself.

    Args:
        name: for people.
        tensors, scalars: the names of the arguments, tensors first.
        outputs: how many.
        content: text that differs where the function does. The op is named by its hash: nothing that torch.compile
            has cached for one function is then ever used for another.
        more: further arguments in the schema, between the scalars and the end.
    """

    cuda_compilers = "NVRTC"

    def __init__(
        self, name: str, tensors: Sequence[str], scalars: Sequence[str], outputs: int, content: str, more: str = ""
    ) -> None:
        self.name, self.tensors, self.scalars, self.outputs = name, tuple(tensors), tuple(scalars), outputs
        self.op = f"{name}_{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        self.paths: dict[tuple[int, tuple[int, ...]], str] = {}  # by device and dtypes: what runs
        self._compiled: set[tuple[int, tuple[int, ...], int]] = set()
        self._compiling = threading.RLock()  # others are compiled at the same time
        qualified = f"{SPACE}::{self.op}"
        self.fits = len(tensors) + outputs <= _C.kit_max_operands and len(scalars) <= _C.kit_max_scalars
        self.number = -1
        if self.fits:
            self.number = _C.kit_define(name, f"{qualified}_reference", list(tensors), len(scalars), outputs)
            _programs[self.number] = self
        arguments = [f"Tensor {t}" for t in tensors] + [f"float {s}" for s in scalars]
        arguments += more.split(", ") if more else []
        self.raw: Any = Undispatched(self.reference, outputs)
        if len(arguments) >= MOST_ARGUMENTS:  # and one more for the number
            return
        results = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
        for op, reference in ((self.op, self.reference), (f"{self.op}_reference", _for_cpp(self.reference))):
            _library.define(f"{op}({', '.join(arguments)}, *, int program={self.number}) -> {results}")
            _library.impl(op, reference, "CompositeExplicitAutograd")
        if self.fits:
            _C.kit_implement(qualified, bool(more))
        torch.library.register_fake(qualified, on_one_device(name, self.fake), lib=_library)
        self.raw = getattr(getattr(torch.ops, SPACE), self.op).default

    def reference(self, *inputs: Any) -> Any:
        """The same in plain PyTorch."""
        raise NotImplementedError

    def fake(self, *inputs: Any) -> Any:
        """Empty outputs of the right shape, strides and dtype."""
        raise NotImplementedError

    def cpp(self, dtypes: Sequence[int]) -> str:
        """C++ source with an ``extern "C"`` function ``loop``."""
        raise NotImplementedError

    def cuda(self, dtypes: Sequence[int], variant: int) -> str:
        """CUDA source of one kernel, ``kit_kernel``."""
        raise NotImplementedError

    def ensure(self, dtypes: Sequence[int], device: int, variant: int) -> None:
        """:meth:`compile`, but once."""
        place = (device, tuple(dtypes), variant)
        if not self.fits or place in self._compiled:
            return
        with self._compiling:
            if place not in self._compiled:
                self.compile(dtypes, device, variant)
                self._compiled.add(place)

    def compile(self, dtypes: Sequence[int], device: int, variant: int) -> None:
        """Hand the extension a kernel, or the word that there is none.

        Args:
            dtypes: indices into ``DTYPES``: the results', then each tensor's.
            device: of CUDA; -1 is the CPU.
            variant: one of the kind's own.
        """
        try:
            if device < 0:
                library = compiler.shared_library(self.cpp(dtypes), name=self.name, options=expression.CPP_OPTIONS)
                address = ctypes.cast(library.loop, ctypes.c_void_p).value or 0
                _C.kit_add_kernel(self.number, _key(dtypes), device, variant, address)
                self.paths[device, tuple(dtypes)] = f"C++ compiled by {compiler.available()}"
            else:
                self.add_cuda_kernel(dtypes, device, variant)
        except NoCompiler as error:
            _C.kit_add_kernel(self.number, _key(dtypes), device, variant, 0)
            self.paths[device, tuple(dtypes)] = f"plain PyTorch: {error}"
            _warn(self.name, str(error), "CUDA" if device >= 0 else "CPU")

    def add_cuda_kernel(self, dtypes: Sequence[int], device: int, variant: int) -> None:
        """What :meth:`compile` does on CUDA where there is a compiler; else NoCompiler."""
        arch = nvrtc.arch_of(device)
        image = _C.kit_load(self.cuda_image(dtypes, variant, arch))
        _C.kit_add_cuda_kernel(self.number, _key(dtypes), device, variant, image, "kit_kernel")
        self.paths[device, tuple(dtypes)] = f"CUDA compiled by {self.cuda_compilers} for {arch}"

    def cuda_image(self, dtypes: Sequence[int], variant: int, arch: str) -> bytes:
        """The machine code of one kernel. Needs no GPU."""
        return nvrtc.compile(self.cuda(dtypes, variant), name=self.name, arch=arch).cubin


def _key(dtypes: Sequence[int]) -> int:
    """As the extension knows a combination of dtypes: two bits for each."""
    return sum(dtype << 2 * k for k, dtype in enumerate(dtypes))


class Kernels(NamedTuple):
    """Some of a program's: for the dtypes of its results and of each tensor."""

    program: Program
    dtypes: Sequence[torch.dtype]
    variants: Sequence[int]


def prepared(
    name: str,
    dtypes: Sequence[torch.dtype],
    device: torch.device | str | int,
    kernels: Callable[[torch.dtype], Iterable[Kernels]],
) -> None:
    """Compiles what ``kernels`` names for tensors that are all of one of these dtypes."""
    try:
        place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError):
        raise KitError(f"[{name}] prepare expected a CPU or CUDA device, got {device!r}") from None
    if place.type not in ("cpu", "cuda"):
        raise KitError(f"[{name}] prepare expected a CPU or CUDA device, got {place}")
    if unknown := [dtype for dtype in dtypes if dtype not in DTYPES]:
        raise KitError(f"[{name}] prepare expected dtypes of {', '.join(map(str, DTYPES))}, got {unknown[0]}")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise KitError(f"[{name}] prepare found no CUDA device: device='cpu' is for the CPU")
    index = -1 if place.type == "cpu" else torch.cuda.current_device() if place.index is None else place.index
    for dtype in dtypes:
        for program, of, variants in kernels(dtype):
            for variant in variants if index >= 0 else (0,):
                program.ensure([DTYPES.index(x) for x in of], index, variant)


def explained(program: Program, tensors: Sequence[Tensor]) -> str:
    """What ran for these tensors."""
    device = tensors[0].device
    if not program.fits:
        return (
            f"plain PyTorch: kernels take {_C.kit_max_operands} tensors in and out and {_C.kit_max_scalars} scalars, "
            f"this has {len(program.tensors)} in, {program.outputs} out and {len(program.scalars)}"
        )
    if any(t.device != device for t in tensors):
        return "plain PyTorch: a CPU scalar beside CUDA tensors"
    if any(t.dtype not in DTYPES for t in tensors):
        return "plain PyTorch: kernels take " + ", ".join(map(str, DTYPES))
    place = -1 if device.type == "cpu" else device.index if device.type == "cuda" else None
    dtypes = tuple(DTYPES.index(d) for d in (promoted(tensors), *(t.dtype for t in tensors)))
    none = f"plain PyTorch: no kernels for {device.type}, or more dimensions than they take"
    return none if place is None else program.paths.get((place, dtypes), none)


P = TypeVar("P", bound=Program)


def unique(name: str, make: Callable[[], P]) -> P:
    """The program that was made under this name before, or a new one."""
    with _lock:
        if name not in _by_name:
            _by_name[name] = make()
        return _by_name[name]


_warned: set[tuple[str, str]] = set()


def _warn(name: str, reason: str, device: str) -> None:
    """Once for all ops: what is missing is the same for each."""
    what = (reason.removeprefix(f"[{name}] "), device)
    with _lock:
        if what in _warned:
            return
        _warned.add(what)
    warnings.warn(f"{reason}. Until then {device} tensors take plain PyTorch", stacklevel=2)


def _compile(number: int, dtypes: int, device: int, variant: int) -> None:
    program = _programs[number]
    program.ensure([dtypes >> 2 * k & 3 for k in range(1 + len(program.tensors))], device, variant)


_library.define("compile(int program, int dtypes, int device, int variant) -> ()")
_library.impl("compile", _for_cpp(_compile), "CompositeExplicitAutograd")
