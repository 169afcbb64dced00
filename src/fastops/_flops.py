"""FLOP formulas of the raw ops that multiply matrices, for ``torch.utils.flop_counter.FlopCounterMode``.

A dispatch mode sees such an op as one call, and none of the products in it. torch's registry of formulas is in a module
whose import loads Triton, so that the formulas are registered when a program imports that module.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

# The FLOPs of a call. The arguments are the op's, with shapes in place of tensors.
Formula = Callable[..., int]

FORMULAS: dict[torch._ops.OpOverloadPacket, Formula] = {}

_MODULE = "torch.utils.flop_counter"


def declare(op: torch._ops.OpOverload, formula: Formula) -> None:
    """Register the formula of an op, now or when torch's registry is imported."""
    FORMULAS[op.overloadpacket] = formula
    if _MODULE in sys.modules:
        _register(op.overloadpacket, formula)


def product(rows: int, features: int, columns: int) -> int:
    """Return the FLOPs of a matrix product [rows, features] x [features, columns]: a multiply and an add are two."""
    return 2 * rows * features * columns


def _register(op: torch._ops.OpOverloadPacket, formula: Formula) -> None:
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    def of_shapes(*arguments: Any, out_shape: Any = None, **options: Any) -> int:
        return formula(*arguments, **options)

    if op not in flop_registry:
        register_flop_formula(op)(of_shapes)


class _Registrar(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook: load ``torch.utils.flop_counter`` as usual, then register the formulas."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)  # before the search below, which asks the same finders
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        self._loader = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for op, formula in FORMULAS.items():
            _register(op, formula)


if _MODULE not in sys.modules:
    sys.meta_path.insert(0, _Registrar())
