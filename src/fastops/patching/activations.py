"""Finder of activations."""

from __future__ import annotations

from .swap import Site, Swap


def find_activation(site: Site) -> Swap | str | None:
    return None
