"""Losses that walk over their classes in slices, with few classes a slice, as only large vocabularies have them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..cases import Case
from ..families import slices
from .target import parameters_of

_LEAST, _KEPT = 2, 100  # classes of a slice, and bytes of logits that are kept


def in_slices(case: Case) -> bool:
    return "save" in parameters_of(case)


@contextlib.contextmanager
def narrow_slices() -> Iterator[None]:
    rules, most = slices.RULES, slices.MOST_KEPT
    narrow = {device: rule._replace(least=_LEAST, multiple=1, least_bytes=1) for device, rule in rules.items()}
    slices.RULES, slices.MOST_KEPT = narrow, _KEPT
    try:
        yield
    finally:
        slices.RULES, slices.MOST_KEPT = rules, most
