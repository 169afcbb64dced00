"""The examples run here: ops with every check that this machine allows, and a training; CUDA sources compile."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from common import DTYPES, needs_nvrtc

from fastops.kit.cuda_kernel import CudaKernel

FOLDER = Path(__file__).parents[2] / "examples"
TRAINING, BLOCK = FOLDER / "train_language_model.py", FOLDER / "transformer_block.py"
SHARDS = FOLDER / "train_fsdp2_tp.py"  # tests/distributed runs it
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path not in (TRAINING, BLOCK, SHARDS))  # ops by the kit

if not EXAMPLES:
    pytest.skip("the examples are in the tree, not beside the tests", allow_module_level=True)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "numba" in path.stem:
        pytest.importorskip("numba", reason="Numba is not installed: pip install fastops[numba]")
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    assert "  ok       gradient  " in out
    assert "  ok       torch.compile  " in out


@needs_nvrtc
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_compile(dtype: torch.dtype) -> None:
    compiled = 0
    for path in EXAMPLES:
        if "numba" in path.stem:
            continue
        for kernel in runpy.run_path(str(path)).values():
            if isinstance(kernel, CudaKernel):
                wide = torch.promote_types(dtype, torch.float32)
                kernel.compile("sm_90", *(dtype, wide)[: len(kernel.signature.variables)])
                compiled += 1
    assert compiled >= 5


@pytest.mark.parametrize("length", [1, 31, 257, 5000])
def test_layer_norm_is_torchs(length: int, device: torch.device) -> None:
    (path,) = (path for path in EXAMPLES if path.stem == "layer_norm")
    layer_norm = runpy.run_path(str(path))["layer_norm"]
    x = torch.randn(7, length, dtype=torch.float64, device=device) + 1000
    w, b = torch.randn(2, length, dtype=torch.float64, device=device)
    expected = torch.nn.functional.layer_norm(x, (length,), w, b)
    torch.testing.assert_close(layer_norm(x, w, b), expected)
    found = layer_norm(x.float(), w.float(), b.float())
    truth = torch.nn.functional.layer_norm(x.float().double(), (length,), w.float().double(), b.float().double())
    torch.testing.assert_close(found.double(), truth, rtol=0, atol=1e-3)


def test_training(device: torch.device) -> None:
    """From one seed to the same losses, in less memory; in a process of its own, because it starts others."""
    command = [sys.executable, str(TRAINING), "--device", device.type, "--steps", "3", "--rows", "8"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    losses = [float(loss) for loss in re.findall(r"^ +\d+ +[\d.]+ +([\d.]+)$", ran.stdout, re.MULTILINE)]
    assert len(losses) == 3
    assert losses[2] < losses[0]
    torchs, ours = map(int, re.findall(r"(\d+) MiB", ran.stdout))
    assert ours < torchs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_block_of_transformers(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Results and gradients are as near to float64 as those of transformers' own block."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    example = runpy.run_path(str(BLOCK))
    theirs, ours = example["compare"](name, device, dtype)
    assert ours <= example["BOUND"] * theirs
