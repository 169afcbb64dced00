"""The extension: what the binary is and what it chose here. Operators are in torch.ops.fastops."""

from collections.abc import Sequence
from typing import TypedDict

class BuildInfo(TypedDict):
    version: str
    distribution: str
    git_commit: str
    compiler: str
    torch_version: str  # of the headers
    torch_floor: str
    cuda_version: str  # empty: no CUDA kernels
    cubins: list[int]
    ptx: list[int]
    arch_groups: list[str]  # best last
    isa_levels: list[str]  # best last
    static_nanobind: bool

class Cpu(TypedDict):
    isa: str
    missing: dict[str, str]  # level -> first CPU feature missing here; empty: the level runs

class CudaFit(TypedDict):
    capability: int  # 10 * major + minor
    arch: str | None
    reason: str

class CudaDevice(CudaFit):
    index: int

def build_info() -> BuildInfo: ...
def cpu() -> Cpu: ...
def set_isa(level: str) -> None: ...
def cuda_devices() -> list[CudaDevice]: ...
def cuda_fit(capability: int, driver: int) -> CudaFit: ...
def cuda_error() -> str: ...

# What a kernel of the kit takes: tensors in and out, and scalars.
kit_max_operands: int
kit_max_scalars: int

# The kit's launcher. `image` and `kernel` are handles, valid as long as the process: no other integer may be passed.
# grid and block have three sizes.
def kit_load(cubin: bytes) -> int: ...
def kit_kernel(image: int, symbol: str, device: int, op: str, offsets: list[int]) -> int: ...
def kit_launch(kernel: int, grid: Sequence[int], block: Sequence[int], shared_bytes: int, arguments: bytes) -> None: ...

# Programs of kit/program.py: what implements them, and their kernels; `handle` is a function's address, 0 for none.
def kit_define(name: str, reference: str, tensors: Sequence[str], scalars: int, outputs: int) -> int: ...
def kit_implement(op: str, reduces: bool) -> None: ...
def kit_add_kernel(program: int, dtypes: int, device: int, variant: int, handle: int) -> None: ...
def kit_add_cuda_kernel(program: int, dtypes: int, device: int, variant: int, image: int, symbol: str) -> None: ...
