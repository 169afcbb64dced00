"""kit.numba_op of a whole ``numba.cuda`` kernel: compiled by Numba, launched as the kit's own kernels are.

Numba's launcher is left out: it takes tensors through ``__cuda_array_interface__``, where torch refuses those that
require grad and names neither bfloat16 nor its stream.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _C
from . import linker, numba_abi, numba_extra, nvrtc
from .content import content_hash
from .cuda_kernel import device_to_prepare
from .errors import CompileError, KitError
from .extent import Launch, Size
from .frozen import Frozen
from .layouts import special, without_memory
from .numba_abi import Kind
from .op import Op, _is_alias_of, op
from .schema import Schema
from .signature import increment_version

_OPTIONS = ("fastmath", "launch_bounds", "lineinfo", "opt")
_WITHOUT_EFFECT = ("forceinline", "inline", "lto")  # on a kernel, compiled as it is here


def numba_kernel(
    function: Callable[..., Any],
    *,
    grid: Size | Sequence[Size],
    block: Size | Sequence[Size] = 256,
    shared: Size = 0,
    schema: str | None = None,
    fake: Callable[..., Any] | None = None,
    **parts: Any,
) -> Op:
    """What :func:`kit.numba_op` makes of a kernel; see there."""
    plain = inspect.unwrap(function)
    if not isinstance(plain, types.FunctionType):
        got = type(function).__name__
        raise KitError(f"[kit.numba_op] expected a function, or what @cuda.jit makes of one, got {got}")
    name = plain.__name__ if plain.__name__.isidentifier() else "function"
    numba_extra.numba(name)
    parameters = tuple(inspect.signature(plain).parameters)
    text = schema or _schema(name, parameters)
    parsed = Schema(text)
    allocate = fake or functools.partial(_like_the_first, len(parsed.outputs))
    launch = Launch(parsed.name, parameters, grid, block, shared)
    options = _options(parsed.name, function)
    kernel = NumbaKernel(Frozen(plain), options, parameters, parsed, launch, allocate, fake is not None)
    return op(text, cuda=kernel, fake=allocate, **parts)


class NumbaKernel:
    """What the op has for CUDA: allocates the outputs, launches on the tensors' device and torch's current stream."""

    def __init__(
        self,
        frozen: Frozen,
        options: dict[str, Any],
        parameters: tuple[str, ...],
        schema: Schema,
        launch: Launch,
        allocate: Callable[..., Any],
        given: bool,
    ) -> None:
        name, named = schema.name, (*schema.arguments, *schema.outputs)
        if set(parameters) != set(named):
            expected, got = ", ".join(named), ", ".join(parameters)
            raise KitError(f"[{name}] the kernel must have the parameters {expected} of the schema, got {got}")
        for argument, kind in schema.types.items():
            if kind not in ("Tensor", *numba_abi.NUMBERS):
                expected = ", ".join(("Tensor", *numba_abi.NUMBERS))
                raise KitError(f"[{name}] {argument} must be of a type that a kernel takes, {expected}, got {kind}")
        self.name = name
        self.content_hash = content_hash(frozen, options, launch.described, allocate)
        self._frozen = frozen
        self._options = options
        self._parameters = parameters
        self._schema = schema
        self._launch = launch
        self._allocate, self._given = allocate, given
        self._ready: dict[tuple[torch.device, tuple[Kind, ...]], _Ready] = {}

    def __call__(self, *inputs: Any) -> Any:
        outputs = self._allocate(*inputs)
        arguments = self._arguments(inputs, outputs)
        device = inputs[0].device
        if sizes := self._launch(arguments):
            kinds = tuple(map(numba_abi.kind, arguments))
            ready = self._ready.get((device, kinds)) or self._prepare(device, kinds)
            packed = self._pack(ready, arguments)
            increment_version(outputs if isinstance(outputs, (tuple, list)) else (outputs,))
            _C.kit_launch(ready.handle, *sizes, packed)
        return outputs

    def _pack(self, ready: _Ready, arguments: Sequence[Any]) -> bytes:
        for parameter, x in zip(self._parameters, arguments, strict=True):
            if isinstance(x, Tensor) and (why := without_memory(x)):
                raise KitError(f"[{self.name}] {parameter} must be a tensor with memory of its own, got {why}")
        return ready.packing(arguments)

    def prepare_call(self, inputs: Sequence[Any], device: torch.device | str | int | None) -> None:
        """Compiles and loads what a call with inputs like these runs on a CUDA device; these may lie elsewhere."""
        chosen = device_to_prepare(self.name, device)
        kinds = tuple(map(numba_abi.kind, self._arguments(inputs, self._allocate(*inputs))))
        if (chosen, kinds) not in self._ready:
            self._prepare(chosen, kinds)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": {}}  # whose handles are addresses in this process

    def __repr__(self) -> str:
        return f"{self.name}, compiled by Numba"

    def image(self, kinds: Sequence[Kind], arch: str) -> bytes:
        """The machine code for parameters of these kinds. Needs no GPU."""
        cuda = numba_extra.numba_cuda(self.name)
        numba_abi.check_arrays(self.name, cuda)
        read = self._schema.arguments
        signature = cuda.types.void(
            *(numba_abi.numba_type(cuda, kind, x in read) for x, kind in zip(self._parameters, kinds, strict=True))
        )
        capability = divmod(int(arch.removeprefix("sm_")), 10)
        how = {"device": False, "abi": "numba", "output": "ltoir", "cc": capability, **self._options}
        try:
            codes, _ = cuda.compile_all(self._frozen.function, signature, **how)
        except Exception as error:  # Numba's, its compilers', or that of a library they do not find
            raise CompileError(f"[{self.name}] Numba does not compile it for {arch}: {error}") from error
        # Of what Numba's own headers give, such as arithmetic of half types, the code is in an object.
        return linker.link([bytes(getattr(code, "code", code)) for code in codes], name=self.name, arch=arch)

    def _arguments(self, inputs: Sequence[Any], outputs: Any) -> list[Any]:
        """The kernel's, in its own order, checked."""
        several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        if len(several) != len(self._schema.outputs):
            raise KitError(f"[{self.name}] fake must return {len(self._schema.outputs)} outputs, got {len(several)}")
        named = dict(zip((*self._schema.arguments, *self._schema.outputs), (*inputs, *several), strict=True))
        arguments = [named[parameter] for parameter in self._parameters]
        if self._given:
            self._check_new(inputs, several)
        device = inputs[0].device
        for parameter, x in zip(self._parameters, arguments, strict=True):
            if not isinstance(x, Tensor):
                continue
            if x.device != device:
                raise KitError(f"[{self.name}] all tensors must be on one device, got {device} and {x.device}")
            if what := special(x):
                raise KitError(f"[{self.name}] {parameter} must be dense, got {what}")
            if x.dtype not in numba_abi.DTYPES:
                raise KitError(f"[{self.name}] {parameter} must have a dtype that Numba has, got {x.dtype}")
        return arguments

    def _check_new(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        """Of what the caller's fake= allocated: the kernel is about to write there."""
        for output, y in zip(self._schema.outputs, outputs, strict=True):
            for argument, x in zip(self._schema.arguments, inputs, strict=True):
                if isinstance(x, Tensor) and _is_alias_of(y, x):
                    raise KitError(
                        f"[{self.name}] fake= must return new tensors, got {output} in the memory of {argument}"
                    )

    def _prepare(self, device: torch.device, kinds: tuple[Kind, ...]) -> _Ready:
        image = self.image(kinds, nvrtc.arch_of(device))
        packing = numba_abi.Packing(kinds)
        handle = _C.kit_kernel(_C.kit_load(image), entry(image), device.index, self.name, packing.offsets)
        ready = self._ready[device, kinds] = _Ready(handle, packing)
        return ready


class _Ready(NamedTuple):
    """A kernel that was compiled for certain kinds of arguments and loaded on a device."""

    handle: int
    packing: numba_abi.Packing


def entry(image: bytes) -> str:
    """The kernel's symbol, which Numba mangles: of an image's functions it alone has parameters in a bank."""
    found = re.search(rb"\.nv\.constant0\.([^\0]+)\0", image)
    if found is None:
        raise CompileError("[kit] the image that nvJitLink made has no kernel")
    return found[1].decode()


def _schema(name: str, parameters: tuple[str, ...]) -> str:
    """Tensors to a tensor, which is the last parameter."""
    if len(parameters) < 2:
        raise KitError(f"[{name}] a kernel must have an input and an output, got {', '.join(parameters) or 'nothing'}")
    *read, written = parameters
    return f"fastops_numba::{name}({', '.join(f'Tensor {x}' for x in read)}) -> Tensor {written}"


def _like_the_first(count: int, first: Tensor, *rest: Any) -> Any:
    outputs = tuple(torch.empty_like(first) for _ in range(count))
    return outputs if count > 1 else outputs[0]


def _options(name: str, function: Any) -> dict[str, Any]:
    """What @cuda.jit was given, as far as it is served."""
    given = getattr(function, "targetoptions", {})
    if refused := [option for option in given if given[option] and option not in (*_OPTIONS, *_WITHOUT_EFFECT)]:
        raise KitError(f"[{name}] expected of @cuda.jit's options {', '.join(_OPTIONS)}, got {refused[0]}")
    return {option: given[option] for option in _OPTIONS if given.get(option) is not None}
