"""The table of what ``patch`` swaps: kinds, by the names that ``only`` and ``skip`` know, and their finders.

A module belongs to the first finder that does not answer None, so that whoever takes a whole block comes first.
"""

from __future__ import annotations

from .activations import find_activation
from .gated import find_gated_mlp
from .loss import find_loss
from .norms import find_norm
from .rope import find_rope
from .swap import Finder

FINDERS: dict[str, Finder] = {
    "gated_mlps": find_gated_mlp,
    "norms": find_norm,
    "activations": find_activation,
    "rope": find_rope,
    "loss": find_loss,
}
