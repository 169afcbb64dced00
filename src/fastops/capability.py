"""What this build holds, what this machine takes of it, and for each thing not taken the reason."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from . import _C, _driver, _load
from ._plan import DTYPES, Plan, plan
from ._remedy import major_of, remedy
from .sharding import lazy

# As the extension read them, when it was loaded.
_FORCED = {name: os.environ[name] for name in ("FASTOPS_CPU_ISA", "FASTOPS_CUDA_CARD") if os.environ.get(name)}


@dataclass(frozen=True)
class Build:
    """What the binary was built from, with and for; archs are 10 * major + minor, levels and groups best last."""

    version: str
    distribution: str
    git_commit: str
    compiler: str
    torch_version: str
    torch_floor: str
    cuda_version: str
    cubins: tuple[int, ...]
    ptx: tuple[int, ...]
    arch_groups: tuple[str, ...]
    isa_levels: tuple[str, ...]
    static_nanobind: bool


@dataclass(frozen=True)
class CpuLevel:
    """One level of the CPU kernels."""

    name: str
    chosen: bool
    reason: str


@dataclass(frozen=True)
class Gpu:
    """One visible GPU and the group of CUDA kernels it runs; ``arch`` None: it runs the reference."""

    index: int
    name: str
    capability: str
    arch: str | None
    reason: str


@dataclass(frozen=True)
class Capabilities:
    """The answer of :func:`capabilities`; ``str()`` of it is for people.

    Attributes:
        build: what the binary records.
        cpu_level: the level of the CPU kernels in use.
        cpu_levels: every level of the build, best first, each with the reason why it is or is not in use.
        gpus: every GPU that the driver shows, in CUDA's order.
        no_gpu: why no GPU can be used; empty if one can.
        torch_version: of the PyTorch in this process.
        torch_cuda: the CUDA it was built with, or None.
        driver: version of the NVIDIA driver and the newest CUDA it runs.
        paths: torch device -> ``"cpu"`` or ``"cuda"`` kernels, or the plain ``"reference"``, which other devices
            and dtypes without a kernel run too.
        forced: the environment variables that force a level of CPU kernels or a card's plans.
        overrides: torch's functions that :func:`fastops.enable` has our kernels behind, with what ran before.
        dtensor: whether ``torch.distributed.tensor`` has the operators' rules of sharding, and if not, why.
    """

    build: Build
    cpu_level: str
    cpu_levels: tuple[CpuLevel, ...]
    gpus: tuple[Gpu, ...]
    no_gpu: str
    torch_version: str
    torch_cuda: str | None
    driver: str
    paths: Mapping[str, str]
    forced: Mapping[str, str]
    overrides: Mapping[str, str]
    dtensor: str

    def plan(
        self, op: str, dtype: torch.dtype, size: tuple[int, ...], *, backward: bool = False, card: str | None = None
    ) -> Plan:
        """Which kernel runs for a problem, and why, as ``python -m fastops.info --plan`` prints it.

        Args:
            op: a public operator's name.
            dtype: of the tensors.
            size: rows and their length; of ``linear`` rows, features and outputs.
            backward: the gradients' kernel.
            card: a card's name such as ``"h100"``, or ``"cpu"``; None for the current GPU, or the CPU where there is
                none.

        Raises:
            ValueError: an unknown op, dtype or card, or a size that the op does not have.

        Example::

            >>> fastops.capabilities().plan("layer_norm", torch.bfloat16, (8192, 4096), card="h100").kernel
            'one part'
        """
        names = {dtype: name for name, dtype in DTYPES.items()}
        return plan(op, names.get(dtype, str(dtype)), size, card, backward=backward)

    def __str__(self) -> str:
        build = self.build
        archs = [f"sm_{arch}" for arch in build.cubins] + [f"PTX of compute_{arch}" for arch in build.ptx]
        lines = [
            f"build    {build.version} ({build.distribution}, commit {build.git_commit}), {build.compiler}, "
            f"headers of PyTorch {build.torch_version} for {build.torch_floor} and newer",
            f"cuda     {build.cuda_version} for {', '.join(archs)}"
            if build.cuda_version
            else "cuda     not in this build",
            f"torch    {self.torch_version}, " + (f"CUDA {self.torch_cuda}" if self.torch_cuda else "without CUDA"),
            f"driver   {self.driver}",
        ]
        lines += [_line("cpu", level.name, level.chosen, level.reason) for level in self.cpu_levels]
        for gpu in self.gpus:
            where = f"{gpu.index}: {gpu.name}, {gpu.arch or 'no kernels'}"
            lines.append(_line("gpu", where, gpu.arch is not None and not self.no_gpu, gpu.reason))
        if self.no_gpu:
            lines.append(_line("gpu", "none", False, self.no_gpu))
        lines.append("paths    " + ", ".join(f"{device}: {path}" for device, path in self.paths.items()))
        lines[-1] += ", other devices: reference"
        lines.append(f"dtensor  {self.dtensor}")
        lines += [f"forced   {name}={value}" for name, value in self.forced.items()]
        lines += [f"enabled  {name} in place of {was}" for name, was in self.overrides.items()]
        return "\n".join(lines)


def capabilities() -> Capabilities:
    """What this build holds and what this machine takes of it.

    Asks the NVIDIA driver, if there is one, but makes no CUDA context and leaves ``torch.cuda`` uninitialised. As after
    any use of the driver, forked children cannot use CUDA.

    Example::

        >>> print(fastops.capabilities())
        >>> fastops.capabilities().paths["cpu"]
        'cpu'
    """
    info = _C.build_info()
    recorded: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in info.items()}
    build = Build(**{field.name: recorded[field.name] for field in fields(Build)})
    level, levels = _cpu_levels(build)
    driver = _driver.probe()
    gpus, kernels_error = _gpus(driver, build.distribution, build.version)
    torch_cuda = torch.version.cuda
    too_new = torch_cuda is not None and bool(gpus and driver.cuda) and major_of(torch_cuda) > major_of(driver.cuda)
    usable = gpus if torch_cuda and not too_new else ()
    # All reasons, since all must be mended. Without a driver the CUDA runtime says that the driver is too old.
    reasons = [
        "" if torch_cuda else f"PyTorch {torch.__version__} is built without CUDA",
        "" if build.cuda_version else "this build has no CUDA kernels",
        driver.error or ("" if gpus else kernels_error or "the driver shows no GPU"),
        f"PyTorch {torch.__version__} is for CUDA {torch_cuda}, the driver runs {driver.cuda} and older"
        if too_new
        else "",
    ]
    return Capabilities(
        build=build,
        cpu_level=level,
        cpu_levels=levels,
        gpus=gpus,
        no_gpu="" if usable else "; ".join(filter(None, reasons)),
        torch_version=torch.__version__,
        torch_cuda=torch_cuda,
        driver=str(driver),
        paths={"cpu": "cpu"} | {f"cuda:{gpu.index}": "cuda" if gpu.arch else "reference" for gpu in usable},
        forced=dict(_FORCED),
        overrides=_overrides(),
        dtensor=lazy.state(),
    )


def _overrides() -> dict[str, str]:
    in_force = [name for name in _C.overridden() if _C.is_enabled(name)]
    if not in_force:
        return {}
    from .overrides import was

    return {name: was(name) for name in in_force}


def _cpu_levels(build: Build) -> tuple[str, tuple[CpuLevel, ...]]:
    cpu = _C.cpu()
    names, missing, chosen = build.isa_levels, cpu["missing"], cpu["isa"]
    runs = [name for name in names if not missing[name]]
    by = "FASTOPS_CPU_ISA" if _FORCED.get("FASTOPS_CPU_ISA") == chosen else "set_isa()"

    def reason(name: str) -> str:
        if missing[name]:
            return f"this CPU lacks {missing[name]}"
        if names.index(name) < names.index(chosen):
            return f"lower than {chosen}"
        if name != chosen:
            return f"{by} asked for {chosen}"
        return "the best that this CPU runs" if name == runs[-1] else f"asked for by {by}"

    return chosen, tuple(CpuLevel(name, name == chosen, reason(name)) for name in reversed(names))


def _gpus(driver: _driver.Driver, distribution: str, version: str) -> tuple[tuple[Gpu, ...], str]:
    """The driver's GPUs with the extension's choice for each, and why the extension sees none."""
    try:
        rows = {row["index"]: row for row in _C.cuda_devices()}
        error = _C.cuda_error()
    except Exception as failure:  # a report must not fail for what it reports on
        rows, error = {}, str(failure)
    gpus = []
    for index, (name, capability) in enumerate(driver.gpus):
        row = rows.get(index)
        arch, reason = (row["arch"], row["reason"]) if row else (None, error or "not seen")
        if arch is None and not _build_fits(capability, driver.cuda):
            reason += ". " + remedy(distribution, version, capability, driver.cuda, _load.by_conda())
        gpus.append(Gpu(index, name, capability, arch, reason))
    return tuple(gpus), error


def _build_fits(capability: str, driver_cuda: str) -> bool:
    """Whether this build has kernels for such a GPU: then the trouble is another, and no other build helps."""
    major, minor = (int(part) for part in driver_cuda.split("."))
    return _C.cuda_fit(int(capability.replace(".", "")), 1000 * major + 10 * minor)["arch"] is not None


def _line(what: str, name: str, chosen: bool, reason: str) -> str:
    return f"{what:8} {'+' if chosen else '-'} {name}: {reason}"
