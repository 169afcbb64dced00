"""A call behind kernels that have yet to write what it reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from ..cases import RawCall
from ..kit import cuda_kernel

_CYCLES = 300_000  # 0.15 to 0.2 ms: longer than the launches behind it
_MOST = 9  # tensors of a call
_BLOCKS, _THREADS = 32, 512  # few, so that there is room for blocks that come early
_PARAMETERS = [(f"out{k}", f"in{k}", f"size{k}") for k in range(_MOST)]
_SOURCE = f"""
void copy(uint8_t* out, const uint8_t* in, int64_t size) {{
  const int64_t first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const bool aligned = ((uint64_t)out | (uint64_t)in) % sizeof(uint4) == 0;
  const int64_t vectors = aligned ? size / sizeof(uint4) : 0;
  for (int64_t i = first; i < vectors; i += step) ((uint4*)out)[i] = ((const uint4*)in)[i];
  for (int64_t i = vectors * sizeof(uint4) + first; i < size; i += step) out[i] = in[i];
}}
__global__ void write_late({", ".join(f"uint8_t* {o}, const uint8_t* {i}, int64_t {n}" for o, i, n in _PARAMETERS)},
                           int64_t cycles) {{
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  for (const long long begin = clock64(); clock64() - begin < cycles;) {{}}
  {" ".join(f"copy({o}, {i}, {n});" for o, i, n in _PARAMETERS)}
}}
"""
_SIGNATURE = ", ".join(f"uint8* {o}, const uint8* {i}, int64 {n}" for o, i, n in _PARAMETERS) + ", int64 cycles"
Writer = Callable[[Iterable[tuple[Tensor, Tensor]]], None]


@functools.cache
def writer_on(device: torch.device) -> Writer | None:
    """Copies each second tensor to the first one, but late, and what is launched next may start before it.

    None if NVRTC or the driver cannot.
    """
    kernel = cuda_kernel(_SOURCE, "write_late", _SIGNATURE, grid=_BLOCKS, block=_THREADS)
    try:
        kernel.prepare(device=device)
    except RuntimeError:
        return None

    def write(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        given = [x for pair in pairs for x in (*(x.view(-1).view(torch.uint8) for x in pair), pair[0].nbytes)]
        kernel(*given, *(None, None, 0) * (_MOST - len(given) // 3), _CYCLES)

    return write


def just_written(call: RawCall) -> RawCall:
    """With copies of its tensors, which the kernel just before it writes late, over NaN or index 0.

    A kernel that starts before the one ahead of it ends, and does not wait, reads that; so does one behind it that may
    start before it has waited.
    """
    tensors = {k: x.contiguous() for k, x in enumerate(call.args) if isinstance(x, Tensor) and x.numel()}
    device = next(iter(tensors.values())).device if tensors else torch.device("cpu")
    write = writer_on(device) if device.type == "cuda" and len(tensors) <= _MOST else None
    if write is None:
        return just_written_by_ours(call)
    copies = {k: torch.full_like(x, torch.nan if x.is_floating_point() else 0) for k, x in tensors.items()}
    write((copies[k], x) for k, x in tensors.items())
    return call.with_tensors(copies)


def just_written_by_ours(call: RawCall) -> RawCall:
    """Likewise by kernels of ours, in memory that held NaN: in a graph ours are launched early behind ours alone."""
    tensors = [x for x in call.args if isinstance(x, Tensor) and x.is_floating_point()]
    spoiled = [torch.full_like(x, torch.nan) for x in tensors]
    del spoiled  # for the copies

    def written(x: Tensor) -> Tensor:
        return torch.ops.fastops.axpby(x, x, 1.0, 0.0) if x.is_floating_point() else x.clone()  # type: ignore[no-any-return]

    return call.with_args(tuple(written(x) if isinstance(x, Tensor) else x for x in call.args))
