"""Which modules a report names as not looked at."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .swap import Module

_USUAL = {"weight", "bias"}
_LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)


def is_named(module: Module) -> bool:
    """Return whether the report names a module that no finder tried: one that computes something with parameters.

    A layer has no children, and a weight and a bias as its parameters, such as torch.nn.Linear. A layer by itself is
    not named. What is named is a module of layers alone, such as an MLP, and a module with other parameters, such as a
    bank of experts. A module around such modules is not named, because they are.
    """
    if isinstance(module, _LISTS) or _is_layer(module):
        return False
    children = list(_children(module))
    if any(child._modules for child in children):
        return False
    return bool(_parameters(module)) or any(map(_is_layer, children))


def _children(module: Module) -> Iterator[Module]:
    for child in module.children():
        if isinstance(child, _LISTS):
            yield from _children(child)
        else:
            yield child


def _is_layer(module: Module) -> bool:
    names = _parameters(module)
    return bool(names) and names <= _USUAL and not module._modules


def _parameters(module: Module) -> set[str]:
    return {name for name, parameter in module._parameters.items() if parameter is not None}
