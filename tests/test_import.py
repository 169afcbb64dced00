"""Importing is light, and where the extension does not load, one error says why; ``python -m fastops.info`` too."""

from __future__ import annotations

import importlib.machinery
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fastops
from fastops import _C, _driver, _load, info

SITE = [folder for folder in sys.path if Path(folder).is_dir()]


def python(*arguments: str, path: list[str] | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter; with ``path`` one that sees nothing else, editable installs included (-S)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FASTOPS_", "PYTHON"))} | environment
    isolated = [] if path is None else ["-S"]
    if path is not None:
        env["PYTHONPATH"] = os.pathsep.join(path)
    return subprocess.run([sys.executable, *isolated, *arguments], env=env, capture_output=True, text=True)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, extension included, that a test may break."""
    copy = tmp_path / "site" / "fastops"
    for folder in fastops.__path__:
        shutil.copytree(folder, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("_C.*.so", "__pycache__"))
    shutil.copy(_C.__file__, copy / "_C.abi3.so")
    shutil.copy(fastops.library_path(), copy)
    return copy


def own(package: Path, **versions: str) -> None:
    """Records distributions as owners of the package, as pip does."""
    for name, version in versions.items():
        folder = package.parent / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name.replace('_', '-')}\nVersion: {version}\n")


# Light import


def test_import_adds_only_our_modules_and_leaves_cuda_alone() -> None:
    code = """
import json, sys, torch
driver = lambda: "libcuda.so" in open("/proc/self/maps").read()
before, driver_before = set(sys.modules), driver()
import fastops
print(json.dumps([sorted(set(sys.modules) - before), driver() == driver_before, torch.cuda.is_initialized()]))
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    gained, driver_untouched, cuda_initialised = json.loads(result.stdout)
    gained = [name for name in gained if not name.startswith("importlib.metadata.")]  # Python 3.13 loads its parts late
    assert {name.partition(".")[0] for name in gained} <= {"fastops", "nanobind_backend"}
    late = {f"fastops.{name}" for name in ("selftest", "info", "kit", "bench", "cases", "integrations")}
    assert not late & {".".join(name.split(".")[:2]) for name in gained}
    assert driver_untouched
    assert not cuda_initialised


def test_public_names() -> None:
    operators = {"square", "relu", "sigmoid", "axpby", "linear", "layer_norm", "rms_norm", "lltm"}
    operators |= {"add_layer_norm", "add_rms_norm", "softmax", "log_softmax", "cross_entropy", "log_prob"}
    assert operators | {"nn", "reference", "capabilities"} <= set(fastops.__all__)
    assert operators <= set(fastops.reference.__all__)
    for name in fastops.__all__:
        assert getattr(fastops, name) is not None
    assert fastops.__version__ == _C.build_info()["version"]


def test_dir_lists_names_that_are_imported_when_used() -> None:
    code = """
import json, sys, fastops
before = set(sys.modules)
listed = dir(fastops)
gained = sorted(set(sys.modules) - before)
import fastops.integrations
before = set(sys.modules)
listed_integrations = dir(fastops.integrations)
gained += sorted(set(sys.modules) - before)
print(json.dumps([listed, listed_integrations, gained]))
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    listed, listed_integrations, gained = json.loads(result.stdout)
    assert {"patch", "patched", "enable", "enabled", "disable", "kit", "integrations"} <= set(listed)
    assert {*fastops.__all__, "__version__"} <= set(listed)
    assert set(fastops.integrations.__all__) <= set(listed_integrations)
    assert not gained


def test_modules_with_getattr_have_dir() -> None:
    for file in (path for folder in fastops.__path__ for path in Path(folder).rglob("*.py")):
        text = file.read_text()
        assert ("\ndef __getattr__" in text) == ("\ndef __dir__" in text), file


def test_installed_version_is_the_extensions() -> None:
    owners = _load.installed()
    if not owners:
        pytest.skip("not installed: no distribution is recorded beside the package")
    assert set(owners.values()) == {fastops.__version__}
    assert _C.build_info()["distribution"] in owners


def test_the_floor_is_that_of_the_binary() -> None:
    assert ".".join(map(str, _load.TORCH_FLOOR)) == _C.build_info()["torch_floor"]


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0a0+git1234", "2.13.0+cpu", "3.0.1", "unknown"])
def test_torch_new_enough(version: str) -> None:
    _load.check_torch(version)


@pytest.mark.parametrize("version", ["1.13.1", "2.9.1+cu130", "2.1.0"])
def test_torch_too_old(version: str) -> None:
    with pytest.raises(ImportError, match=re.escape(f"found {version}, needs >= 2.10. ")) as raised:
        _load.check_torch(version)
    assert 'pip install -U "torch>=2.10"' in str(raised.value)
    assert _load.diagnose(raised.value) == str(raised.value)


# Diagnoses of errors as the loaders word them

DIAGNOSES = {
    "torch missing": (
        ModuleNotFoundError("No module named 'torch'", name="torch"),
        ["PyTorch is not installed", 'pip install -U "torch>=2.10"'],
    ),
    "glibc too old": (
        ImportError("/lib/libc.so.6: version `GLIBC_2.99' not found (required by /x/_C.abi3.so)"),
        ["glibc is too old: the extension needs GLIBC_2.99 (here: ", "from source"],
    ),
    "libstdc++ too old": (
        ImportError("/lib/libstdc++.so.6: version `GLIBCXX_3.4.99' not found (required by /x/_C.abi3.so)"),
        ["libstdc++ is too old: the extension needs GLIBCXX_3.4.99"],
    ),
    "nanobind-backend missing": (
        ImportError("Importing the extension '_C' failed because the nanobind backend module is not installed."),
        ["nanobind-backend is missing", "pip install nanobind-backend"],
    ),
    "nanobind-backend of another ABI": (
        ImportError("This nanobind-backend package bundles the backend for ABI major version 1"),
        ["nanobind-backend", "does not work", "ABI major version 1", "--force-reinstall nanobind-backend"],
    ),
    "undefined torch symbol": (
        ImportError("/x/_C.abi3.so: undefined symbol: torch_library_impl"),
        [f"PyTorch {torch.__version__} lacks the symbol torch_library_impl", 'pip install -U "torch>=2.10"'],
    ),
    "library missing": (
        ImportError("libtorch_cpu.so: cannot open shared object file: No such file or directory"),
        ["the library libtorch_cpu.so is missing"],
    ),
    "CPU too old": (
        ImportError("[fastops] CPU too old: it lacks sse4.2, which the lowest level of this binary uses"),
        ["[fastops] CPU too old: it lacks sse4.2"],
    ),
    "something else": (ImportError("out of cheese"), ["does not import: ImportError: out of cheese"]),
}


@pytest.mark.parametrize("case", DIAGNOSES)
def test_diagnosis(case: str) -> None:
    error, pieces = DIAGNOSES[case]
    text = _load.diagnose(error)
    assert text.startswith("[fastops] ")
    for piece in pieces:
        assert piece in text


def test_a_path_that_mentions_nanobind_is_no_trouble_with_nanobind() -> None:
    error = ImportError(f"{_C.__file__}: undefined symbol: torch_nanobind", path=_C.__file__)
    assert "lacks the symbol torch_nanobind" in _load.diagnose(error)


def test_diagnosis_of_an_operator_that_the_extension_lacks() -> None:
    with pytest.raises(AttributeError) as raised:
        torch.ops.fastops.never_written.default  # noqa: B018
    assert "no operator 'never_written'" in _load.diagnose(raised.value)


def test_two_owners_are_the_diagnosis_of_a_file_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"fastops": "0.1.0", "fastops-cu13": "0.2.0"}
    by_name = {name: [SimpleNamespace(version=version)] for name, version in found.items()}
    monkeypatch.setattr(metadata, "distributions", lambda name, path: by_name.get(name, []))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    text = _load.diagnose(ImportError("/x/_C.abi3.so: undefined symbol: torch_library_impl"))
    assert "2 distributions own this package" in text
    assert "fastops 0.1.0, fastops-cu13 0.2.0" in text
    assert "\n  pip uninstall -y fastops fastops-cu13\n  pip install fastops-cu13==0.2.0\n" in text
    assert "undefined symbol: torch_library_impl" in text


@pytest.mark.parametrize(
    ("cuda", "owners", "kept"),
    [
        (None, ["fastops", "fastops-cu12"], "fastops"),
        ("12.8", ["fastops", "fastops-cu12"], "fastops-cu12"),
        ("13.0", ["fastops", "fastops-cu12"], "fastops"),
        ("13.2", ["fastops-cu12", "fastops-cu13"], "fastops-cu13"),
    ],
)
def test_the_distribution_to_keep_is_that_of_torchs_cuda(
    monkeypatch: pytest.MonkeyPatch, cuda: str | None, owners: list[str], kept: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert _load._several(dict.fromkeys(owners, "1.0")).endswith(f"\n  pip install {kept}==1.0")


def test_installed_reads_what_is_recorded_beside_the_package(package: Path) -> None:
    own(package, fastops="0.1.0", fastops_cu12="0.2.0", fastops_extras="9.0", torch="1.0")
    assert _load.installed([str(package)]) == {"fastops": "0.1.0", "fastops-cu12": "0.2.0"}


@pytest.mark.parametrize(
    ("original", "argv", "allowed"),
    [
        (["python", "-m", "fastops.info"], ["-m"], True),
        (["python", "-X", "dev", "-mfastops.info", "--json"], ["-m", "--json"], True),
        (["python", "-m", "fastops.selftest"], ["-m"], False),
        (["python", "-m", "pytest", "fastops.info"], ["-m", "fastops.info"], False),
        (["python", "x.py", "-m", "fastops.info"], ["x.py", "-m", "fastops.info"], False),
    ],
)
def test_only_the_info_command_survives_a_failure(
    monkeypatch: pytest.MonkeyPatch, original: list[str], argv: list[str], allowed: bool
) -> None:
    monkeypatch.setattr(_load, "failure", None)
    monkeypatch.setattr(sys, "orig_argv", original)
    monkeypatch.setattr(sys, "argv", argv)
    error = ImportError("out of cheese")
    if allowed:
        _load.failed(error)
    else:
        with pytest.raises(ImportError, match=r"\[fastops\] the package does not import.*out of cheese"):
            _load.failed(error)
    assert _load.failure is error


# Packages that are really broken


def break_remove(package: Path) -> list[str]:
    (package / "_C.abi3.so").unlink()
    return SITE


def break_text(package: Path) -> list[str]:
    (package / "_C.abi3.so").write_text("version https://git-lfs.github.com/spec/v1\n" * 20)
    return SITE


def break_truncate(package: Path) -> list[str]:
    os.truncate(package / "_C.abi3.so", 40)  # cut within its segments, the loader dies of SIGBUS
    return SITE


def break_machine(package: Path) -> list[str]:
    with (package / "_C.abi3.so").open("r+b") as file:
        file.seek(18)
        file.write((243).to_bytes(2, "little"))  # RISC-V
    return SITE


def break_library_remove(package: Path) -> list[str]:
    (package / "libfastops.so").unlink()
    return SITE


def break_library_truncate(package: Path) -> list[str]:
    os.truncate(package / "libfastops.so", 40)
    return SITE


def break_name(package: Path) -> list[str]:
    (package / "_C.abi3.so").rename(package / "_C.cpython-399-riscv64-linux-gnu.so")
    return SITE


def break_nanobind(package: Path) -> list[str]:
    if _C.build_info()["static_nanobind"]:
        pytest.skip("nanobind is linked into this build")
    fake = package.parent / "nanobind_backend.py"
    fake.write_text("raise ModuleNotFoundError(\"No module named 'nanobind_backend'\", name='nanobind_backend')\n")
    return SITE


def break_no_torch(package: Path) -> list[str]:
    return []


def break_old_torch(package: Path) -> list[str]:
    (package.parent / "torch.py").write_text("__version__ = '2.9.1+cu130'\n")
    return []


def break_torch_itself(package: Path) -> list[str]:
    (package.parent / "torch.py").write_text("raise OSError('libcudart.so.99: cannot open shared object file')\n")
    return []


BROKEN = {
    "no extension file": (break_remove, "there is no extension file _C in "),
    "a text file": (break_text, "_C.abi3.so is a file for another platform: not a shared library, not "),
    "a truncated file": (break_truncate, "_C.abi3.so is damaged: ImportError: "),
    "another machine": (break_machine, "_C.abi3.so is a file for another platform: Linux (ELF machine 243), not "),
    "no library": (break_library_remove, "the library libfastops.so is missing, which the extension needs: "),
    "a truncated library": (break_library_truncate, "libfastops.so is damaged: ImportError: "),
    "another Python": (break_name, "There is: _C.cpython-399-riscv64-linux-gnu.so (Linux "),
    "nanobind-backend missing": (break_nanobind, "pip install nanobind-backend"),
    "torch missing": (break_no_torch, 'PyTorch is not installed. pip install -U "torch>=2.10"'),
    "torch too old": (break_old_torch, "PyTorch is too old: found 2.9.1+cu130, needs >= 2.10."),
    "torch broken": (break_torch_itself, "PyTorch itself does not import: OSError: libcudart.so.99"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_package_says_why_and_info_still_runs(package: Path, case: str) -> None:
    breaker, expected = BROKEN[case]
    path = [str(package.parent), *breaker(package)]

    result = python("-c", "import fastops", path=path)
    last = next(line for line in reversed(result.stderr.splitlines()) if line.startswith("ImportError: "))
    assert result.returncode == 1
    assert last.startswith("ImportError: [fastops] ")
    assert expected in last

    result = python("-m", "fastops.info", "--json", path=path)
    assert result.returncode == 1, result.stderr
    report = json.loads(result.stdout)
    assert report["fastops"].startswith("does not load: [fastops] ")
    assert expected in report["fastops"]
    assert report["python"].endswith(sys.version)
    assert report["capabilities"] == "unknown: fastops does not load"


def test_a_copy_that_is_not_broken_loads(package: Path) -> None:
    result = python("-c", "import fastops; print(fastops.__path__[0])", path=[str(package.parent), *SITE])
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(package)
    assert result.stderr == ""


def test_a_second_copy_in_one_process_is_an_import_error(package: Path) -> None:
    code = f"""
import sys
import fastops
import torch
x = fastops.relu(torch.ones(3))
purge = lambda: [sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "fastops"]
purge()
import fastops  # the same again
purge()
sys.path.insert(0, {str(package.parent)!r})
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
import fastops
"""
    result = python("-c", code)
    assert result.returncode == 1, result.stderr
    assert "ImportError: [fastops] a process can hold one copy: " in result.stderr
    assert result.stderr.rstrip().endswith(f"{package / '_C.abi3.so'} asked for")


def test_after_its_library_was_loaded_alone() -> None:
    code = f"""
import torch
torch.ops.load_library({fastops.library_path()!r})
torch.ops.fastops.relu(torch.ones(3))
import fastops
fastops.relu(torch.ones(3))
"""
    result = python("-c", code)
    assert result.returncode == 0, result.stderr


def test_conda_mends_what_conda_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_load, "by_conda", lambda: True)
    commands = [
        _load.diagnose(ModuleNotFoundError("No module named 'torch'", name="torch")),
        _load.diagnose(ImportError("nanobind-backend is not installed")),
        _load.diagnose(ImportError("/x/_C.abi3.so: undefined symbol: torch_library_impl")),
    ]
    assert 'conda install "pytorch>=2.' in commands[0]
    assert "conda install nanobind-backend" in commands[1]
    assert "conda install --force-reinstall fastops" in commands[2]
    assert not any("pip install" in text for text in commands)


def test_two_owners_warn_once_at_import(package: Path) -> None:
    own(package, fastops="0.1.0", fastops_cu13="0.1.0")
    code = "import fastops, fastops.nn\nimport fastops as again"
    result = python("-c", code, path=[str(package.parent), *SITE])
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("2 distributions own this package") == 1
    assert result.stderr.startswith("<string>:1: UserWarning: [fastops] ")  # blames the line that imports
    assert "  pip uninstall -y fastops fastops-cu13\n  pip install fastops==0.1.0" in result.stderr


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_info_of_a_package_that_loads(json_flag: list[str]) -> None:
    result = python("-m", "fastops.info", *json_flag, FASTOPS_CPU_ISA="base")
    assert result.returncode == 0, result.stderr
    if json_flag:
        report = json.loads(result.stdout)
        assert report["fastops"] == f"{fastops.__version__}, loads"
        assert report["torch"]["version"] == torch.__version__
        assert report["capabilities"]["cpu_level"] == "base"
        assert report["environment"]["FASTOPS_CPU_ISA"] == "base"
        assert list(report["extension files"]) == [_C.__file__]
    else:
        assert f"{fastops.__version__}, loads" in result.stdout
        assert "cpu      + base: " in result.stdout
        assert not re.search(r"unknown \(", result.stdout)


def test_a_probe_that_fails_is_a_line_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("out of cheese")

    monkeypatch.setattr(_driver, "probe", fail)
    monkeypatch.setattr(platform, "platform", fail)
    found = info.report()
    assert found["driver"] == found["system"] == found["capabilities"] == "unknown (RuntimeError: out of cheese)"
    assert found["torch"]["version"] == torch.__version__


def test_made_for_reads_the_header(tmp_path: Path) -> None:
    elf = b"\x7fELF" + bytes(14)
    heads = {
        elf + (62).to_bytes(2, "little"): "Linux x86_64",
        elf + (183).to_bytes(2, "little"): "Linux aarch64",
        b"\xcf\xfa\xed\xfe" + bytes(20): "macOS",
        b"MZ" + bytes(20): "Windows",
        b"": "not a shared library",
    }
    for head, made in heads.items():
        (tmp_path / "_C.so").write_bytes(head)
        assert _load.made_for(str(tmp_path / "_C.so")) == made
    assert any(_C.__file__.endswith(suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES)
