"""One file an operator: the public function with its docstring, its plain reference, its fake and its gradient."""

from .add_layer_norm import add_layer_norm
from .add_rms_norm import add_rms_norm
from .axpby import axpby
from .cross_entropy import cross_entropy
from .geglu import geglu
from .glu import glu
from .layer_norm import layer_norm
from .linear import linear
from .linear_cross_entropy import linear_cross_entropy
from .linear_log_prob import linear_log_prob
from .lltm import lltm
from .log_prob import log_prob
from .log_softmax import log_softmax
from .qk_norm_rope import qk_norm_rope
from .reglu import reglu
from .relu import relu
from .rms_norm import rms_norm
from .rope import rope
from .sigmoid import sigmoid
from .softmax import softmax
from .square import square
from .swiglu import swiglu

__all__ = [
    "add_layer_norm",
    "add_rms_norm",
    "axpby",
    "cross_entropy",
    "geglu",
    "glu",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "linear_log_prob",
    "lltm",
    "log_prob",
    "log_softmax",
    "qk_norm_rope",
    "reglu",
    "relu",
    "rms_norm",
    "rope",
    "sigmoid",
    "softmax",
    "square",
    "swiglu",
]
