"""docs/many_gpus.md: its commands and its Python run on the CPU, and its table has the collectives that there are."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from cases import CLASSES, H, S, k, matrix, of_outputs, q, w, x
from processes import Placements, numbers, placed, run, spawn
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard

import fastops

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "many_gpus.md"

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="this PyTorch has no gloo")

if not GUIDE.exists():
    pytest.skip("the guide is in the tree, not beside the tests", allow_module_level=True)

TEXT = GUIDE.read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"^```bash\n(.*?)^```", TEXT, re.M | re.S) for line in block.splitlines()]
SMALL = ["--dtype", "float32", "--steps", "4", "--warmup", "1", "--every", "1"]
WITHOUT_GPUS = mock.patch.object(torch.cuda, "is_available", return_value=False)  # one may not do for two processes
R, BATCH, TOKENS, FEATURES = Replicate(), Shard(0), Shard(1), Shard(2)

Row = tuple[Callable[..., Any], list[Tensor], list[Placements], int]
y, of_classes = torch.arange(4 * S) % CLASSES, numbers((4 * S, CLASSES), 1)
hidden, wide = numbers((4 * S, H), 2), numbers((4, S, H), 3)


def norm(x: Tensor, w: Tensor) -> Any:
    return fastops.rms_norm(x, (H,), w)


def mean_of_rows(x: Tensor, y: Tensor) -> Any:
    return fastops.cross_entropy(x, y)


def head(x: Tensor, w: Tensor, y: Tensor) -> Any:
    return fastops.linear_cross_entropy(x, w, y)


# By the table's first two cells: what is called, with what, where it lies, and how many of them have gradients.
ROWS: dict[tuple[str, str], Row] = {
    ("`rms_norm(x)`, any norm", "batch"): (norm, [wide, w], [[BATCH], [R]], 2),
    ("`rms_norm(x)`, any norm", "tokens"): (norm, [wide, w], [[TOKENS], [R]], 2),
    ("`rms_norm(x)`, any norm", "features"): (norm, [wide, w], [[FEATURES], [R]], 2),
    ("`rms_norm(x)`, any norm", "a partial sum"): (norm, [wide, w], [[Partial()], [R]], 2),
    ("`swiglu(gate, up)`, anything elementwise", "any"): (fastops.swiglu, [wide, x(4, 4, S, H)], [[FEATURES]] * 2, 2),
    ("`rope(q, k)`", "batch or heads"): (
        fastops.rope,
        [q, k, x(5, S, H), x(6, S, H)],
        [[Shard(1)], [Shard(1)], [R], [R]],
        2,
    ),
    ('`linear(x, W, b, "gelu")`', "features of the output"): (
        lambda *t: fastops.linear(*t, "gelu"),
        [wide, matrix, of_outputs],
        [[R], [BATCH], [BATCH]],
        3,
    ),
    ('`linear(x, W, b, "gelu")`', "features of the input"): (
        lambda *t: fastops.linear(*t, "gelu"),
        [wide, matrix, of_outputs],
        [[FEATURES], [TOKENS], [R]],
        3,
    ),
    ("`cross_entropy(z, y)`", "classes"): (mean_of_rows, [of_classes, y], [[TOKENS], [R]], 1),
    ("`cross_entropy(z, y)`", "rows"): (mean_of_rows, [of_classes, y], [[BATCH], [BATCH]], 1),
    ("`linear_cross_entropy(h, W, y)`", "classes"): (head, [hidden, matrix, y], [[R], [BATCH], [R]], 2),
    ("`linear_cross_entropy(h, W, y)`", "rows"): (head, [hidden, matrix, y], [[BATCH], [R], [BATCH]], 2),
}


def guide(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    for (call, split), (function, given, placements, learning) in ROWS.items():
        spread = [placed(t, mesh, p) for t, p in zip(given, placements, strict=True)]
        found = run(function, spread, [n < learning for n in range(len(given))], mesh)
        line = f"| {call} | {split} | {found.forward} | {found.backward} |\n"
        assert line in TEXT, f"docs/many_gpus.md should have {line}"
    names: dict[str, Any] = {}
    with WITHOUT_GPUS:
        for code in re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S):
            exec(compile(code, str(GUIDE), "exec"), names)
    assert all(p.grad is not None for p in names["model"].parameters())
    assert float(names["loss"].full_tensor()) > 0


def test_table_and_python(tmp_path: Path) -> None:
    assert TEXT.count("\n| `") == len(ROWS)
    spawn(guide, 2, tmp_path)


def _run(rank: int, processes: int, port: int, script: str, options: list[str], out: str) -> None:
    """As torchrun does, in a process that has PyTorch already."""
    torch.set_num_threads(1)
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in (given | address).items()})
    sys.argv = [script, *options]
    to = Path(out if rank == 0 else os.devnull)
    with to.open("w") as file, contextlib.redirect_stdout(file), contextlib.suppress(SystemExit), WITHOUT_GPUS:
        runpy.run_path(script, run_name="__main__")


def output_of(command: str, tmp_path: Path, launched: bool) -> str:
    """``launched``: by torchrun itself."""
    name, option, processes, script, *options = shlex.split(command)
    assert (name, option) == ("torchrun", "--nproc-per-node"), command
    given = [*options, *SMALL]
    if launched:
        ran = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", option, processes, script, *given],
            cwd=ROOT,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    out = tmp_path / "out"
    torch.multiprocessing.start_processes(
        _run,
        (int(processes), port, str(ROOT / script), given, str(out)),
        nprocs=int(processes),
        start_method="forkserver",
    )
    return out.read_text()


def test_commands(tmp_path: Path) -> None:
    """All train one model on the same text: from the same loss, to the same losses, however it is split."""
    losses = {}
    for n, command in enumerate(COMMANDS):
        out = output_of(command, tmp_path, launched=n == 0)
        losses[command] = [float(loss) for loss in re.findall(r"^step +\d+  loss ([\d.]+)$", out, re.M)]
        assert len(losses[command]) == 4, out
        kind = "torch.nn" if "--torch" in command else "fastops.nn"
        assert re.search(rf"^{re.escape(kind)} on \d x \d cpu: \d+ tokens/s$", out, re.M), out
    expected = losses[COMMANDS[0]]
    assert expected[-1] < expected[0] - 0.1
    for command, found in losses.items():
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3, msg=lambda m, c=command: f"{c}: {m}")
