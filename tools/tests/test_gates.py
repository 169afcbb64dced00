"""Every gate lets a right wheel pass and stops one that is wrong in its matter."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fastops import _C

pytest.importorskip("cyclonedx", reason="the group `release` is not installed")
pytest.importorskip("torch_abi_audit", reason="the group `release` is not installed")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "gates"))
gates = pytest.importorskip("gates")
from opened import Failed, Wheel  # noqa: E402

CUDA = _C.build_info()["cuda_version"].partition(".")[0]
NAME = f"fastops-cu{CUDA}" if CUDA else "fastops"
INFO = f"{NAME.replace('-', '_')}-0.1.0.dist-info"
METADATA = f"""Metadata-Version: 2.4
Name: {NAME}
Version: 0.1.0
Summary: Fused operators
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.10
Requires-Dist: torch>=2.10
Requires-Dist: nanobind-backend>=1.0
Provides-Extra: numba
Requires-Dist: numba>=0.61; extra == "numba"
Description-Content-Type: text/markdown

# fastops
"""
COMPONENTS = {"nanobind": "3.1.0", "torch": "2.13.0"} | ({"cuda-cudart": "13.0"} if CUDA else {})


def bill(name: str = NAME, components: dict[str, str] = COMPONENTS) -> str:
    parts = [{"type": "library", "name": part, "version": version} for part, version in components.items()]
    subject = {"type": "library", "name": name, "version": "0.1.0"}
    return json.dumps(
        {"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": {"component": subject}, "components": parts}
    )


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a wheel of this build."""
    folder = tmp_path_factory.mktemp("wheel")
    for source, inside in gates.FOLDERS.items():
        tracked = subprocess.run(["git", "ls-files", source], cwd=ROOT, capture_output=True, text=True)
        for name in tracked.stdout.split():
            file = folder / (inside + name.removeprefix(source))
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, file)
    shutil.copy(ROOT / "cmake" / "fastops-config.cmake", folder / "fastops")
    (folder / gates.CMAKE_VERSION).write_text('set(PACKAGE_VERSION "0.1.0")\n')
    shutil.copy(_C.__file__, folder / "fastops" / "_C.abi3.so")
    shutil.copy(Path(_C.__file__).with_name("libfastops.so"), folder / "fastops")
    info = folder / INFO
    (info / "licenses").mkdir(parents=True)
    (info / "sboms").mkdir()
    shutil.copy(ROOT / "LICENSE", info / "licenses")
    (info / "METADATA").write_text(METADATA)
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp310-abi3-linux_x86_64\n")
    (info / "sboms" / "fastops.cdx.json").write_text(bill())
    return folder


Change = Callable[[Path], None]


def pack(right: Path, out: Path, change: Change | None, tag: str, release: bool = False, **build: object) -> Wheel:
    """A wheel of those files after ``change``, which reports of itself what this build does but for ``build``."""
    files = out / "files"
    shutil.copytree(right, files)
    if change:
        change(files)
    names = sorted(path for path in files.rglob("*") if path.is_file())
    digests = {p: base64.urlsafe_b64encode(hashlib.sha256(p.read_bytes()).digest()).rstrip(b"=") for p in names}
    record = files / INFO / "RECORD"
    lines = [f"{p.relative_to(files)},sha256={digests[p].decode()},{p.stat().st_size}" for p in names]
    record.write_text("\n".join([*lines, f"{INFO}/RECORD,,", ""]))
    file = out / f"{INFO.removesuffix('.dist-info')}-{tag}.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in [*names, record]:
            archive.write(path, path.relative_to(files))
    wheel = Wheel.open(file, out / "unpacked", release)
    reported = {**_C.build_info(), "distribution": NAME, "version": "0.1.0", "git_commit": "0123456789ab"}
    vars(wheel)["build"] = reported | build
    return wheel


def write(name: str, text: str) -> Change:
    def change(files: Path) -> None:
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        (files / name).write_text(text)

    return change


def library(source: str, *flags: str, name: str = "_C.abi3.so") -> Change:
    """Another binary in the place of ours."""

    def change(files: Path) -> None:
        if not (compiler := shutil.which("cc")):
            pytest.skip("no C compiler to make a wrong extension with")
        (files / "wrong.c").write_text(source)
        output = files / "fastops" / name
        subprocess.run([compiler, "-shared", "-fPIC", "-o", output, files / "wrong.c", *flags], check=True)
        (files / "wrong.c").unlink()

    return change


ENTRY = "void PyInit__C(void) {} "
ENABLE = "void fastops_enable(void) {} "
LIBRARY = "libfastops.so"
TAG = "cp310-abi3-linux_x86_64"
RELEASE = "cp310-abi3-manylinux_2_28_x86_64"


@pytest.mark.parametrize("gate", gates.GATES, ids=lambda gate: gate.__name__)
def test_a_right_wheel_passes(right: Path, tmp_path: Path, gate: Callable[[Wheel], str]) -> None:
    assert gate(pack(right, tmp_path, None, TAG))


WRONG = {
    "another name in METADATA": (
        "name",
        write(f"{INFO}/METADATA", METADATA.replace(NAME, "fastops-cu11")),
        "they differ",
    ),
    "a torch with an upper bound": (
        "metadata",
        write(f"{INFO}/METADATA", METADATA.replace("torch>=2.10", "torch<2.14,>=2.10")),
        "Requires-Dist must be ",
    ),
    "no description": ("twine", write(f"{INFO}/METADATA", METADATA.partition("Description")[0]), "twine|python"),
    "a test in the wheel": ("contents", write("fastops/test_relu.py", ""), "not expected: ['fastops/test_relu.py']"),
    "a library in the wheel": ("contents", write("fastops.libs/libgomp.so.1", ""), "fastops.libs/libgomp.so.1"),
    "an operator changed": ("contents", write("fastops/ops/relu.py", ""), "not as in the tree: fastops/ops/relu.py"),
    "a WHEEL of another tag": (
        "tag",
        write(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
        "WHEEL in it",
    ),
    "no stub": ("contents", lambda files: (files / "fastops/_C.pyi").unlink(), "missing: ['fastops/_C.pyi']"),
    "no version for CMake": (
        "contents",
        lambda files: (files / gates.CMAKE_VERSION).unlink(),
        "missing: ['fastops/fastops-config-version.cmake']",
    ),
    "another version for CMake": (
        "name",
        write(gates.CMAKE_VERSION, 'set(PACKAGE_VERSION "0.2.0")'),
        "must have PACKAGE_VERSION 0.1.0",
    ),
    "no header": (
        "contents",
        lambda files: (files / "fastops/include/fastops/fastops.h").unlink(),
        "missing: ['fastops/include/fastops/fastops.h']",
    ),
    "an SBOM of another": ("sbom", write(f"{INFO}/sboms/fastops.cdx.json", bill(name="numpy")), "it is of numpy"),
    "an SBOM without nanobind": (
        "sbom",
        write(f"{INFO}/sboms/fastops.cdx.json", bill(components={"torch": "2.13.0"})),
        "components must be",
    ),
    "an SBOM that is none": ("sbom", write(f"{INFO}/sboms/fastops.cdx.json", '{"components": 1}'), ""),
    "a library of CUDA": ("needed", library(ENTRY, "-Wl,--no-as-needed", "-l:libz.so.1"), "_C.abi3.so needs libz.so.1"),
    "a run path": (
        "needed",
        library(ENTRY, "-Wl,-rpath,/opt/torch"),
        "the run path of _C.abi3.so must be ['$ORIGIN'],",
    ),
    "no run path": ("needed", library(ENTRY), "the run path of _C.abi3.so must be ['$ORIGIN'], got []"),
    "a run path of the library": (
        "needed",
        library(ENABLE, "-Wl,-rpath,$ORIGIN", name=LIBRARY),
        "the run path of libfastops.so must be []",
    ),
    "a symbol too many": ("symbols", library(ENTRY + "void helper(void) {}"), "_C.abi3.so exports helper"),
    "a library that exports nothing": ("symbols", library("", name=LIBRARY), "libfastops.so exports nothing"),
    "a library that needs Python": (
        "symbols",
        library("extern int PyList_New(void); int fastops_enable(void) { return PyList_New(); }", name=LIBRARY),
        "symbols of libfastops.so outside the stable ABIs: PyList_New",
    ),
    "a symbol of libtorch's own": (
        "symbols",
        library("extern int _ZN3c106Device(void); int PyInit__C(void) { return _ZN3c106Device(); }"),
        "outside the stable ABIs: _ZN3c106Device",
    ),
    "Python beyond the stable ABI": (
        "python_abi",
        library("extern int _PyList_Extend(void); int PyInit__C(void) { return _PyList_Extend(); }"),
        "_PyList_Extend",
    ),
    "a shim of a later torch": (
        "torch_abi",
        library(
            "extern int torch_from_blob(void); int fastops_enable(void) { return torch_from_blob(); }", name=LIBRARY
        ),
        "the floor is 2.10, the symbols are of 2.11",
    ),
    "a folder of the build machine": (
        "paths",
        library(ENTRY + 'const char *where(void) { return "/home/somebody/fastops/relu.cpp"; }'),
        "/home/somebody/fastops/relu.cpp",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_wheel_is_stopped(right: Path, tmp_path: Path, case: str) -> None:
    name, change, expected = WRONG[case]
    wheel = pack(right, tmp_path, change, TAG)
    with pytest.raises(Failed) as raised:
        getattr(gates, name)(wheel)
    assert any(text in str(raised.value) for text in expected.split("|"))


def test_symbols_newer_than_the_tag_promises(right: Path, tmp_path: Path) -> None:
    wheel = pack(right, tmp_path, None, "cp310-abi3-manylinux_2_5_x86_64")
    with pytest.raises(Failed, match="the tag promises glibc"):
        gates.libc(wheel)


@pytest.mark.parametrize("tag", ["cp312-cp312-linux_x86_64", "cp312-abi3-linux_x86_64"])
def test_a_tag_of_one_python(right: Path, tmp_path: Path, tag: str) -> None:
    with pytest.raises(Failed, match="expected one tag, cp310-abi3"):
        gates.tag(pack(right, tmp_path, None, tag))


def test_a_release_for_a_later_glibc(right: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="must be for manylinux_2_28"):
        gates.tag(pack(right, tmp_path, None, TAG, release=True))


def test_a_release_of_changed_sources(right: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="without changes, got 0123456789ab-dirty"):
        gates.name(pack(right, tmp_path, None, RELEASE, release=True, git_commit="0123456789ab-dirty"))


def test_a_binary_that_does_not_know_its_commit(right: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="got unknown"):
        gates.name(pack(right, tmp_path, None, RELEASE, release=True, git_commit="unknown"))


def test_levels_that_are_missing(right: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"x86_64 has .*, got \['base'\]"):
        gates.levels(pack(right, tmp_path, None, TAG, isa_levels=["base"]))


def test_a_record_of_other_contents(right: Path, tmp_path: Path) -> None:
    wheel = pack(right, tmp_path, None, TAG)
    (wheel.folder / "fastops" / "py.typed").write_text("changed")
    with pytest.raises(Failed, match=r"RECORD is wrong of fastops/py.typed$"):
        gates.record(wheel)


def test_several_tags(right: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="expected one tag"):
        gates.tag(pack(right, tmp_path, None, "cp310-abi3-manylinux2014_x86_64.manylinux_2_28_x86_64"))


def test_archs_that_the_binary_does_not_have(right: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="_C says"):
        gates.archs(pack(right, tmp_path, None, TAG, cubins=[61]))


def test_a_file_over_its_limit(right: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gates.SIZE_LIMITS, NAME, 0.1)
    with pytest.raises(Failed, match=r"MB of at most 0\.1; unpacked, libfastops\.so is"):
        gates.size(pack(right, tmp_path, None, TAG))
