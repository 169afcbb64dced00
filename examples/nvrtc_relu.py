"""ReLU as a CUDA kernel in a string, compiled by NVRTC. On the CPU its reference, plain PyTorch, runs.

The tutorial behind it compiled the string with pynvrtc, launched it through cupy, packed pointers by hand and knew
float32 alone. ``kit.elementwise("relu(x)", "x > 0 ? x : 0")`` is the same op in a line; a kernel of one's own is for
what no expression says.
"""

import torch

from fastops import kit

FORWARD = """
template <class T>
__global__ void relu(const T* x, T* y, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] > T(0) ? x[i] : T(0);
}
"""
BACKWARD = """
template <class T>
__global__ void relu_backward(const T* grad, const T* x, T* dx, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) dx[i] = x[i] > T(0) ? grad[i] : T(0);
}
"""
GRID = "ceil(n / 256)"
forward = kit.cuda_kernel(FORWARD, "relu<T>", "const T* x, T* y, int64 n", grid=GRID, block=256)
backward = kit.cuda_kernel(
    BACKWARD, "relu_backward<T>", "const T* grad, const T* x, T* dx, int64 n", grid=GRID, block=256
)


def forward_cuda(x):
    x = x.contiguous()
    y = torch.empty_like(x)
    forward(x, y, x.numel())
    return y


def backward_cuda(grad, x):
    grad, x = grad.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    backward(grad, x, dx, x.numel())
    return dx


# Each is an op, so that torch.compile need not look inside; the reference is what the second derivative comes from.
relu_backward = kit.op(
    "examples::relu_backward(Tensor grad, Tensor x) -> Tensor",
    cuda=backward_cuda,
    reference=lambda grad, x: torch.where(x > 0, grad, 0).contiguous(),
    fake=lambda grad, x: x.new_empty(x.shape),
    vmap="elementwise",
)
relu = kit.op(
    "examples::relu(Tensor x) -> Tensor",
    cuda=forward_cuda,
    reference=lambda x: torch.where(x > 0, x, 0).contiguous(),
    backward=relu_backward,
    fake=lambda x: x.new_empty(x.shape),
    vmap="elementwise",
)

if __name__ == "__main__":
    x = torch.tensor([[-1.5, 0.5, 2.0], [3.0, -0.25, 1.0]])
    kit.check(relu, x)
