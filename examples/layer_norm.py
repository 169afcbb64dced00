"""LayerNorm over the last dimension as a CUDA kernel, forward and backward, around which kit.op puts the rest.

The kernel of the tutorial behind it has a thread a row, takes the variance as E[x²] - E[x]², which cancels, indexes
with 32 bits, launches on the default stream, and overwrites its input, so that its backward reads the wrong x. Here a
block has a row, of any length; the variance is that of the centred values; halves are summed in float; sums are in a
fixed order. fastops.layer_norm is the ready-made one.
"""

import torch

from fastops import kit

BLOCK = 256
SUM = """
template <class A>
__device__ A block_sum(A value) {  // in every thread, and in the same order each time
  __shared__ A parts[32];
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
  __syncthreads();  // the sum before has been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  A sum = 0;
  for (int k = 0; k < int(blockDim.x / 32); ++k) sum += parts[k];
  return sum;
}
"""
FORWARD = """
template <class T, class A>
__global__ void forward(const T* x, const T* w, const T* b, T* y, A* mean, A* rstd, int64_t n, double eps) {
  x += blockIdx.x * n, y += blockIdx.x * n;
  A sum = 0, squares = 0;
  for (int64_t k = threadIdx.x; k < n; k += blockDim.x) sum += A(x[k]);
  const A m = block_sum(sum) / A(n);
  for (int64_t k = threadIdx.x; k < n; k += blockDim.x) squares += (A(x[k]) - m) * (A(x[k]) - m);
  const A r = A(1) / sqrt(block_sum(squares) / A(n) + A(eps));
  for (int64_t k = threadIdx.x; k < n; k += blockDim.x) y[k] = T((A(x[k]) - m) * r * A(w[k]) + A(b[k]));
  if (threadIdx.x == 0) mean[blockIdx.x] = m, rstd[blockIdx.x] = r;
}
"""
BACKWARD = """
template <class T, class A>
__global__ void backward(const T* grad, const T* x, const T* w, const A* mean, const A* rstd, T* dx, int64_t n) {
  grad += blockIdx.x * n, x += blockIdx.x * n, dx += blockIdx.x * n;
  const A m = mean[blockIdx.x], r = rstd[blockIdx.x];
  A sum = 0, sum_h = 0;
  for (int64_t k = threadIdx.x; k < n; k += blockDim.x) {
    const A g = A(grad[k]) * A(w[k]);
    sum += g, sum_h += g * (A(x[k]) - m) * r;
  }
  const A c = block_sum(sum) / A(n), c_h = block_sum(sum_h) / A(n);
  for (int64_t k = threadIdx.x; k < n; k += blockDim.x)
    dx[k] = T(r * (A(grad[k]) * A(w[k]) - c - (A(x[k]) - m) * r * c_h));
}
"""
forward_kernel = kit.cuda_kernel(
    SUM + FORWARD,
    "forward<T, A>",
    "const T* x, const T* w, const T* b, T* y, A* mean, A* rstd, int64 n, float64 eps",
    grid="numel(mean)",
    block=BLOCK,
)
backward_kernel = kit.cuda_kernel(
    SUM + BACKWARD,
    "backward<T, A>",
    "const T* grad, const T* x, const T* w, const A* mean, const A* rstd, T* dx, int64 n",
    grid="numel(mean)",
    block=BLOCK,
)


def wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def statistics(x, eps):
    mean = wide(x).mean(-1, keepdim=True)
    centred = wide(x) - mean
    return centred, mean, (centred.square().mean(-1, keepdim=True) + eps).rsqrt()


def row_length(x):
    if x.dim() == 0:
        raise ValueError("[layer_norm] x must have a dimension, got shape []")
    return x.shape[-1]


def forward_cuda(x, w, b, eps):
    n, x = row_length(x), x.contiguous()
    y = torch.empty_like(x)
    mean, rstd = (wide(x[..., :0]).new_empty(*x.shape[:-1], 1) for _ in range(2))
    forward_kernel(x, w.contiguous(), b.contiguous(), y, mean, rstd, n, eps)
    return y, mean, rstd


def forward_reference(x, w, b, eps):
    row_length(x)
    centred, mean, rstd = statistics(x, eps)
    return (centred * rstd * w + b).to(x.dtype).contiguous(), mean.contiguous(), rstd.contiguous()


def parameter_gradients(grad, centred, rstd, w):
    rows = wide(grad).reshape(-1, w.numel())
    return (rows * (centred * rstd).reshape(rows.shape)).sum(0).to(w.dtype), rows.sum(0).to(w.dtype)


def backward_cuda(grad, x, w, mean, rstd, eps):
    grad, x = grad.contiguous(), x.contiguous()
    dx = torch.empty_like(x)
    backward_kernel(grad, x, w.contiguous(), mean, rstd, dx, x.shape[-1])
    return dx, *parameter_gradients(grad, wide(x) - mean, rstd, w)


def backward_reference(grad, x, w, mean, rstd, eps):
    """Computes the statistics again, so that what depends on x is seen to."""
    centred, _, rstd = statistics(x, eps)
    g, h = wide(grad) * w, centred * rstd
    dx = rstd * (g - g.mean(-1, keepdim=True) - h * (g * h).mean(-1, keepdim=True))
    return dx.to(x.dtype).contiguous(), *parameter_gradients(grad, centred, rstd, w)


layer_norm_backward = kit.op(
    "examples::layer_norm_backward(Tensor grad, Tensor x, Tensor w, Tensor mean, Tensor rstd, float eps)"
    " -> (Tensor dx, Tensor dw, Tensor db)",
    cuda=backward_cuda,
    reference=backward_reference,
)
layer_norm = kit.op(
    "examples::layer_norm(Tensor x, Tensor w, Tensor b, float eps=1e-5) -> (Tensor y, Tensor mean, Tensor rstd)",
    cuda=forward_cuda,
    reference=forward_reference,
    backward=layer_norm_backward,
    outputs=1,
    autocast="float32",
)

if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(shape, generator=generator) for shape in ((2, 3, 5), (5,), (5,)))
    far = (x.double() + 1000, w.double(), b.double())
    kit.check(layer_norm, (x, w, b), far, unsupported={"0-d": "a row has a length"})
