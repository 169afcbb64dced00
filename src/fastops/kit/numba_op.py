"""kit.numba_op: a scalar Python function, compiled by Numba, as a differentiable elementwise op."""

from __future__ import annotations

import ast
import ctypes
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._operator import Differentiable
from . import compiler, expression, linker, numba_extra, nvrtc
from .content import content_hash
from .elementwise import Gradients, aligned, differentiable, of_one_dtype, wrong_count
from .errors import ExpressionError, KitError
from .expression import Node
from .extent import Size
from .frozen import Frozen
from .numba_kernel import numba_kernel
from .pointwise import Pointwise
from .program import Kernels, Program, explained, prepared, unique
from .source import real_of


def numba_op(
    function: Callable[..., Any] | None = None,
    *,
    backward: Callable[..., Any] | None = None,
    grid: Size | Sequence[Size] | None = None,
    **kernel: Any,
) -> Any:
    """Makes an op of tensors of a function that Numba compiles; a decorator, with or without arguments.

    **A scalar function** of numbers becomes an elementwise op: it is linked into the kernels of ``kit.elementwise``,
    with broadcasting, any strides, float16 to float64 (the half types in float32), torch's current stream, and tensors
    that require grad. It may contain what Numba takes: loops, branches, ``math``. Write an expression as
    ``kit.elementwise``, which needs no Numba.

    **A whole kernel**, a function under ``@cuda.jit``, has a ``grid``. Its parameters are tensors of any strides, which
    it reads, and the output, which it writes; it is called with the former and returns the latter. It is compiled for
    the dtypes and dimensions of a call, and launched on the tensors' device and torch's current stream there. It is a
    ``kit.op``, and takes what that takes.

    What the function reads outside (globals, its closure, arrays, attributes of the program's modules, functions that
    Numba compiles) is for all dtypes as it was at the definition.

    Args:
        function: of one to eight numbers, to one number; or a kernel.
        backward: ``backward(grad, ...)`` returns a gradient for each parameter of ``function``. Its parameters are
            called as those, ``grad`` and ``out``. A function that is an expression becomes a kernel; else it is called
            with tensors, and differentiated by torch. Default: derived, if ``function`` is an expression. Of a kernel
            it is as in ``kit.op``, and the output is called as the kernel calls it.
        grid: for a kernel, as in ``kit.cuda_kernel``: ``"ceil(numel(out) / 256)"``, over the kernel's parameters.
        kernel: with a grid alone. ``block=256`` and ``shared=0`` as in ``kit.cuda_kernel``. ``cpu``, ``reference``,
            ``fake``, ``vmap``, ``autocast`` and ``outputs`` as in ``kit.op``; but without ``fake``, which is what
            allocates the outputs, each is like the first tensor. ``schema``, where the parameters are not tensors and
            an output: ``"my::scale(Tensor x, float a=2.0) -> Tensor out"``, with the kernel's own names in any order;
            int, float and bool are numbers of 64 bits, and truth.

    Raises:
        NoCompiler: Numba is not installed.
        KitError: parameters that cannot be served, a function of numbers that raises or does not return one number, a
            name that has no value yet; later, a derivative where there is none, or another content of what could not be
            copied at the definition.
        CompileError: later, from a kernel that Numba does not compile, or that writes to what it should read.
    """
    if function is None:
        return lambda function: numba_op(function, backward=backward, grid=grid, **kernel)
    if not callable(function):
        raise KitError(f"[numba_op] expected a function, got {type(function).__name__}")
    if backward is not None and not callable(backward):
        raise KitError(f"[numba_op] backward must be a function, got {type(backward).__name__}")
    if grid is not None:
        return numba_kernel(function, grid=grid, backward=backward, **kernel)
    if kernel or hasattr(function, "forall"):  # which is what @cuda.jit makes
        raise KitError(f"[{function.__name__}] a kernel needs grid=, which says that it is one")
    return NumbaOp(function, backward)


def _check_raises_nothing(name: str, function: Callable[..., Any]) -> None:
    """A kernel has nowhere to raise to: the loop would end, and what it had not written be returned."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # typed by hand, or part of a line
        return
    for node in ast.walk(tree.body[0]) if isinstance(tree.body[0], ast.FunctionDef) else ():  # else a lambda's line
        if isinstance(node, (ast.Raise, ast.Assert)):
            raise KitError(f"[{name}] expected a result for all numbers, such as NaN, got {ast.unparse(node)!r}")


def _check_returns_one_number(name: str, dispatcher: Any, count: int) -> None:
    """Check what Numba finds the function to return: a kernel stores one number, and would drop the rest of a tuple.

    What is compiled for the check is used again by the kernels.
    """
    numba = numba_extra.numba(name)
    for real in (numba.float32, numba.float64):
        try:
            dispatcher.compile((real,) * count)
        except _refusals(numba) as error:
            found = str(error)
            continue
        returned = dispatcher.nopython_signatures[-1].return_type
        if isinstance(returned, (numba.types.Integer, numba.types.Float, numba.types.Boolean)):
            return
        found = str(returned)
        break
    else:
        # Other errors are those of the first call: what Numba compiles for CUDA alone may work there.
        if "unify" not in found:
            return
    raise _not_one_number(name, found)


def _not_one_number(name: str, found: str) -> KitError:
    return KitError(
        f"[{name}] expected a function that returns one number on every way through it, got {found}\n"
        "Define an op for each number. kit.elementwise takes an expression of several."
    )


def _refusals(numba: Any) -> tuple[type[Exception], ...]:
    """Return what Numba raises for a function that it does not compile."""
    return numba.core.errors.NumbaError, numba.core.errors.UnsupportedBytecodeError


class NumbaOp:
    """What :func:`numba_op` returns: call it with tensors."""

    def __init__(self, function: Callable[..., Any], backward: Callable[..., Any] | None) -> None:
        name = function.__name__ if function.__name__.isidentifier() else "function"
        numba_extra.numba(name)
        self.name = self.__name__ = name
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self._qualified = function.__qualname__
        self.tensors = tuple(inspect.signature(function).parameters)
        _check_raises_nothing(name, function)
        if not 1 <= len(self.tensors) <= 8:
            raise KitError(f"[{name}] expected a function of 1 to 8 numbers, got {len(self.tensors)}")
        frozen = Frozen(function)
        self.content_hash = content_hash(frozen, backward)
        content = f"numba {frozen.content_hash}"
        self._program = unique(content, lambda: _Program(frozen, name, self.tensors, content))
        self._backward = backward
        self._gradients = _gradients(self._program, backward)
        self._call = _with_derivative(self._program, backward, self._gradients).call

    def __call__(self, *tensors: Tensor) -> Any:
        if has_torch_function_variadic(*tensors):
            return handle_torch_function(self, tensors, *tensors)
        if len(tensors) != len(self.tensors):
            raise wrong_count(self.name, self.tensors, tensors)
        return self._call(*tensors)

    def __reduce__(self) -> str:
        return self._qualified

    def __repr__(self) -> str:
        return f"<kit.numba_op {self.name}({', '.join(self.tensors)})>"

    def prepare(self, *dtypes: torch.dtype, device: torch.device | str | int = "cuda", backward: bool = True) -> None:
        """Compile ahead of the first call, for tensors of one of ``dtypes``; by default of float32.

        With ``backward`` the gradients too, where they are expressions.
        """

        def kernels(dtype: torch.dtype) -> Iterator[Kernels]:
            yield of_one_dtype(self._program, dtype)
            if backward and self._gradients:
                yield from (of_one_dtype(program, dtype) for program in self._gradients.programs())

        prepared(self.name, dtypes or (torch.float32,), device, kernels)

    def explain(self, *tensors: Tensor) -> str:
        """Which code a call with these tensors runs."""
        self(*tensors)
        return explained(self._program, tensors)

    @property
    def unsupported(self) -> dict[str, str]:
        """What it was given no function for, as ``kit.check`` calls it."""
        if self._program.parsed:
            return {}
        missing = {"forward mode": "needs an expression"}
        return missing if self._backward else missing | {"gradient": "needs backward="}

    @property
    def reference(self) -> Callable[..., Any] | None:
        """The same in torch's functions, if it is an expression."""
        return self._program.reference if self._program.parsed else None

    def dispatched(self, *tensors: Tensor) -> tuple[Any, tuple[Any, ...]]:
        """What torch's dispatcher is called with, for ``torch.library.opcheck``."""
        return self._program.raw, tensors


class _Foreign(NamedTuple):
    """A function that another compiler makes, in the form of a :class:`source.Function`."""

    symbol: str
    tensors: tuple[str, ...]
    scalars: tuple[str, ...] = ()
    nodes: tuple[None] = (None,)
    name: str = "compute"

    def text(self, real: str, *, short: bool = False) -> str:
        """One element, by a function that is linked in."""
        parameters = ", ".join([real] * len(self.tensors))
        arguments = ", ".join(f"kit_in[{k}]" for k in range(len(self.tensors)))
        return (
            f'extern "C" __device__ {real} {self.symbol}({parameters});\n'
            f"KIT_FUNCTION void {self.name}(const {real}* kit_in, const {real}*, {real}* kit_out) {{\n"
            f"  kit_out[0] = {self.symbol}({arguments});\n}}\n"
        )

    def loop(self, real: str) -> str:
        """Arrays, by a function whose address is filled in."""
        count = len(self.tensors)
        parameters = ", ".join([f"const {real}*"] * count + [f"{real}*", "int64"])
        named = ", ".join(
            [*(f"const {real}* in{k}" for k in range(count)), f"{real}* out", "int64 n", f"const {real}*"]
        )
        arguments = ", ".join([*(f"in{k}" for k in range(count)), "out", "n"])
        return (
            f'extern "C" {{ __attribute__((visibility("default"))) void (*{self.symbol})({parameters}) = nullptr; }}\n'
            f"static void {self.name}_all({named}) {{ {self.symbol}({arguments}); }}\n"
        )


class _Program(Pointwise):
    """The kernels of an elementwise op around a function of Numba's.

    Where the function is an expression too, that is the reference; else Numba is, on the CPU.
    """

    cuda_compilers = "Numba and NVRTC"

    def __init__(self, frozen: Frozen, name: str, tensors: tuple[str, ...], content: str) -> None:
        self.frozen = frozen
        self.symbol = f"kit_numba_{content_hash(content)[:16]}"
        self._loops: dict[str, Any] = {}  # by their type of numbers; C++ has their addresses
        self._dispatcher = numba_extra.numba(name).njit(error_model="numpy")(frozen.function)
        _check_returns_one_number(name, self._dispatcher, len(tensors))
        try:
            _, nodes = expression.from_function(frozen.function)
            if len(nodes) != 1:
                raise _not_one_number(name, str(len(nodes)))
            self.parsed: tuple[Node, ...] | None = nodes
            super().__init__(name, tensors, (), nodes, content)
        except ExpressionError as error:
            self.parsed, self.why = None, error
            self.nodes = (expression.parse("0", ())[0],)
            self._torch = self._by_numpy
            Program.__init__(self, name, tensors, (), 1, content)

    def compile(self, dtypes: Sequence[int], device: int, variant: int) -> None:
        if device >= 0:  # without Numba's compiler an error: there may be no expression to fall back to
            self.add_cuda_kernel(dtypes, device, variant)
            return
        real = real_of(dtypes)
        if compiler.available():
            options = expression.CPP_OPTIONS
            library = compiler.shared_library(self.cpp(dtypes), name=self.name, options=options)
            if real not in self._loops:
                self._loops[real] = self._loop(real)
            ctypes.c_void_p.in_dll(library, self.symbol).value = self._loops[real].address
        super().compile(dtypes, device, variant)

    def cuda_image(self, dtypes: Sequence[int], variant: int, arch: str) -> bytes:
        real = real_of(dtypes)
        options = ("-dlto", "--relocatable-device-code=true")
        kernel = nvrtc.compile(self.cuda(dtypes, variant), name=self.name, arch=arch, options=options).cubin
        return linker.link([kernel, self._device_function(real, arch)], name=self.name, arch=arch)

    def _function(self) -> Any:
        return _Foreign(self.symbol, self.tensors)

    def _loop(self, real: str) -> Any:
        """A C function of arrays: pointers to the inputs, to the output, and how many elements."""
        self.frozen.check()
        numba = numba_extra.numba(self.name)
        number = numba.float64 if real == "double" else numba.float32
        pointer = numba.types.CPointer(number)
        count = len(self.tensors)
        signature = numba.void(*[pointer] * (count + 1), numba.int64)
        scope = {"function": self._dispatcher, "number": number}
        inputs = [f"in{k}" for k in range(count)]
        exec(
            f"def loop({', '.join(inputs)}, out, n):\n"
            f"    for i in range(n):\n"
            f"        out[i] = number(function({', '.join(f'{x}[i]' for x in inputs)}))\n",
            scope,
        )
        try:
            return numba.cfunc(signature, error_model="numpy")(scope["loop"])
        except _refusals(numba) as error:
            raise KitError(f"[{self.name}] Numba does not compile it: {error}") from error

    def _device_function(self, real: str, arch: str) -> bytes:
        cuda = numba_extra.numba_cuda(self.name)
        numba = numba_extra.numba(self.name)
        number = numba.float64 if real == "double" else numba.float32
        capability = divmod(int(arch.removeprefix("sm_")), 10)
        code, _ = cuda.compile(
            self.frozen.function,
            number(*[number] * len(self.tensors)),
            device=True,
            abi="c",
            abi_info={"abi_name": self.symbol},
            cc=capability,
            output="ltoir",
        )
        return bytes(code)

    def _by_numpy(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The reference of what is no expression: for a dtype without a kernel, or without a C++ compiler."""
        transformed = forward_ad._current_level >= 0 or any(map(is_functorch_wrapped_tensor, inputs))
        if transformed or any(x.device.type != "cpu" for x in inputs):
            raise KitError(f"[{self.name}] forward mode and other devices need an expression; this is none: {self.why}")
        numba = numba_extra.numba(self.name)
        wide = [x.detach().to(torch.promote_types(x.dtype, torch.float32)).numpy() for x in inputs]
        return (torch.as_tensor(numba.vectorize()(self.frozen.function)(*wide)),)


def _gradients(program: _Program, backward: Callable[..., Any] | None) -> Gradients | None:
    """Those that are expressions, as the function itself is."""
    if not program.parsed:
        return None
    if backward is None:
        return Gradients(program)
    _reads(program, backward)
    try:
        _, given = expression.from_function(backward)
    except ExpressionError:
        return None
    if len(given) != len(program.tensors):
        raise _wrong_count(program, len(given))
    return Gradients(program, given)


def _with_derivative(
    program: _Program, backward: Callable[..., Any] | None, gradients: Gradients | None
) -> Differentiable:
    if gradients:
        return differentiable(program, gradients)
    return _opaque(program, backward, _reads(program, backward) if backward else ())


def _reads(program: _Program, backward: Callable[..., Any]) -> tuple[str, ...]:
    reads = tuple(inspect.signature(backward).parameters)
    if unknown := [name for name in reads if name not in ("grad", "out", *program.tensors)]:
        expected = ", ".join(("grad", "out", *program.tensors))
        raise KitError(f"[{program.name}] backward may read {expected}, got a parameter {unknown[0]}")
    return reads


def _opaque(program: _Program, backward: Callable[..., Any] | None, reads: tuple[str, ...]) -> Differentiable:
    """With a backward in torch operations; torch.compile calls the op as it is."""
    count = len(program.tensors)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values = dict(zip(program.tensors, inputs[:count], strict=True)) | {"out": output}
        ctx.names = [name for name in reads if name != "grad"]
        ctx.save_for_backward(*[values[name] for name in ctx.names])

    def gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        values = dict(zip(ctx.names, ctx.saved_tensors, strict=True)) | {"grad": grad}
        found = backward(*[values[name] for name in reads])  # type: ignore[misc]
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != count:
            raise _wrong_count(program, len(found))
        return tuple(g if need else None for g, need in zip(found, ctx.needs_input_grad, strict=True))

    def refuse(ctx: Any, grad: Tensor) -> NoReturn:
        raise KitError(f"[{program.name}] has no derivative: give kit.numba_op backward=")

    return Differentiable(
        program.name,
        program.raw,
        program.reference,
        save=save,
        backward=gradient if backward else refuse,
        batch=lambda *given: aligned(count, *given),
        overrides=backward is not None,
    )


def _wrong_count(program: _Program, got: int) -> KitError:
    expected = ", ".join(program.tensors)
    return KitError(f"[{program.name}] backward must return gradients of {expected}, got {got} values")
