"""How operators split among processes: a rule beside each one's declaration, from which DTensors are served."""

from .lazy import is_sharded
from .partial import added_up
from .rules import all_but, apart, broadcast, pointwise, rows
from .split import EMPTY, Call, Dims, Output, Rule, Split

__all__ = [
    "EMPTY",
    "Call",
    "Dims",
    "Output",
    "Rule",
    "Split",
    "added_up",
    "all_but",
    "apart",
    "broadcast",
    "is_sharded",
    "pointwise",
    "rows",
]
