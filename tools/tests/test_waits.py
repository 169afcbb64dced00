"""tools/gates/waits.py finds what a kernel does before it waits, and the sources launch in one way."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "gates"))
import waits  # noqa: E402

# As cuobjdump prints it: below each instruction the second half of its encoding.
LINE = """        /*{at:04x}*/              {text} ;          /* 0x0000000000007918 */
                                                         /* 0x000fc00000000000 */
"""


def said(*texts: str, name: str = "kernel") -> str:
    code = "".join(LINE.format(at=16 * k, text=text) for k, text in enumerate(texts))
    listing = f'\t\tFunction : {name}\n\t.headerflags @"EF_CUDA_SM90"\n{code}\t\t..........\n'
    ((found, instructions),) = waits.kernels(listing.splitlines(keepends=True))
    assert found == name
    assert len(instructions) == len(texts)
    return waits.wrong(found, instructions)


LOAD, STORE = "LDG.E.128 R4, desc[UR4][R2.64]", "STG.E desc[UR4][R2.64], R5"
RIGHT = {
    "a wait first": ("S2R R0, SR_TID.X", "ACQBULK", "PREEXIT", LOAD, STORE, "EXIT"),
    "shared and local memory before": ("STS [R0], RZ", "LDL R1, [R1]", "LDS R2, [R3]", "ACQBULK", LOAD, "EXIT"),
    "a branch around something before": ("@P0 BRA 0x20", "STS [R0], RZ", "ACQBULK", LOAD, "EXIT"),
    "what follows the end is reached after the wait": ("ACQBULK", "@P0 BRA 0x30", "EXIT", LOAD, "BRA 0x20"),
    "a branch back before": ("SYNCS.EXCH.64 URZ, [UR4], UR6", "@P0 BRA 0x0", "ACQBULK", LOAD, "EXIT"),
}
WRONG = {
    "no wait": (("IMAD R0, R1, R2, R3", "EXIT"), "ends before it waits: EXIT at 0x10"),
    "a load before": ((LOAD, "ACQBULK", "EXIT"), "touches memory before it waits: LDG.E.128 R4"),
    "a prefetch before": (("CCTL.E.PF2 [R2]", "ACQBULK", "EXIT"), "touches memory before it waits: CCTL.E.PF2"),
    "a bulk copy before": (("@P0 UBLKCP.S.G [UR8], [UR34], UR12", "ACQBULK", "EXIT"), "touches memory"),
    "a predicated load before": (("@P0 LDG.E R4, [R2]", "ACQBULK", "EXIT"), "touches memory"),
    "a return before": (("@P0 EXIT", "ACQBULK", LOAD, "EXIT"), "ends before it waits: EXIT at 0x0"),
    "some threads wait": (("@P0 ACQBULK", STORE, "EXIT"), "touches memory before it waits: STG.E"),
    "a branch around the wait": (
        ("@P0 BRA 0x20", "ACQBULK", LOAD, "EXIT"),
        "touches memory before it waits: LDG.E.128",
    ),
    "a branch to code behind the end": (
        ("@P0 BRA 0x30", "ACQBULK", "EXIT", STORE, "BRA 0x10"),
        "touches memory before it waits: STG.E",
    ),
    "a uniform branch to it": (("BRA.U UP0, 0x30", "ACQBULK", "EXIT", STORE, "BRA 0x10"), "touches memory"),
    "a call that loads": (("CALL.REL.NOINC 0x30", "ACQBULK", "EXIT", LOAD, "RET.REL.NODEC R2 0x0"), "touches memory"),
    "a signal before": (("PREEXIT", "ACQBULK", LOAD, "EXIT"), "lets the next kernel start before it waits"),
    "a jump table before": (("BRX R2 -0x10", "ACQBULK", LOAD, "EXIT"), "goes to an address that is not known"),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_kernel_that_waits(case: str) -> None:
    assert said(*RIGHT[case]) == ""


@pytest.mark.parametrize("case", WRONG)
def test_a_kernel_that_does_not(case: str) -> None:
    code, expected = WRONG[case]
    assert expected in said(*code)


def test_a_kernel_that_may_overlap_waits_before_it_ends() -> None:
    name = "_ZN7fastops23backward_columns_kernelIfE"
    assert said(LOAD, STORE, "ACQBULK", "PREEXIT", "EXIT", name=name) == ""
    assert "ends before it waits" in said(LOAD, STORE, "EXIT", name=name)
    assert "lets the next kernel start" in said(LOAD, "PREEXIT", "ACQBULK", "EXIT", name=name)


SOURCE = """
#include "engine/pointwise.cuh"
namespace fastops::FASTOPS_ARCH {
__global__ void right(float* p) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  p[threadIdx.x] *= 2;
}
__global__ void late(float* p, int n) {
  if (threadIdx.x >= n) return;
  wait_for_earlier_kernels();
  p[threadIdx.x] *= 2;
}
}
"""


def test_compiled_code(tmp_path: Path) -> None:
    gates = pytest.importorskip("gates", reason="the group `release` is not installed")
    if not (nvcc := shutil.which("nvcc")):
        pytest.skip("no nvcc here")
    (tmp_path / "kernels.cu").write_text(SOURCE)
    folders = [f"-I{ROOT / folder}" for folder in ("cpp", "cuda")]
    command = [nvcc, "-cubin", "-arch=sm_90", "-std=c++17", "-DFASTOPS_ARCH=generic", *folders, "kernels.cu"]
    subprocess.run(command, cwd=tmp_path, check=True)
    listing = gates.run(gates.cuobjdump(), "--dump-sass", str(tmp_path / "kernels.cubin"))
    found = {name: waits.wrong(name, code) for name, code in waits.kernels(listing.splitlines())}
    assert len(found) == 2
    assert all(("ends before it waits" in said) == ("late" in name) for name, said in found.items())
    assert "" in found.values()


def test_every_launch_is_early() -> None:
    """By launch_kernel() alone, in cuda/dependent.cuh."""
    sources = [*(ROOT / "cuda").rglob("*.cu*"), *(ROOT / "tools" / "new_op").rglob("*.cu*")]
    assert len(sources) > 20
    words = ("<<<", "cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchCooperative")
    found = {file.name for file in sources for word in words if word in file.read_text()}
    assert found == {"dependent.cuh"}
