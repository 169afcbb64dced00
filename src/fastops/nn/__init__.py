"""The operators as modules: torch.nn's arguments, initialisation, repr and state_dict keys; our forward and backward."""

from .layer_norm import LayerNorm
from .linear import Linear
from .lltm import LLTM
from .relu import ReLU
from .sigmoid import Sigmoid

__all__ = ["LLTM", "LayerNorm", "Linear", "ReLU", "Sigmoid"]
