"""The build backend: names by FASTOPS_CUDA, metadata without torch, and a tree that no build writes to."""

from __future__ import annotations

import email
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The environment of these tests has the pinned build tools: nothing is fetched.
HOOK = "import sys; sys.path.insert(0, 'tools/backend'); import fastops_backend as backend; "


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree as git has it; what a build leaves in it is what it would leave in the tree."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in files.splitlines():
        if (ROOT / name).exists():  # removed, and not yet committed
            (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "tree" / name)
    return tmp_path / "tree"


def state(tree: Path) -> dict[str, str]:
    files = [path for path in tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(tree)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def call(tree: Path, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("FASTOPS_")} | environment
    return subprocess.run([sys.executable, "-c", HOOK + code], cwd=tree, env=env, capture_output=True, text=True)


def metadata(tree: Path, **environment: str) -> email.message.Message:
    before, folder = state(tree), tree.parent / "metadata"
    # torch as None cannot be imported: metadata must not need it.
    code = f"sys.modules['torch'] = None; print(backend.prepare_metadata_for_build_wheel({str(folder)!r}))"
    result = call(tree, code, **environment)
    assert result.returncode == 0, result.stderr
    assert state(tree) == before
    (written,) = folder.glob("*.dist-info")
    assert written.name == result.stdout.splitlines()[-1]
    found = email.message_from_string((written / "METADATA").read_text())
    assert written.name == f"{found['Name'].replace('-', '_')}-{found['Version']}.dist-info"
    return found


def required(found: email.message.Message) -> list[str]:
    """Without what extras require."""
    return [each for each in found.get_all("Requires-Dist", []) if "; extra ==" not in each]


@pytest.mark.parametrize(
    ("cuda", "name"), [("", "fastops"), ("none", "fastops"), ("12", "fastops-cu12"), ("13", "fastops-cu13")]
)
def test_name(tree: Path, cuda: str, name: str) -> None:
    found = metadata(tree, FASTOPS_CUDA=cuda)
    assert found["Name"] == name
    assert required(found) == ["torch>=2.10", "nanobind-backend>=1.0"]


def test_nanobind_linked_in_is_not_required(tree: Path) -> None:
    found = metadata(tree, FASTOPS_STATIC_NANOBIND="1")
    assert found["Name"] == "fastops"
    assert required(found) == ["torch>=2.10"]


@pytest.mark.parametrize("hook", ["prepare_metadata_for_build_wheel", "build_wheel"])
def test_unknown_cuda_lists_the_choices(tree: Path, hook: str) -> None:
    result = call(tree, f"backend.{hook}('out')", FASTOPS_CUDA="13.0")
    assert result.returncode == 1
    assert "[fastops] FASTOPS_CUDA must be unset or one of none, 12, 13, got '13.0'" in result.stderr


def test_free_threaded_python_is_refused(tree: Path) -> None:
    code = (
        "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; backend.get_requires_for_build_wheel()"
    )
    result = call(tree, code)
    assert result.returncode == 1
    assert "free-threaded Python has no stable ABI before 3.15" in result.stderr


def test_two_different_wishes_are_refused(tree: Path) -> None:
    settings = {"cmake.define.FASTOPS_CUDA": "13"}
    result = call(tree, f"backend.build_wheel('out', {settings})", FASTOPS_CUDA="12")
    assert result.returncode == 1
    assert "FASTOPS_CUDA is '12' in the environment and '13' in the settings" in result.stderr


def test_nanobind_by_setting_alone_is_refused(tree: Path) -> None:
    result = call(tree, "backend.build_wheel('out', {'cmake.define.FASTOPS_STATIC_NANOBIND': 'ON'})")
    assert result.returncode == 1
    assert "must be in the environment, not in the settings" in result.stderr
    result = call(tree, "backend.build_wheel('out')", FASTOPS_STATIC_NANOBIND="0")
    assert "FASTOPS_STATIC_NANOBIND must be unset or one of 1, got '0'" in result.stderr


def test_torch_is_wanted_for_building(tree: Path) -> None:
    result = call(tree, "print(backend.get_requires_for_build_wheel(), backend.get_requires_for_build_editable())")
    assert result.stdout.count("'torch>=2.10'") == 2


@pytest.mark.parametrize("cuda", ["12", "13"])
def test_failed_build_leaves_the_tree_as_it_was(tree: Path, cuda: str) -> None:
    before = state(tree)
    result = call(tree, "backend.build_wheel('../out')", FASTOPS_CUDA=cuda, CUDACXX="/nonexistent/nvcc")
    assert result.returncode != 0
    assert "CMake configuration failed" in result.stdout + result.stderr
    assert state(tree) == before


def test_nvcc_of_another_version_is_refused(tree: Path) -> None:
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if not nvcc:
        pytest.skip("no nvcc here")
    here = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    other = "12" if "release 13" in here else "13"
    result = call(tree, "backend.build_wheel('../out')", FASTOPS_CUDA=other)
    assert result.returncode != 0
    assert f"FASTOPS_CUDA={other}, but " in result.stdout + result.stderr


def test_pyproject_without_its_name_is_refused(tree: Path) -> None:
    file = tree / "pyproject.toml"
    file.write_text(file.read_text().replace('name = "fastops"', "name = 'fastops'"))
    result = call(tree, "backend.prepare_metadata_for_build_wheel('out')", FASTOPS_CUDA="13")
    assert result.returncode == 1
    assert "pyproject.toml must match" in result.stderr


def test_sdist_is_what_git_has(tree: Path) -> None:
    result = call(tree, "print(backend.build_sdist('../out'))")
    assert result.returncode == 0, result.stderr
    file = tree.parent / "out" / result.stdout.splitlines()[-1]
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    expected = {name for name in state(tree) if not name.startswith((".ci/", ".github/"))}
    assert names == expected | {"PKG-INFO"}
