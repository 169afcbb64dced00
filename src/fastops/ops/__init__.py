"""One file an operator: the public function with its docstring, its plain reference, its fake and its gradient."""

from .add_layer_norm import add_layer_norm
from .add_rms_norm import add_rms_norm
from .axpby import axpby
from .layer_norm import layer_norm
from .linear import linear
from .lltm import lltm
from .relu import relu
from .rms_norm import rms_norm
from .sigmoid import sigmoid
from .square import square

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "axpby",
    "layer_norm",
    "linear",
    "lltm",
    "relu",
    "rms_norm",
    "sigmoid",
    "square",
]
