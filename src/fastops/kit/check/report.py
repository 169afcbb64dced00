"""What a check found, for people and for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..errors import KitError


class Outcome(NamedTuple):
    """One property at one sample.

    ``status`` is ``"ok"``, ``"skip"`` (it has no meaning here), ``"refused"`` (the op is said not to do it, and says so
    itself) or ``"FAIL"``; ``text`` what was compared and the worst error, or the reason.
    """

    call: str
    title: str
    status: str
    text: str

    def __str__(self) -> str:
        return f"  {self.status:<7}  {self.title:<24}  {self.text}".rstrip()


class Report(NamedTuple):
    """The outcomes in the order of the samples."""

    op: str
    outcomes: tuple[Outcome, ...]

    @property
    def failed(self) -> tuple[Outcome, ...]:
        return self.of("FAIL")

    def of(self, status: str) -> tuple[Outcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.status == status)

    def titles(self, status: str) -> set[str]:
        """The properties that have this status at some sample."""
        return {outcome.title for outcome in self.of(status)}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        call = None
        for outcome in self.outcomes:
            if outcome.call != call:
                yield (call := outcome.call)
            yield str(outcome)


class CheckFailed(KitError):
    """A property does not hold; ``report`` has them all."""

    def __init__(self, report: Report) -> None:
        lines = "\n".join(f"{o.title}, {o.call}: {o.text}" for o in report.failed)
        super().__init__(f"[{report.op}] {len(report.failed)} of {len(report.outcomes)} checks failed\n{lines}")
        self.report = report
