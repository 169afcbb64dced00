"""The cache on disk: right under many processes, and after whatever may happen to its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fastops.kit import __main__, cache, compiler, linker, nvrtc

PARTS = ["c++", b"\x00source"]


def made(content: bytes = b"the content") -> tuple[list[int], Callable[[], bytes]]:
    """A maker, and a list that grows with each call of it."""
    calls: list[int] = []

    def make() -> bytes:
        calls.append(1)
        return content

    return calls, make


def entry(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_made_once(empty_cache: Path) -> None:
    calls, make = made()
    assert [cache.lookup(PARTS, make) for _ in range(3)] == [b"the content"] * 3
    assert len(calls) == 1
    assert cache.entries() == [entry(empty_cache)]


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, os.urandom(100_000)], ids=["empty", "zeros", "random"])
def test_any_bytes_come_back(empty_cache: Path, content: bytes) -> None:
    for _ in range(2):
        calls, make = made(content)
        assert cache.lookup(PARTS, make) == content
    assert not calls


@pytest.mark.parametrize("other", [["c++\x00source"], ["c+", b"+\x00source"], ["c++", b"\x00source", ""], []], ids=repr)
def test_other_parts_are_another_entry(empty_cache: Path, other: list[str | bytes]) -> None:
    assert cache.lookup(PARTS, lambda: b"one") == b"one"
    assert cache.lookup(other, lambda: b"other") == b"other"
    assert cache.lookup(PARTS, lambda: b"none") == b"one"


class Changes:
    """All that an entry depends on. Each may change alone."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tool, self.monkeypatch = folder / "tool", monkeypatch
        self.tool.write_text("a compiler\n")
        self.tool.chmod(0o755)
        os.utime(self.tool, (1, 1))
        self.source, self.arch, self.options, self.kernels = "source", "sm_90", ["-DA"], ["f<int>"]

    def fastops(self) -> None:
        self.monkeypatch.setattr(cache._C, "build_info", lambda: {"version": "99.0"})

    def tools_size(self) -> None:
        self.tool.write_text("another compiler\n")
        os.utime(self.tool, (1, 1))

    def tools_time(self) -> None:
        os.utime(self.tool, (2, 2))

    def tools_place(self) -> None:
        other = self.tool.with_name("other")
        shutil.copy2(self.tool, other)
        self.tool = other

    def text(self) -> None:
        self.source = "source "

    def option(self) -> None:
        self.options = ["-DB"]

    def one_option_more(self) -> None:
        self.options = ["-DA", "-DB"]

    def architecture(self) -> None:
        self.arch = "sm_80"

    def kernel(self) -> None:
        self.kernels = ["f<long>"]

    def processor(self) -> None:
        self.monkeypatch.setattr(compiler, "_cpu", lambda: "another")


ANY = [Changes.fastops, Changes.tools_size, Changes.tools_time, Changes.tools_place, Changes.text]
OPTIONS = [Changes.option, Changes.one_option_more]


def assert_made_anew(made: list[int], run: Callable[[], None], change: Callable[[], None]) -> None:
    run()
    run()
    assert len(made) == 1
    change()
    run()
    assert len(made) == 2


@pytest.mark.parametrize("change", [*ANY, *OPTIONS, Changes.architecture, Changes.kernel])
def test_nothing_stale_of_nvrtc(
    change: Callable[[Changes], None], empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    class Nvrtc:
        def compile(self, *given: object) -> tuple[bytes, dict[str, str]]:
            made.append(1)
            return b"cubin", {}

    of = Changes(tmp_path, monkeypatch)
    monkeypatch.setattr(nvrtc, "_path", lambda name: str(of.tool))
    monkeypatch.setattr(nvrtc, "_open", lambda path: Nvrtc())

    def run() -> None:
        nvrtc.compile(of.source, name="op", arch=of.arch, options=of.options, kernels=of.kernels)

    assert_made_anew(made, run, lambda: change(of))


@pytest.mark.parametrize("change", [*ANY, *OPTIONS, Changes.processor])
def test_nothing_stale_of_the_c_compiler(
    change: Callable[[Changes], None], empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    of = Changes(tmp_path, monkeypatch)
    monkeypatch.setattr(compiler, "_compile", lambda *given: made.append(1) or b"{}\nlibrary")
    monkeypatch.setattr(compiler, "_open", lambda library, name: library)

    def run() -> None:  # as a process that begins
        compiler._opened.clear()
        monkeypatch.setenv("CXX", str(of.tool))
        compiler.shared_library(of.source, name="op", options=of.options)

    assert_made_anew(made, run, lambda: change(of))
    compiler._opened.clear()


@pytest.mark.parametrize("change", [*ANY, Changes.architecture])
def test_nothing_stale_of_the_linker(
    change: Callable[[Changes], None], empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    of = Changes(tmp_path, monkeypatch)
    monkeypatch.setattr(linker, "_found", lambda: str(of.tool))
    monkeypatch.setattr(linker, "_link", lambda *given: made.append(1) or b"cubin")
    assert_made_anew(
        made, lambda: linker.link([of.source.encode()], name="op", arch=of.arch) and None, lambda: change(of)
    )


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


@pytest.mark.parametrize("damage", [cut, empty, flip, lengthen])
def test_a_damaged_entry_is_made_again(empty_cache: Path, damage: Callable[[Path], None]) -> None:
    cache.lookup(PARTS, lambda: b"the content")
    damage(entry(empty_cache))
    calls, make = made()
    assert [cache.lookup(PARTS, make) for _ in range(2)] == [b"the content"] * 2
    assert len(calls) == 1


def test_an_entry_that_is_a_folder(empty_cache: Path) -> None:
    cache.lookup(PARTS, lambda: b"the content")
    path = entry(empty_cache)
    path.unlink()
    path.mkdir()
    calls, make = made()
    assert [cache.lookup(PARTS, make) for _ in range(2)] == [b"the content"] * 2
    assert len(calls) == 2
    assert entry(empty_cache) == path  # and no file of an unfinished write beside it


def test_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTOPS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    calls, make = made()
    assert [cache.lookup(PARTS, make) for _ in range(2)] == [b"the content"] * 2
    assert len(calls) == 2
    assert cache.entries() == []
    kept = cache.keep_source("int x")
    assert kept is not None
    assert kept.read_text() == "int x"
    kept.unlink()


def test_a_write_that_fails_leaves_nothing(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*paths: object, **folders: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", full)
    assert cache.lookup(PARTS, lambda: b"the content") == b"the content"
    assert list(empty_cache.iterdir()) == []


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("FASTOPS_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache.directory() is None
    assert cache.lookup(PARTS, lambda: b"the content") == b"the content"
    assert cache.entries() == []
    assert cache.clear() == 0


def test_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.sys, "platform", "linux")
    monkeypatch.delenv("FASTOPS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache.directory() == Path("/elsewhere/fastops")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.directory() == Path.home() / ".cache" / "fastops"


def test_the_home_directory_by_its_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache.sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FASTOPS_CACHE_DIR", "~/kept/here")
    assert cache.directory() == tmp_path / "kept" / "here"
    cache.put(PARTS, b"x")
    assert cache.get(PARTS) == b"x"
    assert not Path("~").exists()
    monkeypatch.setenv("FASTOPS_CACHE_DIR", "~no-such-user/x")
    assert cache.directory() is None
    monkeypatch.delenv("FASTOPS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "~/elsewhere")
    assert cache.directory() == tmp_path / "elsewhere" / "fastops"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the standard says to ignore
    assert cache.directory() == Path.home() / ".cache" / "fastops"


ASCII = [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "utf-8"},
]


@pytest.mark.parametrize("folder", ["b\u00fcro", os.fsdecode(b"\xff")], ids=["umlaut", "no text"])
@pytest.mark.parametrize("encoding", ASCII, ids=["ascii", "C", "utf-8"])
@pytest.mark.parametrize("command", [["fastops.kit", "cache"], ["fastops.info"]], ids=lambda command: command[0])
def test_commands_print_any_path(command: list[str], encoding: dict[str, str], folder: str, tmp_path: Path) -> None:
    env = {**os.environ, **encoding, "FASTOPS_CACHE_DIR": str(tmp_path / folder)}
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, env=env)
    assert done.returncode == 0, done.stderr
    assert os.fsencode(tmp_path) in done.stdout


def test_clear_takes_only_what_is_ours(empty_cache: Path) -> None:
    cache.lookup(PARTS, lambda: b"the content")
    cache.keep_source("int x")
    theirs = empty_cache / "notes.txt"
    theirs.write_text("mine")
    (empty_cache / f"{cache.key(PARTS)}.abc.tmp").write_text("of a process that was killed")
    assert cache.clear() == 3
    assert list(empty_cache.iterdir()) == [theirs]


def test_an_error_of_the_maker_leaves_nothing(empty_cache: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        cache.lookup(PARTS, lambda: bytes(1 // 0))
    assert cache.entries() == []


PROCESS = """
import random, sys
from fastops.kit import __main__, cache, compiler, linker, nvrtc
damage = random.Random(int(sys.argv[1]))
for step in range(300):
    name = step % 5
    content = bytes([name]) * 5000
    assert cache.lookup([str(name)], lambda: content) == content, step
    if damage.random() < 0.1:
        found = cache.entries()
        if found:
            path = damage.choice(found)
            try:
                if damage.random() < 0.5:
                    path.unlink()
                else:
                    path.write_bytes(path.read_bytes()[:2000])
            except FileNotFoundError:
                pass
"""


def test_processes_that_read_write_and_damage_at_once(empty_cache: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", PROCESS, str(k)], stderr=subprocess.PIPE) for k in range(4)]
    for process in processes:
        _, error = process.communicate()
        assert process.returncode == 0, error.decode()
    assert not [path for path in empty_cache.iterdir() if path.suffix == ".tmp"]


def test_the_command(empty_cache: Path) -> None:
    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "fastops.kit", "cache", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert run() == f"{empty_cache}: 0 files, 0 bytes\n"
    cache.lookup(PARTS, lambda: b"the content")
    assert run() == f"{empty_cache}: 1 file, {11 + 32} bytes\n"
    assert run("--clear") == f"{empty_cache}: removed 1 file\n"
    assert cache.entries() == []


def test_the_command_tells_of_a_folder_that_is_no_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTOPS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert __main__.main(["cache"]) == 0
    assert "0 files, 0 bytes; it cannot be written, so that every process compiles anew" in capsys.readouterr().out
    assert __main__.main(["cache", "--clear"]) == 0


def test_the_command_tells_what_it_could_not_remove(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.lookup(PARTS, lambda: b"the content")
    monkeypatch.setattr(cache, "_removed", lambda path: False)
    assert __main__.main(["cache", "--clear"]) == 1
    assert capsys.readouterr().err == "1 file could not be removed\n"
