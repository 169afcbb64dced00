"""A GPU without kernels: the reason, the command that mends it, and the CPU path that keeps working."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastops import _C, _driver, capability
from fastops._remedy import remedy

BUILD = _C.build_info()
CUDA = int(BUILD["cuda_version"].split(".")[0] or 0)
MINOR = int((BUILD["cuda_version"] or "0.0").split(".")[1])
NEWEST = 1000 * CUDA + 10 * MINOR  # the CUDA of this build, as a driver states it
needs_kernels = pytest.mark.skipif(not CUDA, reason="this build has no CUDA kernels")

SWITCH = "pip uninstall -y {} && pip install {}==1.2"


@pytest.mark.parametrize(
    ("distribution", "card", "driver", "expected"),
    [
        ("fastops", "9.0", "13.0", SWITCH.format("fastops", "fastops-cu13")),
        ("fastops", "9.0", "12.4", SWITCH.format("fastops", "fastops-cu12")),
        ("fastops-cu13", "9.0", "12.9", SWITCH.format("fastops-cu13", "fastops-cu12")),
        ("fastops-cu13", "7.0", "13.0", SWITCH.format("fastops-cu13", "fastops-cu12")),
        ("fastops-cu12", "12.0", "13.2", SWITCH.format("fastops-cu12", "fastops-cu13")),
        ("fastops-cu12", "9.0", "11.8", "Update the NVIDIA driver to one for CUDA 12: "),
        ("fastops-cu13", "9.0", "11.8", "Update the NVIDIA driver to one for CUDA 13: "),
        ("fastops", "9.0", "11.8", ", then " + SWITCH.format("fastops", "fastops-cu12")),
        ("fastops-cu13", "7.0", "11.8", ", then " + SWITCH.format("fastops-cu13", "fastops-cu12")),
        ("fastops-cu12", "13.0", "12.4", ", then " + SWITCH.format("fastops-cu12", "fastops-cu13")),
        ("fastops-cu13", "8.7", "13.0", "FASTOPS_CUDA_ARCHS=87 pip install --no-cache-dir "),
        ("fastops-cu12", "6.1", "12.9", "FASTOPS_CUDA= FASTOPS_CUDA_ARCHS=61 pip install --no-cache-dir --no-binary"),
        (
            "fastops-cu13",
            "11.0",
            "13.0",
            "FASTOPS_CUDA_ARCHS=110 pip install --no-cache-dir --no-binary fastops fastops==1.2",
        ),
        ("fastops", "10.3", "13.0", SWITCH.format("fastops", "fastops-cu13")),
    ],
)
def test_the_command_that_mends(distribution: str, card: str, driver: str, expected: str) -> None:
    assert expected in remedy(distribution, "1.2", card, driver)


@needs_kernels
@pytest.mark.parametrize("arch", BUILD["cubins"])
def test_machine_code_runs_under_any_driver_of_its_cuda(arch: int) -> None:
    found = _C.cuda_fit(arch, 1000 * CUDA)
    assert found["arch"] is not None
    assert found["reason"] == f"machine code for compute capability {arch // 10}.{arch % 10}"


@needs_kernels
def test_a_later_card_needs_ptx_and_a_driver_that_compiles_it() -> None:
    later = BUILD["ptx"][-1] // 10 * 10 + 10
    assert _C.cuda_fit(later, NEWEST)["arch"] is not None
    assert _C.cuda_fit(later, NEWEST)["reason"].startswith("PTX, compiled by the driver for ")
    older = _C.cuda_fit(later, NEWEST - 10)
    assert older["arch"] is None
    assert BUILD["cuda_version"] in older["reason"]


@needs_kernels
def test_a_card_older_than_the_build() -> None:
    found = _C.cuda_fit(61, NEWEST)
    assert found["arch"] is None
    archs = ", ".join(f"sm_{arch}" for arch in BUILD["cubins"])
    assert found["reason"] == (
        f"compute capability 6.1 is not in this build's machine code ({archs}) and older than its PTX"
    )


@needs_kernels
def test_a_driver_older_than_the_build() -> None:
    found = _C.cuda_fit(BUILD["cubins"][-1], 11080)
    assert found["arch"] is None
    assert found["reason"] == (
        f"the NVIDIA driver runs CUDA 11.8 and older, this build is of CUDA {BUILD['cuda_version']}"
    )


@needs_kernels
@pytest.mark.parametrize("chip", [72, 87, 110])
def test_a_tegra_chip_runs_no_desktop_code(chip: int) -> None:
    found = _C.cuda_fit(chip, NEWEST)
    assert found["arch"] is None or found["reason"].startswith("PTX, ")


def test_what_conda_installed_is_mended_by_conda() -> None:
    assert remedy("fastops", "1.2", "9.0", "13.0", conda=True) == 'conda install "fastops=*=cuda13*"'
    assert "conda remove fastops && " in remedy("fastops", "1.2", "6.1", "13.0", conda=True)


def test_capabilities_end_the_reason_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "cuda_devices", list)
    monkeypatch.setattr(_C, "cuda_error", lambda: "the NVIDIA driver runs CUDA 12.4 and older")
    monkeypatch.setattr(_C, "cuda_fit", lambda capability, driver: {"arch": None})
    (gpu,), _ = capability._gpus(_driver.Driver("550.1", "12.4", (("H200", "9.0"),)), "fastops-cu13", "1.2")
    assert gpu.arch is None
    assert gpu.reason == (
        "the NVIDIA driver runs CUDA 12.4 and older. pip uninstall -y fastops-cu13 && pip install fastops-cu12==1.2"
    )


OLD_DRIVER = r"""
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 11080; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) { __builtin_strcpy(name, "Old Card"); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 8 : 0; return 0; }
int cuGetErrorString(int status, const char **text) { *text = "no such thing"; return 0; }
"""


def test_under_an_old_driver_the_cpu_works_and_the_report_says_what_to_do(tmp_path: Path) -> None:
    """A libcuda of CUDA 11.8 in the driver's place, as the CUDA runtime in the extension and our probe find it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler to make the old driver with")
    (tmp_path / "old.c").write_text(OLD_DRIVER)
    library = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "old.c"], check=True)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("LD_LIBRARY_PATH")]))
    code = (
        "import fastops, json, torch; x = torch.arange(5.0);"
        "print(json.dumps([torch.equal(fastops.square(x), x * x), fastops.capabilities().gpus[0].reason]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"LD_LIBRARY_PATH": path}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    right, reason = json.loads(result.stdout)
    assert right
    cause = f"the NVIDIA driver runs CUDA 11.8 and older, this build is of CUDA {BUILD['cuda_version']}"
    assert reason.startswith(cause if CUDA else "this build has no CUDA kernels")
    assert ". Update the NVIDIA driver to one for CUDA " in reason
