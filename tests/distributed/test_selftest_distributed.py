"""``python -m fastops.selftest --distributed``: it passes, and what is broken makes it fail, by name and placement."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import distributed

from fastops.selftest.__main__ import main
from fastops.selftest.distributed.tensors import shares

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="this PyTorch has no gloo")

# The processes import the program, with what is broken in it, as they do a user's.
PROGRAM = """
import sys
import fastops
{broken}
if __name__ == "__main__":
    from fastops.selftest.__main__ import main
    sys.exit(main(["--distributed", "--quick", "--dtype", "f32", *sys.argv[1:]]))
"""

WRONG_RULE_AND_ONE_MORE_COLLECTIVE = """
import torch
from torch.distributed.tensor import Replicate
from fastops.sharding import is_sharded, lazy, pointwise
lazy.RULES[torch.ops.fastops.softmax.default] = pointwise()
module = sys.modules["fastops.ops.square"]
right = module._op.call
def gathers(x):
    return right(x.redistribute(placements=[Replicate()]) if is_sharded(x) else x)
module._op.call = gathers
"""

# The second process adds nothing to the gradient of the hidden states.
A_GROUP_WITHOUT_A_SUM = """
from fastops.ops import vocabulary_parallel
right = vocabulary_parallel.added
vocabulary_parallel.added = lambda part, shard: right(part * (shard.first_class == 0), shard)
"""

HANG = """
import time
import torch
from fastops.selftest.distributed import run
run.SILENCE = 5.0
module = sys.modules["fastops.ops.square"]
right = module._op.call
def sleeps(x):
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
        time.sleep(600)
    return right(x)
module._op.call = sleeps
"""

DEATH = """
import os
import torch
module = sys.modules["fastops.ops.square"]
right = module._op.call
def dies(x):
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
        os._exit(3)
    return right(x)
module._op.call = dies
"""


def test_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    ops = ("rms_norm", "linear", "cross_entropy", "linear_cross_entropy")
    chosen = [word for op in ops for word in ("--op", op)] + ["--dtype", "f32", "--dtype", "bf16"]
    assert main(["--distributed", "2", "--quick", "--json", str(file), *chosen]) == 0
    printed = capsys.readouterr().out
    assert "4 ops on 2 x cpu, gloo" in printed
    content = json.loads(file.read_text())
    assert content["passed"] is True
    found = {(r["op"], r["dtype"], r["check"]) for r in content["results"]}
    checks = ("forward", "gradient", "placements", "collectives")
    assert found == {(op, dtype, check) for op in ops for dtype in ("f32", "bf16") for check in checks}
    forward = content["results"][0]
    assert 0 < forward["error"] <= forward["bound"]
    assert "calls, worst at sample" in forward["detail"]


@pytest.mark.parametrize(
    ("broken", "ops", "expected"),
    [
        (
            WRONG_RULE_AND_ONE_MORE_COLLECTIVE,
            ("softmax", "square"),
            (
                r"FAILED softmax, 2 x cpu, gloo, f32: forward: .* ulps, at most 24\n"
                r" +\d+ failures: sample middle, Shard\(1\): .* ulps",
                r"FAILED square, 2 x cpu, gloo, f32: collectives\n"
                r" +\d+ failures: sample \w+, Shard\(0\): 1 collectives forward beside the raw ops, the least is 0",
            ),
        ),
        (
            A_GROUP_WITHOUT_A_SUM,
            ("linear_cross_entropy",),
            (r"FAILED linear_cross_entropy, 2 x cpu, gloo, f32: gradient: .* ulps", r"by a group, \{.*ulps"),
        ),
        (HANG, ("square",), (r"nothing has happened for 5 s: a process hangs; .*process 1 was at square f32, sample",)),
        (DEATH, ("square",), (r"process 1 ended with exit code 3; .*process 1 was at square f32, sample",)),
    ],
    ids=["a wrong rule and a collective too many", "a group without a sum", "a hang", "a death"],
)
def test_what_is_broken_fails(broken: str, ops: Sequence[str], expected: Sequence[str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(broken=broken))
    arguments = [argument for op in ops for argument in ("--op", op)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    for text in expected:
        assert re.search(text, done.stdout), done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--distributed", "1"], "--distributed must be 2 processes or more, got 1"),
        (["--distributed", "--aten"], "--distributed must be without --aten, --isa and --jobs"),
        (["--distributed", "--device", "tpu"], "device must be cpu or cuda with --distributed, got 'tpu'"),
        (["--distributed", "99", "--device", "cuda"], "device cuda"),
    ],
)
def test_what_is_not_there(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_summands_are_exact(count: int) -> None:
    """In every order in which neighbours add theirs up."""
    given = list(shares(count))
    assert sum(given) == 1
    assert all(given)
    for begin in range(count):
        for length in range(1, count + 1):
            assert sum((given + given)[begin : begin + length]) in (-1, 0, 1, 2)
    x = torch.tensor(1 + 2**-7, dtype=torch.bfloat16)
    assert sum(x * share for share in given) == x
