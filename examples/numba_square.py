"""x·x as a Python function of numbers, compiled by Numba for the CPU and for CUDA: pip install "fastops[numba]".

The tutorial behind it launches a numba.cuda kernel by hand from an autograd.Function, on Numba's own stream, and unsets
requires_grad for the call, since Numba refuses tensors that have it.
"""

import math

import torch

from fastops import kit


@kit.numba_op(backward=lambda grad, x: 2 * x * grad)
def square(x):
    return x * x


@kit.numba_op(backward=lambda grad, out: grad / ((1 + out) * torch.exp(out)))
def lambert(x):
    """W of W exp(W) = x, by Newton's method: no expression says that."""
    w = x / (1 + x)
    for _ in range(20):
        e = math.exp(w)
        w -= (w * e - x) / (e * (w + 1))
    return w


if __name__ == "__main__":
    x = torch.tensor([[0.5, 1.5, 2.0], [3.0, 0.25, 1.0]])
    kit.check(square, x)
    kit.check(lambert, x)
