"""Finder of norms."""

from __future__ import annotations

from .swap import Site, Swap


def find_norm(site: Site) -> Swap | str | None:
    return None
