"""What others may have written is not run: folders and files of the cache that are not this user's alone."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from common import needs_compiler

from fastops.kit import CompileError, KitError, __main__, cache, compiler, cpp_op, trusted

PARTS = ["of a test"]


def planted(folder: Path) -> Path:
    """A whole entry, as another user would leave it."""
    cache.put(PARTS, b"planted")
    (path,) = folder.iterdir()
    return path


def found() -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cache.lookup(PARTS, lambda: b"made anew")


def given_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, -1, follow_symlinks=False)
    else:  # what is this user's is then another's
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


def others_file(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_away(path, monkeypatch)


def others_folder(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_away(folder, monkeypatch)


def open_file(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o666)


def file_of_the_group(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o660)


def open_folder(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o777)


def folder_of_the_group(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o770)


def sticky_folder(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o1777)


def link_to_a_file(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")


def link_to_a_folder(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


def fifo(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def fifo_for_a_folder(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rename(folder.parent / "elsewhere")
    os.mkfifo(folder, 0o600)


HARMS = [others_file, others_folder, open_file, file_of_the_group, open_folder, folder_of_the_group, sticky_folder]
HARMS += [link_to_a_file, link_to_a_folder, fifo, fifo_for_a_folder]


@pytest.mark.parametrize("harm", HARMS)
def test_what_others_may_have_written_is_a_miss(
    harm: Callable[[Path, Path, pytest.MonkeyPatch], None], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = planted(empty_cache)
    assert found() == b"planted"
    harm(empty_cache, path, monkeypatch)
    done = threading.Event()
    watched = threading.Thread(target=lambda: (found(), done.set()), daemon=True)  # a FIFO would block
    watched.start()
    assert done.wait(20)
    assert found() == b"made anew"


@pytest.mark.parametrize("harm", [others_file, open_file, file_of_the_group, link_to_a_file, fifo])
def test_a_file_that_is_not_ours_is_replaced(
    harm: Callable[[Path, Path, pytest.MonkeyPatch], None], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if harm is others_file and os.geteuid():
        pytest.skip("only root can give a file away")
    path = planted(empty_cache)
    harm(empty_cache, path, monkeypatch)
    assert found() == b"made anew"
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert cache.get(PARTS) == b"made anew"
    with contextlib.suppress(FileNotFoundError):  # what the link led to is as it was
        assert (empty_cache.parent / "elsewhere").read_bytes().startswith(b"planted")


def test_roots_files_are_taken(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(empty_cache)
    if os.geteuid():
        pytest.skip("only root makes files of root's")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert found() == b"planted"


def test_it_is_said_once(empty_cache: Path) -> None:
    empty_cache.mkdir()
    empty_cache.chmod(0o777)
    with pytest.warns(UserWarning, match=rf"^\[fastops\] others may write to {empty_cache} \(mode 0777\): chmod go-w"):
        cache.put(PARTS, b"x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(PARTS, b"x")
    assert list(empty_cache.iterdir()) == []


def test_the_command_says_it(empty_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty_cache.mkdir()
    empty_cache.chmod(0o777)
    assert __main__.main(["cache"]) == 0
    said = capsys.readouterr().out
    assert f"0 files, 0 bytes; others may write to {empty_cache} (mode 0777)" in said
    assert said.endswith("makes it yours alone, so that every process compiles anew\n")


def test_a_link_is_said_too(empty_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    empty_cache.symlink_to(tmp_path / "elsewhere")
    with pytest.warns(UserWarning, match=rf"^\[fastops\] {empty_cache} is a link: name the folder that it leads to"):
        cache.put(PARTS, b"x")
    assert list((tmp_path / "elsewhere").iterdir()) == []


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277, 0o777], ids=oct)
def test_folders_are_made_for_this_user_alone(mask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("FASTOPS_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with umask(mask):
        cache.put(PARTS, b"x")
    assert cache.get(PARTS) == b"x"
    for path in (tmp_path / ".cache", tmp_path / ".cache" / "fastops"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    (entry,) = (tmp_path / ".cache" / "fastops").iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_links_above_the_folder_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("FASTOPS_CACHE_DIR", str(tmp_path / "link" / "cache"))
    cache.put(PARTS, b"x")
    assert cache.get(PARTS) == b"x"


def test_places_where_files_may_be_exchanged(tmp_path: Path) -> None:
    inner = tmp_path / "open" / "inner"
    inner.mkdir(parents=True)
    assert not trusted.exchangeable(str(inner))
    inner.parent.chmod(0o777)
    assert trusted.exchangeable(str(inner))
    inner.parent.chmod(0o1777)
    assert not trusted.exchangeable(str(inner))
    assert trusted.exchangeable(str(inner / "gone"))


@needs_compiler
def test_a_safe_place_comes_first(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(compiler.tempfile, "tempdir", str(temporary))
    assert compiler._places() == [str(temporary), str(empty_cache)]
    temporary.chmod(0o777)
    assert compiler._places() == [str(empty_cache), str(temporary)]


# Entries that are whole, but do not open


def answer(source: str = "void f(float* y) { y[0] = 3; }") -> float:
    y = torch.zeros(1)
    cpp_op(source, "f", "float* y")(y)
    return y.item()


@needs_compiler
@pytest.mark.parametrize("content", [b"{}\nno library", b"no line", b'{"a":\n', b"[]\n", b"\xff\n", b""], ids=repr)
def test_an_entry_that_does_not_open_is_made_anew(content: bytes, empty_cache: Path) -> None:
    compiler._opened.clear()
    assert answer() == 3
    (path,) = empty_cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(content + cache.hashlib.sha256(content).digest())
    compiler._opened.clear()
    assert answer() == 3
    assert path.read_bytes() == whole


@needs_compiler
def test_a_compiler_that_makes_no_library_is_an_error(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(compiler, "_compile", lambda *given: calls.append(1) or b"{}\nno library")
    with pytest.raises(KitError, match=r"^\[f\] the compiled library does not open: "):
        answer("void f(float* y) { y[0] = 4; }")
    assert len(calls) == 1
    assert cache.entries() == []


@needs_compiler
def test_threads_that_compile_at_once(empty_cache: Path) -> None:
    compiler._opened.clear()
    results: list[object] = []

    def run(k: int) -> None:
        try:
            results.append(answer(f"void f(float* y) {{ y[0] = {'three' if k % 3 == 0 else 3}; }}"))
        except CompileError as error:
            results.append(type(error))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, results)) == ["3.0"] * 6 + [str(CompileError)] * 3
