"""The operators as modules, with torch.nn's arguments, initialisation, repr and state_dict keys."""

from .layer_norm import LayerNorm
from .linear import Linear
from .lltm import LLTM
from .relu import ReLU
from .rms_norm import RMSNorm
from .sigmoid import Sigmoid

__all__ = ["LLTM", "LayerNorm", "Linear", "RMSNorm", "ReLU", "Sigmoid"]
