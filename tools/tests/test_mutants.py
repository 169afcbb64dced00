"""tools/mutants: every fault has its place in the sources, and the runner plants, restores and counts."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from fastops.cases import by_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tools" / "mutants"
sys.path.insert(0, str(FOLDER))
import copied  # noqa: E402
import listed  # noqa: E402
import proof  # noqa: E402
from fault import KINDS, Fault  # noqa: E402


def mutants(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, FOLDER, *arguments], capture_output=True, text=True, check=False)


# ---- the list --------------------------------------------------------------------------------------------------------


def test_every_fault_has_its_place() -> None:
    assert listed.wrong(listed.FAULTS, ROOT) == []


def test_ops_are_the_selftests() -> None:
    assert {op for fault in listed.FAULTS for op in fault.ops} == set(by_name())


def test_there_are_faults_of_all_kinds_and_layers() -> None:
    assert {fault.kind for fault in listed.FAULTS} == set(KINDS)
    count = Counter(fault.device for fault in listed.FAULTS)
    assert count["cpu"] >= 40
    assert count["cuda"] >= 22


def test_list_and_check() -> None:
    done = mutants("--check")
    assert (done.returncode, done.stdout) == (0, "")
    done = mutants("--list", "--device", "cuda", "--kind", "5")
    assert done.returncode == 0
    assert 0 < len(done.stdout.splitlines()) == sum(f.kind == 5 and f.device == "cuda" for f in listed.FAULTS)


def test_an_unknown_name() -> None:
    done = mutants("--only", "no-such-fault")
    assert done.returncode
    assert "no fault is called no-such-fault" in done.stderr


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"find": "x * x"}, "found 0 times"),
        ({"find": "x"}, "found 3 times"),
        ({"file": "src/fastops/gone.py"}, "found 0 times"),
        ({"replace": "x + x"}, "changes nothing"),
        ({"kind": 9}, "kind, device or ops"),
    ],
)
def test_a_wrong_fault_is_named(tree: Path, change: dict[str, object], expected: str) -> None:
    (line,) = listed.wrong([TIMES_THREE._replace(**change)], tree)
    assert line.startswith("times-three: ")
    assert expected in line


def test_two_faults_of_one_name(tree: Path) -> None:
    assert listed.wrong([TIMES_THREE, TIMES_THREE], tree) == ["times-three: the name is another's too"]


# ---- the runner, on a tree with a package of two files and one to compile --------------------------------------------

# A selftest of one check, whose quick form does not look at 4.
SELFTEST = """
import json, os, sys, time
import fastops
if fastops.double(0) == 1: time.sleep(60)
if fastops.double(0) == 2: os.abort()
quick, file = "--quick" in sys.argv, sys.argv[sys.argv.index("--json") + 1]
ok = all(fastops.double(x) == 2 * x for x in ((1,) if quick else (1, 4)))
ok = ok and open(os.path.join(os.path.dirname(__file__), "library.txt")).read() == "int f() { return 0; }\\n"
result = {"op": "double", "path": "cpu", "dtype": "f32", "check": "forward", "ok": ok}
open(file, "w").write(json.dumps({"results": [result]}))
sys.exit(not ok)
"""
CMAKE = """
cmake_minimum_required(VERSION 3.26)
project(fastops LANGUAGES NONE)
set(source ${CMAKE_SOURCE_DIR}/cpp/f.cpp)
add_custom_command(OUTPUT f.o COMMAND grep "return [01]" ${source} > f.o DEPENDS ${source})  # the compiler
add_custom_target(library ALL DEPENDS f.o)
install(FILES cpp/f.cpp DESTINATION fastops RENAME library.txt)
"""


def command_line() -> ModuleType:
    """tools/mutants/__main__.py, under a name of its own."""
    spec = importlib.util.spec_from_file_location("mutants_main", FOLDER / "__main__.py")
    assert spec
    assert spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fault(name: str, replace: str, find: str = "x + x", file: str = "src/fastops/__init__.py") -> Fault:
    return Fault(name, 1, ("double",), file, "It is wrong.", find, replace)


TIMES_THREE = fault("times-three", "3 * x")
OF_FOUR = fault("of-four", "x + x + (x == 4)")
EQUIVALENT = fault("equivalent", "2 * x")
HANGS = fault("hangs", "x + x + (x == 0)")
ABORTS = fault("aborts", "x + x + 2 * (x == 0)")
NO_IMPORT = fault("no-import", "", "def double")
LIBRARY = fault("library", "return 1;", "return 0;", "cpp/f.cpp")
NOT_CPP = fault("not-cpp", "return nothing;", "return 0;", "cpp/f.cpp")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    package = root / "src" / "fastops"
    (package / "selftest").mkdir(parents=True)
    (root / "cpp").mkdir()
    (package / "__init__.py").write_text("def double(x):\n    return x + x\n")
    (package / "selftest" / "__init__.py").write_text("")
    (package / "selftest" / "__main__.py").write_text(SELFTEST.replace("__file__)", "fastops.__file__)"))
    (root / "cpp" / "f.cpp").write_text("int f() { return 0; }\n")
    (root / "CMakeLists.txt").write_text(CMAKE)
    (root / "pyproject.toml").write_text('version = "0.1.0"\n')
    subprocess.run(["git", "init", "--quiet", root], check=True)
    return root


def run(tree: Path, faults: list[Fault], *arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit status, and of each fault the verdict and what found it."""
    if not (shutil.which("ninja") or copied.tool("ninja").exists()):
        pytest.skip("no ninja here")
    file = tree.parent / "found.json"
    status = command_line().main(["--json", str(file), *arguments], faults, tree, tree.parent / "copies")
    found = json.loads(file.read_text()) if file.exists() else []
    return status, {o["name"]: (o["verdict"], o["found"]) for o in found}


def test_found_passed_and_restored(tree: Path) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    status, found = run(tree, [TIMES_THREE, OF_FOUR, NO_IMPORT, ABORTS, LIBRARY, EQUIVALENT])
    assert status == 1
    assert found["times-three"] == ("quick", "double cpu f32: forward")
    assert found["of-four"] == ("whole", "double cpu f32: forward")
    assert found["no-import"][0] == "quick"
    assert found["aborts"][0] == "quick"
    assert found["aborts"][1].startswith("SIGABRT")
    assert found["library"][0] == "quick"
    assert found["equivalent"] == ("PASSED", "It is wrong.")
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before
    assert run(tree, [TIMES_THREE]) == (0, {"times-three": ("quick", "double cpu f32: forward")})


def test_several_runs_at_a_time(tree: Path) -> None:
    faults = [TIMES_THREE, OF_FOUR, ABORTS, LIBRARY, EQUIVALENT, NOT_CPP]
    assert run(tree, faults, "--jobs", "3") == (2, run(tree, faults)[1])


def test_a_hang_is_found(tree: Path) -> None:
    status, found = run(tree, [HANGS], "--time", "3")
    assert (status, found["hangs"]) == (0, ("quick", "time limit"))


def test_what_does_not_compile_is_an_error(tree: Path) -> None:
    status, found = run(tree, [NOT_CPP, LIBRARY])
    assert status == 2
    assert found["not-cpp"][0] == "ERROR"
    assert "does not compile" in found["not-cpp"][1]
    assert found["library"][0] == "quick"


def test_a_lost_place_is_an_error(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tree, [TIMES_THREE._replace(find="x - x")]) == (2, {})
    assert "found 0 times" in capsys.readouterr().out


def test_a_selftest_that_fails_by_itself_is_an_error(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "src" / "fastops" / "__init__.py").write_text("def double(x):\n    return x + x + (x == 4)\n")
    assert run(tree, [NO_IMPORT]) == (2, {})
    assert "FAILS" in capsys.readouterr().out


@pytest.fixture
def copy(tree: Path) -> copied.Copy:
    if not copied.tool("ninja").exists():
        pytest.skip("no ninja here")
    return copied.Copy(tree, tree.parent / "copy", {})


def test_the_package_of_a_fault_is_its_own(copy: copied.Copy) -> None:
    copy.prepare()
    package = copy.planted(LIBRARY)
    assert "return 1;" in (package / "fastops" / "library.txt").read_text()
    assert "return 0;" in (copy.package / "fastops" / "library.txt").read_text()
    copy.prepare()
    assert not package.exists()


def test_a_compiled_fault_leaves_nothing_behind(tree: Path, copy: copied.Copy) -> None:
    """Neither where the run goes on, nor where it is cut off."""
    copy.prepare()
    times = {path: path.stat().st_mtime_ns for path in copy.build.rglob("*.o")}
    assert times
    planted = copy._planted(LIBRARY)
    planted.__enter__()
    assert "return 1;" in (copy.package / "fastops" / "library.txt").read_text()
    assert {path: path.stat().st_mtime_ns for path in copy.build.rglob("*.o")} != times
    with pytest.raises(KeyboardInterrupt):
        planted.gen.throw(KeyboardInterrupt)
    assert (copy.tree / "cpp" / "f.cpp").read_text() == (tree / "cpp" / "f.cpp").read_text()
    assert "return 0;" in (copy.package / "fastops" / "library.txt").read_text()
    copy.prepare()
    assert {path: path.stat().st_mtime_ns for path in copy.build.rglob("*.o")} == times  # nothing was compiled again


def test_the_copy_follows_the_tree(tree: Path, copy: copied.Copy) -> None:
    (tree / "src" / "fastops" / "old.py").write_text("")
    copy.prepare()
    (tree / "src" / "fastops" / "old.py").unlink()
    (tree / "src" / "fastops" / "new.py").write_text("")
    (copy.tree / "cpp" / "f.cpp").write_text("int f() { return 1; }\n")  # of a run that was killed
    copy.prepare()
    assert not (copy.package / "fastops" / "old.py").exists()
    assert (copy.package / "fastops" / "new.py").exists()
    assert "return 0;" in (copy.package / "fastops" / "library.txt").read_text()


def test_a_process_ends_with_its_children(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
    )
    script += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); time.sleep(60)"
    assert proof._run([sys.executable, "-c", script], tmp_path, 3)[0] is None
    child = int((tmp_path / "pid").read_text())
    status = Path(f"/proc/{child}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z" or os.getpgid(child) != child
