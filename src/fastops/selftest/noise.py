"""A kernel beside another one that takes turns from one of a multiprocessor's schedulers.

The warps of a block drift apart, so that a missing barrier shows: without it each of them has its turn, and they stay
within some cycles of each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ..kit import cuda_kernel

_CYCLES = 300_000  # some hundred microseconds: longer than a launch and an allocation
# Four chains of dependent sums keep a scheduler busy. What is written is never so, which the compiler cannot know.
_SOURCE = """
__global__ void spin(float* out, int64_t cycles) {
  const long long begin = clock64();
  float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
  while (clock64() - begin < cycles)
    for (int k = 0; k < 64; ++k) {
      a = fmaf(a, 0.5f, 1), b = fmaf(b, 0.5f, 1), c = fmaf(c, 0.5f, 1), d = fmaf(d, 0.5f, 1);
    }
  if (a + b + c + d < 0) *out = a;
}
"""


@functools.cache
def noise_on(device: torch.device) -> Callable[[], None]:
    """What launches it on a stream of its own, a warp for each multiprocessor, if NVRTC and the driver can."""
    count = torch.cuda.get_device_properties(device).multi_processor_count
    spin = cuda_kernel(_SOURCE, "spin", "float* out, int64 cycles", grid=count, block=32)
    out, stream = torch.zeros(1, device=device), torch.cuda.Stream(device)
    try:
        spin.prepare(device=device)
    except RuntimeError:  # of NVRTC, or of a driver that does not load it
        return lambda: None
    stream.wait_stream(torch.cuda.current_stream(device))

    def launch() -> None:
        with torch.cuda.stream(stream):
            spin(out, _CYCLES)

    return launch
