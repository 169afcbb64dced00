"""The norm classes of the transformers that is installed, and what patch does with each."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import fastops

SIZE = 48


def packages() -> list[str]:
    """Of its models, by their names in ``transformers.models``."""
    import transformers.models as models

    return sorted(info.name for info in pkgutil.iter_modules(models.__path__) if info.ispkg)


def classes(package: str) -> Iterator[type[nn.Module]]:
    """Each class called a norm that a package defines."""
    folder = Path(importlib.import_module("transformers.models").__file__ or "").parent / package
    for file in sorted(folder.glob("modeling_*.py")):
        try:
            module = importlib.import_module(f"transformers.models.{package}.{file.stem}")
        except (ImportError, RuntimeError):  # of a library that is not installed
            continue
        for name, cls in vars(module).items():
            if not (inspect.isclass(cls) and issubclass(cls, nn.Module)) or cls.__module__ != module.__name__:
                continue
            if "norm" in name.lower():
                yield cls


def built(cls: type[nn.Module]) -> nn.Module | None:
    """One that a tensor is enough for, made from one size or from nothing, of random parameters; None for others."""
    arguments = list(inspect.signature(cls.forward).parameters.values())[1:]
    if not arguments or any(a.default is inspect.Parameter.empty for a in arguments[1:]):
        return None
    first = next(iter(inspect.signature(cls).parameters), None)
    try:
        module = cls() if first in (None, "eps") else cls(SIZE)
    except Exception:  # which wants more, or a config
        return None
    if module._modules:
        return None
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


@dataclass(frozen=True)
class Row:
    """A class, what it is swapped for or why not, and the worst errors: relative in float32, ulp in bfloat16."""

    name: str
    swapped: str = ""
    left: str = ""
    error: float = 0.0
    ulp: float = 0.0


@torch.no_grad()
def row(cls: type[nn.Module]) -> Row | None:
    module = built(cls)
    if module is None:
        return None
    name = f"{cls.__module__.split('.')[2]}.{cls.__name__}"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\[patch\] nothing was swapped")
        report = fastops.patch(module)
    if not report.swapped:
        return Row(name, left=report.left[""].partition(": ")[2])
    x = torch.randn(3, 7, SIZE) * 2 + 0.5
    now, before = type(module), cls
    worst = []
    for dtype in (torch.float32, torch.bfloat16):
        module.to(dtype)
        module.__class__ = before
        try:
            its = module(x.to(dtype)).double()
        except RuntimeError:  # of one whose parameters have to be float32
            its = module.float()(x.to(dtype)).double()
        module.__class__ = now
        ours = module(x.to(dtype)).double()
        scale = its.abs().max() if dtype == torch.float32 else its.abs().clamp(min=float(its.abs().mean()))
        worst.append(float(((ours - its).abs() / scale).max()))
    return Row(name, report.swapped[""].partition(" as ")[2], "", worst[0], worst[1] / torch.finfo(torch.bfloat16).eps)


def census(of: list[str]) -> list[Row]:
    rows = [row(cls) for package in of for cls in classes(package)]
    return [row for row in rows if row is not None]
