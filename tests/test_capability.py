"""``capabilities()`` says what the extension says, with a reason for everything that was not chosen."""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fastops
from fastops import _C, _driver, capability
from fastops.capability import Capabilities

LEVELS = _C.build_info()["isa_levels"]
HERE = [level for level in LEVELS if not _C.cpu()["missing"][level]]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("FASTOPS_")} | environment
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends a machine: what the driver, the extension and PyTorch say of it."""

    def pretend(
        driver: _driver.Driver, devices: list[dict[str, Any]], error: str = "", torch_cuda: str | None = "13.0"
    ) -> Capabilities:
        monkeypatch.setattr(_driver, "probe", lambda: driver)
        monkeypatch.setattr(_C, "cuda_devices", lambda: devices)
        monkeypatch.setattr(_C, "cuda_error", lambda: error)
        monkeypatch.setattr(torch.version, "cuda", torch_cuda)
        return fastops.capabilities()

    return pretend


def test_the_stubs_name_what_the_extension_has() -> None:
    stub = next(Path(folder, "_C.pyi") for folder in fastops.__path__ if Path(folder, "_C.pyi").exists())
    tree = ast.parse(stub.read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    numbers = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}  # type: ignore[union-attr]
    assert functions | numbers == {name for name in dir(_C) if not name.startswith("_")}
    keys = {
        node.name: {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}  # type: ignore[union-attr]
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    assert keys["BuildInfo"] == set(_C.build_info())
    assert keys["Cpu"] == set(_C.cpu())
    assert keys["CudaFit"] == set(_C.cuda_fit(90, 13000))
    for row in _C.cuda_devices():
        assert keys["CudaFit"] | keys["CudaDevice"] == set(row)


def test_build_is_what_the_binary_records() -> None:
    build = dataclasses.asdict(fastops.capabilities().build)
    assert {name: list(v) if isinstance(v, tuple) else v for name, v in build.items()} == _C.build_info()


def test_cpu_level_is_the_one_in_use() -> None:
    found = fastops.capabilities()
    assert found.cpu_level == _C.cpu()["isa"]
    assert [level.name for level in found.cpu_levels] == LEVELS[::-1]
    assert [level.name for level in found.cpu_levels if level.chosen] == [found.cpu_level]
    assert all(level.reason for level in found.cpu_levels)
    assert found.torch_version == torch.__version__
    assert found.torch_cuda == torch.version.cuda
    assert found.paths["cpu"] == "cpu"


def test_gpus_are_those_that_the_extension_sees() -> None:
    found, rows = fastops.capabilities(), _C.cuda_devices()
    if not rows:
        assert found.no_gpu or found.gpus
        assert "cuda" not in found.paths.values()
        return
    seen = [(gpu.index, gpu.arch, gpu.reason) for gpu in found.gpus]
    assert seen == [(row["index"], row["arch"], row["reason"]) for row in rows]
    assert [gpu.capability.replace(".", "") for gpu in found.gpus] == [str(row["capability"]) for row in rows]


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        fastops.capabilities().cpu_level = "base"  # type: ignore[misc]


@pytest.mark.parametrize("level", LEVELS)
def test_forced_level(level: str) -> None:
    code = (
        "import fastops, json, dataclasses, torch; x = torch.arange(-9, 10.0, dtype=torch.float64);"
        "print(torch.equal(fastops.square(x), x * x), torch.equal(fastops.relu(x), x.clamp(min=0)));"
        "print(json.dumps(dataclasses.asdict(fastops.capabilities())))"
    )
    result = python(code, FASTOPS_CPU_ISA=level)
    if level not in HERE:
        assert f"'{level}' cannot run here: this CPU lacks {_C.cpu()['missing'][level]}" in result.stderr
        return
    assert result.returncode == 0, result.stderr
    computed, _, described = result.stdout.partition("\n")
    assert computed == "True True"
    found = json.loads(described)
    assert found["cpu_level"] == level
    assert found["forced"] == {"FASTOPS_CPU_ISA": level}
    for row in found["cpu_levels"]:
        higher = LEVELS.index(row["name"]) > LEVELS.index(level)
        if row["name"] == level:
            best = level == HERE[-1]
            assert row["reason"] == ("the best that this CPU runs" if best else "asked for by FASTOPS_CPU_ISA")
        elif row["name"] in HERE:
            assert row["reason"] == (f"FASTOPS_CPU_ISA asked for {level}" if higher else f"lower than {level}")
        else:
            assert row["reason"].startswith("this CPU lacks ")


def test_unknown_level_lists_the_choices() -> None:
    result = python("import fastops", FASTOPS_CPU_ISA="mmx")
    assert result.returncode == 1
    expected = f"ImportError: [fastops] FASTOPS_CPU_ISA must be one of {', '.join(LEVELS)}, got 'mmx'"
    assert expected in result.stderr.splitlines()


def test_unknown_card_lists_the_choices() -> None:
    if not _C.build_info()["arch_groups"]:
        pytest.skip("this build has no CUDA kernels")
    result = python("import fastops", FASTOPS_CUDA_CARD="k80")
    assert result.returncode == 1
    expected = f"ImportError: [fastops] FASTOPS_CUDA_CARD must be one of {', '.join(_C.plan_cards())}, got 'k80'"
    assert expected in result.stderr.splitlines()


def test_a_card_is_not_forced_on_a_build_without_kernels() -> None:
    if _C.build_info()["arch_groups"]:
        pytest.skip("this build has CUDA kernels")
    result = python("import fastops", FASTOPS_CUDA_CARD="a100")
    assert result.returncode == 1
    assert "FASTOPS_CUDA_CARD must be unset, since this build has no CUDA kernels, got 'a100'" in result.stderr


def test_a_forced_card_has_its_facts_as_far_as_the_gpu_has_them(cuda: torch.device) -> None:
    code = "from fastops import _C; print(_C.plan_card(0))"
    own = ast.literal_eval(python(code).stdout)
    for name, facts in _C.plan_cards().items():
        found = ast.literal_eval(python(code, FASTOPS_CUDA_CARD=name).stdout)
        assert found == [min(pair) for pair in zip(own, facts, strict=True)]


def test_empty_variables_force_nothing() -> None:
    code = "import fastops; print(dict(fastops.capabilities().forced))"
    assert python(code, FASTOPS_CPU_ISA="").stdout == "{}\n"
    assert python(code, FASTOPS_CPU_ISA="base").stdout == "{'FASTOPS_CPU_ISA': 'base'}\n"


def test_variables_set_after_the_import_force_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(fastops.capabilities().forced)
    monkeypatch.setenv("FASTOPS_CUDA_CARD", "nonsense")
    assert fastops.capabilities().forced == before


def test_level_set_by_hand_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    if len(HERE) < 2:
        pytest.skip("this CPU runs one level")
    monkeypatch.delitem(capability._FORCED, "FASTOPS_CPU_ISA", raising=False)
    before = _C.cpu()["isa"]
    _C.set_isa(HERE[0])
    try:
        found = fastops.capabilities()
    finally:
        _C.set_isa(before)
    reasons = {level.name: level.reason for level in found.cpu_levels}
    assert reasons[HERE[0]] == "asked for by set_isa()"
    assert reasons[HERE[1]] == f"set_isa() asked for {HERE[0]}"
    with pytest.raises(ValueError, match=f"must be one of {', '.join(LEVELS)}, got 'mmx'"):
        _C.set_isa("mmx")


def test_missing_feature_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = dict.fromkeys(LEVELS[:1], "") | dict.fromkeys(LEVELS[1:], "avx")
    monkeypatch.delenv("FASTOPS_CPU_ISA", raising=False)
    monkeypatch.setattr(_C, "cpu", lambda: {"isa": LEVELS[0], "missing": missing})
    reasons = {level.name: level.reason for level in fastops.capabilities().cpu_levels}
    assert reasons == {LEVELS[0]: "the best that this CPU runs"} | dict.fromkeys(LEVELS[1:], "this CPU lacks avx")


def test_gpus_with_and_without_kernels(machine: Any) -> None:
    driver = _driver.Driver("580.1", "13.0", (("H200", "9.0"), ("Quadro P1000", "6.1")))
    rows = [
        {"index": 0, "capability": 90, "arch": "generic", "reason": "machine code for compute capability 9.0"},
        {"index": 1, "capability": 61, "arch": None, "reason": "compute capability 6.1 is not in this binary"},
    ]
    found = machine(driver, rows)
    assert found.no_gpu == ""
    assert found.driver == "580.1, for CUDA 13.0 and older"
    assert found.gpus == (
        capability.Gpu(0, "H200", "9.0", "generic", "machine code for compute capability 9.0"),
        capability.Gpu(1, "Quadro P1000", "6.1", None, found.gpus[1].reason),
    )
    assert found.gpus[1].reason.startswith("compute capability 6.1 is not in this binary. Build for it ")
    assert found.paths == {"cpu": "cpu", "cuda:0": "cuda", "cuda:1": "reference"}
    text = str(found)
    assert "gpu      + 0: H200, generic: machine code for compute capability 9.0\n" in text
    assert "gpu      - 1: Quadro P1000, no kernels: compute capability 6.1 is not in this binary. Build for it" in text


def test_gpu_of_a_build_without_cuda_runs_the_reference(machine: Any) -> None:
    found = machine(_driver.Driver("", "13.0", (("H200", "9.0"),)), [], "this build has no CUDA kernels")
    assert found.gpus[0].reason.startswith("this build has no CUDA kernels")
    assert found.paths["cuda:0"] == "reference"


def test_gpu_under_a_torch_without_cuda_is_shown_and_not_used(machine: Any) -> None:
    rows = [{"index": 0, "capability": 90, "arch": "generic", "reason": "machine code"}]
    found = machine(_driver.Driver("", "13.0", (("H200", "9.0"),)), rows, torch_cuda=None)
    assert f"PyTorch {torch.__version__} is built without CUDA" in found.no_gpu
    assert [gpu.name for gpu in found.gpus] == ["H200"]
    assert found.paths == {"cpu": "cpu"}
    assert "gpu      - 0: H200, generic: machine code\n" in str(found)


def test_gpu_whose_driver_is_too_old_for_torch_is_shown_and_not_used(machine: Any) -> None:
    rows = [{"index": 0, "capability": 90, "arch": "generic", "reason": "machine code"}]
    driver = _driver.Driver("550.1", "12.4", (("H200", "9.0"),))
    found = machine(driver, rows, torch_cuda="13.0")
    assert f"PyTorch {torch.__version__} is for CUDA 13.0, the driver runs 12.4 and older" in found.no_gpu
    assert found.paths == {"cpu": "cpu"}
    assert machine(driver, rows, torch_cuda="12.9").paths["cuda:0"] == "cuda"  # of one major version


def test_no_driver_is_the_reason(machine: Any) -> None:
    found = machine(_driver.Driver(error="no NVIDIA driver: not found"), [], "driver version is insufficient")
    assert found.gpus == ()
    assert "no NVIDIA driver: not found" in found.no_gpu
    assert "insufficient" not in found.no_gpu
    assert found.paths == {"cpu": "cpu"}


def test_trouble_with_the_gpu_is_reported_not_raised(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Any]:
        raise RuntimeError("the GPU fell off the bus")

    driver = _driver.Driver("580.1", "13.0", (("H200", "9.0"),))
    machine(driver, [])
    monkeypatch.setattr(_C, "cuda_devices", fail)
    monkeypatch.setattr(_C, "cuda_fit", lambda capability, driver: {"arch": "generic"})
    found = fastops.capabilities()
    assert found.gpus == (capability.Gpu(0, "H200", "9.0", None, "the GPU fell off the bus"),)
    assert found.paths["cuda:0"] == "reference"


class FakeCuda:
    """The calls of libcuda that the probe makes."""

    def __init__(self, init: int = 0) -> None:
        self.init = init

    def cuInit(self, flags: int) -> int:
        return self.init

    def cuDriverGetVersion(self, out: Any) -> int:
        out._obj.value = 12090
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:
        out._obj.value = 2
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:
        out._obj.value = index
        return 0

    def cuDeviceGetName(self, buffer: Any, size: int, device: Any) -> int:
        buffer.value = f"GPU of {device.value}".encode()
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, device: Any) -> int:
        out._obj.value = {75: 12, 76: device.value}[attribute]
        return 0

    def cuGetErrorString(self, status: int, out: Any) -> int:
        out._obj.value = b"no CUDA-capable device is detected"
        return 0


def test_driver_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeCuda())
    found = _driver.probe()
    assert found.cuda == "12.9"
    assert found.gpus == (("GPU of 0", "12.0"), ("GPU of 1", "12.1"))
    assert found.error == ""


def test_driver_probe_without_visible_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeCuda(init=100))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = _driver.probe()
    assert found.gpus == ()
    assert found.error == "cuInit: no CUDA-capable device is detected (100) (CUDA_VISIBLE_DEVICES='')"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_capabilities_make_no_cuda_context() -> None:
    code = """
import ctypes, fastops, torch
found = fastops.capabilities()
driver, flags, active = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint(), ctypes.c_int()
states = []
for gpu in found.gpus:
    driver.cuDevicePrimaryCtxGetState(gpu.index, ctypes.byref(flags), ctypes.byref(active))
    states.append(active.value)
names = [torch.cuda.get_device_name(gpu.index) for gpu in found.gpus] if not torch.cuda.is_initialized() else []
print(states == [0] * len(found.gpus), names == [gpu.name for gpu in found.gpus])
"""
    result = python(code)
    assert result.stdout.split() == ["True", "True"], result.stderr
