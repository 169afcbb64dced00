"""Elementwise expressions: text or a Python function, its derivatives, its value by torch, its C++ and CUDA source."""

from __future__ import annotations

from ..errors import ExpressionError
from .derivative import chain, derivative, without
from .emit import emit_c
from .evaluate import cast, evaluate, torch_function
from .from_function import from_function
from .nodes import Node, names
from .parse import parse
from .place import brief
from .prelude import CPP_OPTIONS, PRELUDE_CPP, PRELUDE_CUDA, calls_vector_library
from .signature import Signature, parse_signature

__all__ = [
    "CPP_OPTIONS",
    "PRELUDE_CPP",
    "PRELUDE_CUDA",
    "ExpressionError",
    "Node",
    "Signature",
    "brief",
    "calls_vector_library",
    "cast",
    "chain",
    "derivative",
    "emit_c",
    "evaluate",
    "from_function",
    "names",
    "parse",
    "parse_signature",
    "torch_function",
    "without",
]
