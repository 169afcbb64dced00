"""Finder of gated."""

from __future__ import annotations

from .swap import Site, Swap


def find_gated_mlp(site: Site) -> Swap | str | None:
    return None
