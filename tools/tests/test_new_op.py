"""`make new-op` on a copy of the tree; that its operator works is for the next build to see."""

from __future__ import annotations

import ast
import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastops.cases import Case

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("cpp", "cuda", "src", "tools"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return tmp_path


def new_op(tree: Path, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, tree / "tools/new_op", name], capture_output=True, text=True, check=False)


def test_writes_every_layer(tree: Path) -> None:
    done = new_op(tree, "swish_like")
    assert done.returncode == 0, done.stderr
    for path in ("cpp/ops/{}.cpp", "cpp/kernels/{}.cpp", "cuda/{}.cu", "src/fastops/ops/{}.py"):
        text = (tree / path.format("swish_like")).read_text()
        assert "swish_like" in text
        assert "cube" not in text.lower()
    for path in ("ops/__init__.py", "reference.py"):
        assert "swish_like" in (tree / "src/fastops" / path).read_text()


def test_its_row_has_the_fields_of_a_case(tree: Path) -> None:
    new_op(tree, "swish_like")
    module = ast.parse((tree / "src/fastops/cases/__init__.py").read_text())
    rows = [n for n in ast.walk(module) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "Case"]
    row = next(
        r for r in rows if any(k.arg == "name" and ast.literal_eval(k.value) == "swish_like" for k in r.keywords)
    )
    fields = {f.name: f for f in dataclasses.fields(Case)}
    given = {k.arg for k in row.keywords}
    assert given <= set(fields)
    assert {name for name, f in fields.items() if f.default is dataclasses.MISSING} <= given


@pytest.mark.parametrize("name", ["relu", "Swish", "while", "a-b", "x_backward", "nn", ""])
def test_refuses(tree: Path, name: str) -> None:
    done = new_op(tree, name)
    assert done.returncode == 2
    assert done.stderr.startswith("new-op: ")
