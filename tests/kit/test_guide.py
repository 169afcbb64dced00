"""The guide's Python is run in its order, and prints what stands under it."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import re
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fastops.kit import compiler
from fastops.kit.expression import functions

GUIDE = Path(__file__).parents[2] / "docs" / "writing_your_own_op.md"
HAVE = {
    "": True,
    "compiler": compiler.available() is not None,
    "numba": importlib.util.find_spec("numba") is not None,
    "cuda": torch.cuda.is_available(),
}
FENCED = re.compile(r"^```python ?(\w*)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)

if not GUIDE.exists():
    pytest.skip("the guide is in the tree, not beside the tests", allow_module_level=True)


class Block(NamedTuple):
    needs: str  # beside what every block has
    line: int
    code: str
    printed: str


def blocks() -> list[Block]:
    text = GUIDE.read_text()
    return [Block(m[1], text.count("\n", 0, m.start(2)), m[2], m[3] or "") for m in FENCED.finditer(text)]


def test_every_block_is_known() -> None:
    assert {block.needs for block in blocks()} == set(HAVE)
    assert len(blocks()) == GUIDE.read_text().count("```python")


def test_every_function_is_listed() -> None:
    listed, others = GUIDE.read_text().partition("## Functions")[2].partition("## Limits")[0].split("`where`")
    words = {name for name in functions.FUNCTIONS if name.isalnum()} - {"and", "or", "not"}
    assert set(re.findall(r"`(\w+)`", listed)) - set(functions.CONSTANTS) == words - {"where"}
    assert set(re.findall(r"`(\w+)`", others)) == set(functions.ALIASES)
    assert set(functions.CONSTANTS) <= set(re.findall(r"`(\w+)`", listed))


@pytest.mark.parametrize("needs", HAVE)
def test_guide(needs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not HAVE[needs]:
        pytest.skip(f"needs {needs}")
    # A file of the guide's line numbers: kit.elementwise reads a function's source.
    file = tmp_path / "writing_your_own_op.py"
    chosen = [block for block in blocks() if block.needs in ("", needs)]
    lines = [""] * GUIDE.read_text().count("\n")
    for block in chosen:
        code = block.code.splitlines()
        lines[block.line : block.line + len(code)] = code
    file.write_text("\n".join(lines))
    guide = types.ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", guide)  # Dynamo looks there for what a function names
    for block in chosen:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * block.line + block.code, str(file), "exec"), vars(guide))
        agrees = doctest.OutputChecker().check_output(block.printed, printed.getvalue(), doctest.ELLIPSIS)
        assert agrees, f"{GUIDE.name}:{block.line} prints\n{printed.getvalue()}"
