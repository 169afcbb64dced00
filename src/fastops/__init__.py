import torch
from . import _C
from .ops import *
