"""How operators split among processes: a rule beside each one's declaration, from which DTensors are served.

``rms_norm`` has ``rows(lambda call: len(call.first) - call["dims"], whole=("weight",))``: of a DTensor whose rows are
split no process needs another's, and the weight's gradient is a partial sum of each. Where the last dimension is split,
or the input is a partial sum, torch redistributes it, once forward and once backward. A rule is a function of a
:class:`Call`, the shapes and other arguments, to a :class:`Split`; :func:`pointwise`, :func:`rows` and :func:`all_but`
make the usual ones. They reach ``torch.distributed.tensor`` with the first DTensor that comes to an operator.
"""

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
