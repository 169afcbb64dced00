"""The operators as modules, with torch.nn's arguments, initialisation, repr and state_dict keys."""

from .cross_entropy_loss import CrossEntropyLoss
from .gated_mlp import GatedMLP
from .geglu import GEGLU
from .layer_norm import LayerNorm
from .linear import Linear
from .linear_cross_entropy_loss import LinearCrossEntropyLoss
from .lltm import LLTM
from .log_softmax import LogSoftmax
from .relu import ReLU
from .rms_norm import RMSNorm
from .rotary_embedding import RotaryEmbedding
from .sigmoid import Sigmoid
from .softmax import Softmax
from .swiglu import SwiGLU

__all__ = [
    "GEGLU",
    "LLTM",
    "CrossEntropyLoss",
    "GatedMLP",
    "LayerNorm",
    "Linear",
    "LinearCrossEntropyLoss",
    "LogSoftmax",
    "RMSNorm",
    "ReLU",
    "RotaryEmbedding",
    "Sigmoid",
    "Softmax",
    "SwiGLU",
]
