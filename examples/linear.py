"""y = x Wᵀ + b with kernels of one's own in C++ and CUDA, and torch's GEMMs for the gradient.

The tutorial behind it has a C++ file, a CUDA file, a binding and a setup.py. What it teaches is the way in, not a fast
GEMM: for that call torch.nn.functional.linear, which is cuBLAS, or fastops.linear with its fused activation.
"""

import torch

from fastops import kit

SIGNATURE = "const T* x, const T* w, const T* b, T* y, int64 rows, int64 outs, int64 ins"
DOT = """
template <class T>
T dot(const T* x, const T* w, T b, int64_t n) {  // of one row and one output, in float for the half types
  opmath_t<T> sum = 0;
  for (int64_t k = 0; k < n; ++k) sum += opmath_t<T>(x[k]) * opmath_t<T>(w[k]);
  return T(sum + opmath_t<T>(b));
}
"""
CPP = """
template <class T>
void linear(const T* x, const T* w, const T* b, T* y, int64_t rows, int64_t outs, int64_t ins) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < outs; ++j) y[i * outs + j] = dot(x + i * ins, w + j * ins, b[j], ins);
}
"""
CUDA = """
template <class T>
__global__ void linear(const T* x, const T* w, const T* b, T* y, int64_t rows, int64_t outs, int64_t ins) {
  const int64_t k = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, i = k / outs, j = k % outs;
  if (k < rows * outs) y[k] = dot(x + i * ins, w + j * ins, b[j], ins);
}
"""
on_cpu = kit.cpp_op(DOT + CPP, "linear<T>", SIGNATURE)
on_cuda = kit.cuda_kernel(DOT + CUDA, "linear<T>", SIGNATURE, grid="ceil(rows * outs / 128)", block=128)


def forward(kernel):
    def run(x, w, b):
        if w.dim() != 2 or x.shape[-1:] != w.shape[1:] or b.shape != w.shape[:1]:
            shapes = ", ".join(str([*t.shape]) for t in (x, w, b))
            raise kit.KitError(f"[linear] expected x [*, ins], w [outs, ins] and b [outs], got {shapes}")
        outs, ins = w.shape
        y = x.new_empty(*x.shape[:-1], outs)
        kernel(x.contiguous(), w.contiguous(), b.contiguous(), y, x.shape[:-1].numel(), outs, ins)
        return y

    return run


def backward(grad, x, w, needs):
    rows, x = grad.flatten(0, -2), x.flatten(0, -2)
    return (
        grad @ w if needs[0] else None,
        rows.mT @ x if needs[1] else None,
        rows.sum(0) if needs[2] else None,
    )


linear = kit.op(
    "examples::linear(Tensor x, Tensor w, Tensor b) -> Tensor",
    cpu=forward(on_cpu),
    cuda=forward(on_cuda),
    reference=torch.nn.functional.linear,
    fake=lambda x, w, b: x.new_empty(*x.shape[:-1], w.shape[0]),
    backward=backward,
    autocast="lower",
)

if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(shape, generator=generator) for shape in ((5, 3), (4, 3), (4,)))
    kit.check(linear, (x, w, b), unsupported={"0-d": "w is a matrix"})
