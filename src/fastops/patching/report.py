"""What ``patch`` did: which modules were swapped, which were left and why, and the way back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from .calls import Calls, sum_of
from .swap import Applied

_SHOWN = 3  # patterns of names after each line of a report


@dataclass
class Report:
    """What :func:`fastops.patch` did to a model.

    Attributes:
        swapped (dict[str, str]): name of each swapped module, such as ``"model.norm"``, and what it is now, such as
            ``"LlamaRMSNorm as rms_norm(eps=variance_epsilon)"``.
        left (dict[str, str]): name of each module that looked like one of these and was left, and the one reason.
        untried (dict[str, str]): name of each module that computes something with parameters and that no kind of swap
            looks like, and its class. Empty if ``only`` or ``skip`` leave kinds out.
        dry_run (bool): nothing was changed; ``swapped`` is what would be.
        calls (dict[str, Calls]): counts of each swapped module that may go back to its original at a call: ``made``,
            and ``ran``, those that fastops computed. Calls under torch.compile are not counted.

    ``print(report)`` counts both by what they have in common, and the calls so far.
    """

    swapped: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    untried: dict[str, str] = field(default_factory=dict)
    dry_run: bool = False
    calls: dict[str, Calls] = field(default_factory=dict)
    _applied: list[Applied] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Give each swapped module the class that it had, and take away what was added to it.

        Once; a second call does nothing. Copies of the model that were made since keep their swaps.

        Raises:
            RuntimeError: a module's class was changed since, as by ``fully_shard`` or a later ``patch``; what came
                later must go first. Nothing is changed then.
        """
        for done in self._applied:
            if type(done.module) is not done.now:
                raise RuntimeError(
                    f"[undo] {done.name or 'the model'} must be of the class that patch gave it, got "
                    f"{type(done.module).__module__}.{type(done.module).__name__}: its class was changed after patch; "
                    "undo that first, or undo patch before it"
                )
        while self._applied:
            self._applied.pop().undo()

    def __str__(self) -> str:
        would = "would be swapped" if self.dry_run else "swapped"
        lines = [f"fastops.patch: {len(self.swapped)} modules {would}, {len(self.left)} left"]
        lines += _counted(self.swapped, self.calls)
        if self.left:
            lines += ["left as they were:", *_counted(self.left)]
        if self.untried:
            counts = [f"{len(names)} {kind}" for kind, names in frequent(self.untried, len(self.untried))]
            lines.append(f"not looked at: {', '.join(counts)}")
        return "\n".join(lines)


def frequent(reasons: Mapping[str, str], most: int) -> list[tuple[str, list[str]]]:
    """The most frequent values of a mapping, each with its keys."""
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in reasons.items():
        keys[reason].append(name)
    return sorted(keys.items(), key=lambda item: -len(item[1]))[:most]


def _counted(lines: Mapping[str, str], calls: Mapping[str, Calls] = {}) -> list[str]:
    return [
        f"  {len(names):4} {line}  [{_patterns(names)}]{_ran(sum_of(calls[name] for name in names if name in calls))}"
        for line, names in frequent(lines, len(lines))
    ]


def _ran(calls: Calls) -> str:
    return f": of {calls.made} calls {calls.ran} ran fastops" if calls.made else ""


def _patterns(names: list[str]) -> str:
    """Names with a ``*`` for each number, and how many more there are."""
    patterns = list(dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) or "the model" for name in names))
    more = f", {len(patterns) - _SHOWN} more" if len(patterns) > _SHOWN else ""
    return ", ".join(patterns[:_SHOWN]) + more
