"""What functions that are compiled from a user's source have in common, on the CPU and on GPUs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from . import compiler
from .content import content_hash
from .diagnostics import with_name_hint
from .errors import CompileError, KitError
from .signature import Signature


class FromSource:
    """A function ``function`` of ``source``, called ``name`` in messages, with a typed signature.

    ``launch``: what the constructor of the class takes besides, between ``signature`` and ``options``.
    """

    def __init__(
        self, source: str, function: str, signature: str, options: Sequence[str], contiguous: bool, *launch: Any
    ) -> None:
        op = function if isinstance(function, str) else "kit"
        for what, given in (("name", function), ("source", source), ("signature", signature)):
            if not isinstance(given, str):
                raise KitError(f"[{op}] {what} must be text, got {type(given).__name__}")
        if not isinstance(options, (list, tuple)) or not all(isinstance(x, str) for x in options):
            raise KitError(f"[{op}] options must be a list of texts, such as ['-O2'], got {options!r}")
        if not isinstance(contiguous, bool):
            raise KitError(f"[{op}] contiguous must be a bool, got {type(contiguous).__name__}")
        self.source = source
        self.function = function
        self.name = function.partition("<")[0].rpartition("::")[2].strip()  # "shift" of my::shift<T>
        self.signature = Signature(signature, self.name)
        self.options = tuple(options)
        self.contiguous = contiguous
        self._described = (source, function, signature, *launch, self.options, contiguous)

    def __reduce__(self) -> Any:
        return type(self), self._described

    @functools.cached_property
    def content_hash(self) -> str:
        """Of all that decides what a call does. An op of an edited header is another op."""
        return content_hash(*self._described, compiler.included(self.source, self.options))

    def _text(self, types: Mapping[str, torch.dtype]) -> str:
        """The source for one dtype a type variable, between what it may use and what it is held against."""
        return self.signature.prelude(types) + self.source + self.signature.checks(self.function)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Says first of an error why the function may not be found."""
        try:
            yield
        except CompileError as error:
            raise with_name_hint(error, self.name, self.function, self.source) from None
