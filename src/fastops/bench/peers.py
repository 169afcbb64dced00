"""What a user would pick instead: PyTorch, torch.compile, and libraries of fused operators where they are installed.

Beside them are another form of our own and, of an op that is bound by its matrix products, these alone.

An op is found in a library by its name; one that is not listed here is refused by name. ``arguments`` turns our
positional arguments into the library's own, before the clock starts, so that this is not timed.
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cases import Case, by_name
from ..cases.inputs import HALVES
from ..selftest.target import NotThereError
from .problems import LINEAR_LOSSES
from .work import Implementation, RefusedError, said

OURS, EAGER, COMPILE = "fastops", "eager", "compile"
SAVE_NONE, EAGER_F32, CHUNKED, PRODUCTS = "fastops save=none", "eager f32", "torch chunked", "mm"


@dataclass(frozen=True)
class Entry:
    """A function of a library."""

    module: str
    attribute: str
    arguments: Callable[..., tuple[Any, ...]]
    no_gradient: str = ""
    several: bool = False  # the result is the first of what it returns


@dataclass(frozen=True)
class Library:
    """A package whose operators need a GPU."""

    package: str  # as imported
    distribution: str  # as installed
    install: str
    entries: dict[str, Entry]


def _copies(*args: Any) -> tuple[Any, ...]:
    """Of tensors that a peer writes over, and which have to serve again.

    Its second call reads the numbers of the first: the first's are compared, and all move as many bytes.
    """
    return tuple(a.clone() for a in args)


# Liger's cross-entropy is left out: its forward writes the gradient over the logits, which have to serve again.
# Liger's default writes the input gradient over the incoming one, which has to serve again: hence the last False.
_LIGER = Library(
    "liger_kernel",
    "liger-kernel",
    "pip install liger-kernel",
    {
        "layer_norm": Entry(
            "liger_kernel.ops", "LigerLayerNormFunction.apply", lambda x, shape, w, b, eps: (x, w, b, eps)
        ),
        "rms_norm": Entry(
            "liger_kernel.ops",
            "LigerRMSNormFunction.apply",
            lambda x, shape, w, eps: (x, w, eps, 0.0, "llama", False),
        ),
        "add_rms_norm": Entry(
            "liger_kernel.ops",
            "LigerFusedAddRMSNormFunction.apply",
            lambda x, residual, shape, w, eps: (x, residual, w, eps, 0.0, "llama", False),
        ),
        "softmax": Entry("liger_kernel.ops", "LigerSoftmaxFunction.apply", lambda x, dim: (x,)),
        "linear_cross_entropy": Entry(
            "liger_kernel.ops.fused_linear_cross_entropy",
            "LigerFusedLinearCrossEntropyFunction.apply",
            lambda x, w, target: (x, w, target),
            several=True,
        ),
        # Both write the gradients over the gate and up that they keep.
        "swiglu": Entry("liger_kernel.ops.swiglu", "LigerSiLUMulFunction.apply", _copies),
        "rope": Entry(
            "liger_kernel.ops.rope",
            "LigerRopeFunction.apply",
            lambda q, k, cos, sin: _copies(q, k, cos[None].to(q.dtype), sin[None].to(q.dtype)),
            no_gradient="it writes its gradients over the incoming ones, which have to serve again",
        ),
        "geglu": Entry("liger_kernel.ops.geglu", "LigerGELUMulFunction.apply", _copies),  # gelu's form with a tanh
    },
)

# Of gated units it has those that end a product alone.
_QUACK = Library(
    "quack",
    "quack-kernels",
    "pip install quack-kernels",
    {
        "layer_norm": Entry(
            "quack.rmsnorm",
            "layernorm_fwd",
            lambda x, shape, w, b, eps: (x, w.float(), b.float(), eps),  # it takes no other parameters
            no_gradient="its layer_norm has no gradient",
        ),
        "rms_norm": Entry("quack.rmsnorm", "rmsnorm", lambda x, shape, w, eps: (x, w, None, None, None, None, eps)),
        "add_rms_norm": Entry(
            "quack.rmsnorm",
            "rmsnorm",
            lambda x, residual, shape, w, eps: (x, w, None, residual, None, None, eps, True),
        ),
        "softmax": Entry("quack.softmax", "softmax", lambda x, dim: (x,)),
        "cross_entropy": Entry("quack.cross_entropy", "cross_entropy", lambda x, target: (x, target)),
    },
)

_FLASH_NORM = "flash_attn.ops.triton.layer_norm"
_FLASH_ATTN = Library(
    "flash_attn",
    "flash-attn",
    "pip install flash-attn --no-build-isolation",
    {
        "layer_norm": Entry(
            _FLASH_NORM, "layer_norm_fn", lambda x, shape, w, b, eps: (x, w, b, None, None, None, None, eps)
        ),
        "rms_norm": Entry(
            _FLASH_NORM, "rms_norm_fn", lambda x, shape, w, eps: (x, w, None, None, None, None, None, eps)
        ),
        "add_layer_norm": Entry(
            _FLASH_NORM,
            "layer_norm_fn",
            lambda x, residual, shape, w, b, eps: (x, w, b, residual, None, None, None, eps, 0.0, None, True),
        ),
        "add_rms_norm": Entry(
            _FLASH_NORM,
            "rms_norm_fn",
            lambda x, residual, shape, w, eps: (x, w, None, residual, None, None, None, eps, 0.0, None, True),
        ),
        "swiglu": Entry("flash_attn.ops.activations", "swiglu", lambda gate, up: (gate, up)),
    },
)

_APEX_NORM = "apex.normalization.fused_layer_norm"
_APEX = Library(
    "apex",
    "apex",
    "build https://github.com/NVIDIA/apex with its CUDA extensions; the apex of pip is something else",
    {
        "layer_norm": Entry(_APEX_NORM, "fused_layer_norm_affine", lambda x, shape, w, b, eps: (x, w, b, shape, eps)),
        "rms_norm": Entry(_APEX_NORM, "fused_rms_norm_affine", lambda x, shape, w, eps: (x, w, shape, eps)),
    },
)

_CUT_CROSS_ENTROPY = Library(
    "cut_cross_entropy",
    "cut-cross-entropy",
    "pip install cut-cross-entropy",
    {
        "linear_cross_entropy": Entry("cut_cross_entropy", "linear_cross_entropy", lambda x, w, target: (x, w, target)),
    },
)

LIBRARIES = {
    "liger": _LIGER,
    "quack": _QUACK,
    "apex": _APEX,
    "flash_attn": _FLASH_ATTN,
    "cut_cross_entropy": _CUT_CROSS_ENTROPY,
}
PEERS = (SAVE_NONE, EAGER, EAGER_F32, COMPILE, CHUNKED, *LIBRARIES, PRODUCTS)


def _f32_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.float(), target)


def _f32_linear_cross_entropy(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    """As models of Hugging Face have it."""
    return _f32_cross_entropy(F.linear(x, w), target)


def _chunked_linear_cross_entropy(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    """From torch 2.13 on."""
    return F.linear_cross_entropy(x, w, target, options=torch.nn.LinearCrossEntropyOptions())


def _products(direction: str, x: Tensor, w: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """The logits, and products of the sizes of those for the gradients of input and weight."""
    z = torch.mm(x, w.t())
    return (z,) if direction == "forward" else (z, torch.mm(z, w), torch.mm(z.t(), x))


# What only some ops have.
FORMS: dict[str, dict[str, Callable[..., Any]]] = {
    SAVE_NONE: {op: partial(by_name()[op].function, save="none") for op in LINEAR_LOSSES},
    EAGER_F32: {"cross_entropy": _f32_cross_entropy, "linear_cross_entropy": _f32_linear_cross_entropy},
    CHUNKED: {"linear_cross_entropy": _chunked_linear_cross_entropy},
    PRODUCTS: dict.fromkeys(LINEAR_LOSSES, _products),
}


def chosen_peers(text: str | None) -> list[str]:
    names = list(PEERS) if text is None else [word.strip() for word in text.split(",") if word.strip()]
    for name in names:
        if name not in PEERS:
            raise NotThereError(f"peers must be some of {', '.join(PEERS)}, joined by commas, got {name!r}")
    return list(dict.fromkeys(names))


def of_op(names: Iterable[str], op: str, dtype: torch.dtype) -> list[str]:
    """The names but for forms that the op does not have, or has as eager already."""
    same = () if dtype in HALVES else (EAGER_F32,)
    return [name for name in names if name not in same and op in FORMS.get(name, (op,))]


def is_peer(name: str) -> bool:
    """Whether it is another's, and the whole op."""
    return name not in (OURS, SAVE_NONE, PRODUCTS)


def may_compile(name: str) -> bool:
    """And leave on disk what the next process takes."""
    return name == COMPILE or name in LIBRARIES


def absent(name: str) -> str:
    """Why a peer cannot be used at all; empty if it is installed."""
    library = LIBRARIES.get(name)
    if library is None or importlib.util.find_spec(library.package):
        return ""
    return f"not installed: {library.install}"


def lacking(name: str, op: str, device: torch.device) -> str:
    """Why an implementation cannot do an op, as far as that is known without importing it; empty if it may."""
    library = LIBRARIES.get(name)
    if reason := absent(name):
        return reason
    if library and device.type != "cuda":
        return "needs a GPU"
    return f"no {op}" if library and op not in library.entries else ""


def versions(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Of each peer what is used, or why it is not there."""
    found = {}
    for name in names:
        library = LIBRARIES.get(name)
        if reason := absent(name):
            found[name] = {"absent": reason}
        elif library is None:
            found[name] = {"version": f"torch {torch.__version__}"}
        else:
            found[name] = {"version": f"{library.distribution} {_version(library.distribution)}"}
    return found


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def plain_function(case: Case) -> Callable[..., Any]:
    """What a user writes in PyTorch: torch's own operator, or the formula if it has none."""
    return case.torch_op or case.plain


def implementation(name: str, case: Case, device: torch.device) -> Implementation:
    """Raises :class:`RefusedError` if it does not have the op."""
    if name == OURS:
        return Implementation(name, case.function)
    if name == EAGER:
        return Implementation(name, plain_function(case))
    if name == COMPILE:
        return Implementation(name, compiled(plain_function(case)))
    if name in FORMS:
        return Implementation(name, FORMS[name][case.name], floor=name == PRODUCTS)
    if reason := lacking(name, case.name, device):
        raise RefusedError(reason)
    entry = LIBRARIES[name].entries[case.name]
    try:
        function = operator.attrgetter(entry.attribute)(importlib.import_module(entry.module))
    except Exception as error:  # a library may fail in any way where it does not fit the machine
        raise RefusedError(f"does not import: {said(error)}") from error
    if entry.several:
        function = _first_of(function)
    return Implementation(name, function, entry.arguments, entry.no_gradient)


def _first_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(*args)[0]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile`` for these shapes alone, from a clean slate: past its limit of recompilations it stops."""

    def program(*args: Any) -> Any:
        return function(*args)

    torch.compiler.reset()
    return torch.compile(program, dynamic=False)


def kept_graph(direction: str) -> AbstractContextManager[object]:
    """A compiled backward runs twice only if it does not write over what was saved for it."""
    if direction != "backward":
        return nullcontext()
    from torch._functorch import config

    return config.patch(donated_buffer=False)
