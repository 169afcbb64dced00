"""``kit.cuda_kernel``: a whole CUDA kernel from its source, with a typed signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .. import _C
from . import nvrtc
from .errors import KitError
from .extent import Launch, Size
from .from_source import FromSource
from .signature import Packing


class _Ready(NamedTuple):
    """A kernel that was compiled for certain dtypes and loaded on a device."""

    handle: int
    packing: Packing


def device_to_prepare(name: str, device: torch.device | str | int | None) -> torch.device:
    """A CUDA device by its index, the current one by default."""
    if not torch.cuda.is_available():
        raise KitError(f"[{name}] prepare found no CUDA device")
    chosen = torch.device("cuda", device) if isinstance(device, int) else torch.device(device or "cuda")
    return torch.device("cuda", torch.cuda.current_device()) if chosen.index is None else chosen


class CudaKernel(FromSource):
    """A CUDA kernel from its source, compiled by NVRTC for the card at hand when first called, and cached on disk.

    ``kernel(x, y, n)`` checks the arguments against the signature, then launches on the tensors' device and torch's
    current stream. Outputs are arguments; it returns nothing. Gradient and CPU form are ``kit.op``'s.

    Args:
        source: CUDA C++. It may use the ``<stdint.h>`` names, ``opmath_t<T>`` (float for the half types, else T), and
            helper functions without ``__device__``. CUDA's own headers are found if they are installed.
        name: the kernel, as one would write it behind the source: ``shift``, or ``shift<T>`` for a template.
        signature: ``"const T* x, T* y, int64 n"``. A pointer is a tensor of that dtype, or None; other types are
            numbers, integers within their range. A capitalised name is a type variable: in each call it is the dtype
            of the tensors that have it, and the source, which may use it too, is compiled once for each. float16 and
            bfloat16 come as ``fastops::float16`` and ``fastops::bfloat16``, which convert from and to float by
            themselves.
            The kernel's own parameters are held against the signature when it is compiled.
        grid, block, shared: blocks, threads in a block and bytes of dynamic shared memory: an integer, an expression
            over the arguments (``"ceil(n / 256)"``, ``"numel(x) // 4"``), or a callable that is given the arguments;
            for grid and block up to three of them. With an empty grid nothing is launched.
        options: further options for NVRTC, such as ``--use_fast_math``.
        contiguous: whether every tensor must be contiguous. A kernel that is given strides says False.

    Raises:
        KitError: signature, grid, block or shared cannot be understood.
    """

    def __init__(
        self,
        source: str,
        name: str,
        signature: str,
        grid: Size | Sequence[Size],
        block: Size | Sequence[Size] = 256,
        shared: Size = 0,
        options: Sequence[str] = (),
        contiguous: bool = True,
    ):
        super().__init__(source, name, signature, options, contiguous, grid, block, shared)
        names = [p.name for p in self.signature.parameters]
        self._launch = Launch(self.name, names, grid, block, shared)
        self._ready: dict[tuple[tuple[torch.dtype, ...], torch.device], _Ready] = {}

    def __call__(self, *arguments: Any) -> None:
        """Checks the arguments and launches on the tensors' device and torch's current stream there.

        Raises:
            KitError: an argument that the signature does not take, or a size that no launch has. Nothing was launched.
            CompileError: the source does not compile.
        """
        dtypes, device = self.signature.bind(arguments, "cuda", self.contiguous)
        ready = self._ready.get((dtypes, device)) or self._prepare(dtypes, device)
        packed = ready.packing(arguments)
        if sizes := self._launch(arguments):
            self.signature.mark_written(arguments)
            _C.kit_launch(ready.handle, *sizes, packed)

    def prepare(self, *dtypes: torch.dtype, device: torch.device | str | int | None = None) -> None:
        """Compiles and loads ahead of the first call: one dtype a type variable, by default for the current device."""
        chosen = device_to_prepare(self.name, device)
        if (dtypes, chosen) not in self._ready:
            self._prepare(dtypes, chosen)

    def explain(self, *arguments: Any) -> str:
        """Which code a call with these arguments runs; it is compiled, not launched."""
        dtypes, device = self.signature.bind(arguments, "cuda", self.contiguous)
        if (dtypes, device) not in self._ready:
            self._prepare(dtypes, device)
        return f"CUDA compiled by NVRTC for {nvrtc.arch_of(device)}"

    def compile(self, arch: str, *dtypes: torch.dtype) -> nvrtc.Image:
        """The machine code for an architecture (``"sm_90"``) and one dtype a type variable. Needs no GPU."""
        source = self._text(self.signature.types(dtypes))
        with self._explained():
            return nvrtc.compile(source, name=self.name, arch=arch, options=self.options, kernels=[self.function])

    def _prepare(self, dtypes: tuple[torch.dtype, ...], device: torch.device) -> _Ready:
        packing = self.signature.packing(self.signature.types(dtypes))
        image = self.compile(nvrtc.arch_of(device), *dtypes)
        library = _C.kit_load(image.cubin)
        handle = _C.kit_kernel(library, image.names[self.function], device.index, self.name, packing.offsets)
        ready = self._ready[dtypes, device] = _Ready(handle, packing)
        return ready


cuda_kernel = CudaKernel
