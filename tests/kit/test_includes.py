"""Files that a source includes: their content is in the key, in one process and across processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from common import needs_compiler, needs_nvrtc

from fastops import kit
from fastops.kit import CompileError, NoCompiler, compiler, cpp_op, cuda_kernel, includes, nvrtc

SOURCE = "void f(int32_t* y) { y[0] = VALUE; }"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> Path:
    """The current directory, with folders of headers."""
    folder = tmp_path / "here"
    for name in ("first", "second/sub"):
        (folder / name).mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def value(include: str, options: Sequence[str] = ()) -> int:
    """What a function that is made anew says, as a process that begins has it and as one that goes on."""
    y = torch.zeros(1, dtype=torch.int32)
    cpp_op(f"{include}\n{SOURCE}", "f", "int32* y", options=options)(y)
    seen = int(y.item())
    compiler._opened.clear()
    cpp_op(f"{include}\n{SOURCE}", "f", "int32* y", options=options)(y.zero_())
    assert y.item() == seen
    return seen


def define(path: Path, number: int, before: str = "") -> None:
    path.write_text(f"{before}\n#undef VALUE\n#define VALUE {number}\n")


# An include, options, and the file that it reads.
WAYS: dict[str, tuple[str, list[str], str]] = {
    "current directory": ('#include "my.h"', [], "my.h"),
    "absolute": ('#include "{here}/my.h"', [], "my.h"),
    "folder": ('#include "my.h"', ["-I{here}/first"], "first/my.h"),
    "folder apart": ("#include <my.h>", ["-I", "{here}/first"], "first/my.h"),
    "relative folder": ("#include <my.h>", ["-Ifirst"], "first/my.h"),
    "quote": ('#include "my.h"', ["-iquote", "first"], "first/my.h"),
    "system": ("#include <my.h>", ["-isystem", "first"], "first/my.h"),
    "last": ("#include <my.h>", ["-idirafter", "first"], "first/my.h"),
    "option": ("", ["-include", "first/my.h"], "first/my.h"),
    "option that searches": ("", ["-include", "my.h", "-Ifirst"], "first/my.h"),
    "through the preprocessor": ("#include <my.h>", ["-Wp,-I,first"], "first/my.h"),
    "response file": ("#include <my.h>", ["@first/options"], "first/my.h"),
    "below": ('#include "sub/my.h"', ["-Isecond"], "second/sub/my.h"),
    "space": ('#include "my own.h"', [], "my own.h"),
    "macro": ('#define HEADER "my.h"\n#include HEADER', [], "my.h"),
    "macro that is pasted": ("#define TEXT(x) #x\n#define H(x) TEXT(x)\n#include H(my.h)", [], "my.h"),
    "macro of an option": ("#include HEADER", ['-DHEADER="my.h"'], "my.h"),
    "odd spelling": ('#  /* a */ inc\\\nlude /* b */ "my.h"', [], "my.h"),
    "digraph": ('%:include "my.h"', [], "my.h"),
    "branch": ('#if 1\n#include "my.h"\n#else\n#include "none.h"\n#endif', [], "my.h"),
}


@needs_compiler
@pytest.mark.parametrize("way", WAYS)
def test_a_header_that_was_edited(way: str, here: Path) -> None:
    include, options, file = WAYS[way]
    include, options = include.replace("{here}", str(here)), [option.replace("{here}", str(here)) for option in options]
    (here / "first" / "options").write_text("-Ifirst")
    for number in (1, 2, 1):
        define(here / file, number)
        assert value(include, options) == number


@needs_compiler
def test_a_header_of_a_header(here: Path) -> None:
    (here / "first" / "outer.h").write_text('#include "inner.h"\n')
    for number in (1, 2):
        define(here / "first" / "inner.h", number)
        assert value('#include "outer.h"', ["-Ifirst"]) == number


@needs_compiler
def test_headers_of_each_other(here: Path) -> None:
    (here / "first" / "a.h").write_text('#pragma once\n#include "../second/b.h"\n#include "../second/sub/c.h"\n')
    (here / "second" / "sub" / "c.h").write_text('#pragma once\n#include "../b.h"\n#include "../../first/a.h"\n')
    for number in (1, 2):
        define(here / "second" / "b.h", number, '#pragma once\n#include "../first/a.h"\n#include "sub/../sub/c.h"')
        assert value('#include "first/a.h"') == number
    assert len(compiler.included('#include "first/a.h"', [])) == 3


@needs_compiler
def test_a_header_that_comes_to_lie_earlier(here: Path) -> None:
    define(here / "second" / "my.h", 2)
    options = ["-Ifirst", "-Isecond"]
    assert value('#include "my.h"', options) == 2
    define(here / "first" / "my.h", 1)
    assert value('#include "my.h"', options) == 1
    define(here / "my.h", 7)  # beside the source
    assert value('#include "my.h"', options) == 7
    (here / "my.h").unlink()
    (here / "first" / "my.h").unlink()
    assert value('#include "my.h"', options) == 2


@needs_compiler
def test_a_folder_that_comes_to_be(here: Path) -> None:
    define(here / "second" / "my.h", 2)
    options = ["-Ilate", "-Isecond"]
    assert value("#include <my.h>", options) == 2
    (here / "late").mkdir()
    define(here / "late" / "my.h", 3)
    assert value("#include <my.h>", options) == 3


@needs_compiler
def test_whether_there_is_one(here: Path) -> None:
    source = '#if __has_include("my.h")\n#define VALUE 1\n#else\n#define VALUE 0\n#endif'
    assert value(source) == 0
    (here / "my.h").write_text("")
    assert value(source) == 1
    (here / "my.h").unlink()
    assert value(source) == 0


@needs_compiler
@pytest.mark.parametrize("variable", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_folders_of_the_environment(variable: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("first", 1), ("second", 2)):
        define(here / name / "my.h", number)
        monkeypatch.setenv(variable, f"{here / name}")
        assert value("#include <my.h>") == number
    define(here / "second" / "my.h", 3)
    assert value("#include <my.h>") == 3


@needs_compiler
def test_the_current_directory_is_another(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define(here / "my.h", 1)
    assert value('#include "my.h"') == 1
    define(here / "second" / "my.h", 2)
    monkeypatch.chdir(here / "second")
    assert value('#include "my.h"') == 2


@needs_compiler
@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("ar")), reason="there is no g++, or no ar")
@pytest.mark.parametrize("options", [["libmine.a"], ["-L.", "-lmine"]], ids=["file", "name"])
def test_a_static_library_that_was_made_anew(options: list[str], here: Path) -> None:
    for number in (1, 2):
        (here / "mine.cpp").write_text(f"int mine() {{ return {number}; }}")
        subprocess.run(["g++", "-fPIC", "-c", "mine.cpp"], check=True)
        subprocess.run(["ar", "rc", "libmine.a", "mine.o"], check=True)
        assert value("int mine();\n#define VALUE mine()", options) == number


@needs_compiler
def test_the_same_files_are_compiled_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define(here / "my.h", 1)
    include = '#include <vector>\n#include "my.h"'
    assert value(include) == 1
    monkeypatch.setattr(compiler, "_compile", None)
    assert value(include) == 1
    os.utime(here / "my.h", (1, 1))  # the content counts
    assert value(include) == 1


@needs_compiler
def test_another_process_sees_what_was_edited(here: Path) -> None:
    code = """
import torch
from fastops.kit import cpp_op
y = torch.zeros(1, dtype=torch.int32)
cpp_op('#include "my.h"\\nvoid f(int32_t* y) { y[0] = VALUE; }', "f", "int32* y")(y)
print(y.item())
"""
    for number in (1, 2):
        define(here / "my.h", number)
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout == f"{number}\n"


@needs_compiler
def test_what_was_edited_during_a_compilation_is_not_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define(here / "my.h", 1)
    compiled = compiler._compile

    def slow(*given: object) -> bytes:
        made = compiled(*given)  # type: ignore[arg-type]
        define(here / "my.h", 2)
        return made

    monkeypatch.setattr(compiler, "_compile", slow)
    y = torch.zeros(1, dtype=torch.int32)
    cpp_op(f'#include "my.h"\n{SOURCE}', "f", "int32* y")(y)
    assert y.item() == 1
    monkeypatch.setattr(compiler, "_compile", compiled)
    assert value('#include "my.h"') == 2
    define(here / "my.h", 1)
    assert value('#include "my.h"') == 1


@needs_compiler
def test_an_op_around_a_function_is_made_anew(here: Path) -> None:
    def defined() -> Callable[[torch.Tensor], torch.Tensor]:
        function = cpp_op(f'#include "my.h"\n{SOURCE}', "f", "int32* y")

        def run(x: torch.Tensor) -> torch.Tensor:
            y = torch.empty_like(x)
            function(y)
            return y

        return kit.op("my::of_a_header(Tensor x) -> Tensor", cpu=run)

    for number in (1, 2, 1):
        define(here / "my.h", number)
        op = defined()
        assert op(torch.zeros(1, dtype=torch.int32)).item() == number
        assert defined() is op


def test_files_of_a_rule_of_make() -> None:
    rule = b"op: /a/b.h \\\n  /my\\ own/x\\#y.h \\\n /c$$d.h /dev/stdin\n"
    assert compiler._listed(rule) == ["/a/b.h", "/my own/x#y.h", "/c$d.h"]


def test_a_fifo_is_no_header(here: Path) -> None:
    os.mkfifo(here / "my.h")
    assert includes.read('#include "my.h"', []).files == []


# NVRTC

KERNEL = "__global__ void f(int32_t* y) { y[0] = VALUE; }"


def image(include: str, options: Sequence[str] = ()) -> bytes:
    return cuda_kernel(f"{include}\n{KERNEL}", "f", "int32* y", grid=1, options=options).compile("sm_90").cubin


NVRTC_WAYS = {
    **{way: WAYS[way] for way in ("current directory", "absolute", "folder", "folder apart", "relative folder")},
    **{way: WAYS[way] for way in ("option", "below", "macro", "macro that is pasted", "branch", "odd spelling")},
    "long option": ("#include <my.h>", ["--include-path=first"], "first/my.h"),
    "long option to include": ("", ["--pre-include=my.h", "--include-path", "first"], "first/my.h"),
}


@needs_nvrtc
@pytest.mark.parametrize("way", NVRTC_WAYS)
def test_nvrtc_sees_a_header_that_was_edited(way: str, here: Path) -> None:
    include, options, file = NVRTC_WAYS[way]
    include, options = include.replace("{here}", str(here)), [option.replace("{here}", str(here)) for option in options]
    images = []
    for number in (1, 2, 1):
        define(here / file, number)
        images.append(image(include, options))
    assert images[0] != images[1]
    assert images[0] == images[2]


@needs_nvrtc
def test_nvrtc_compiles_the_same_files_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    define(here / "first" / "my.h", 1)
    first = image("#include <my.h>", ["-Ifirst"])
    compiled = nvrtc._Nvrtc.compile
    monkeypatch.setattr(nvrtc._Nvrtc, "compile", None)
    assert image("#include <my.h>", ["-Ifirst"]) == first
    monkeypatch.setattr(nvrtc._Nvrtc, "compile", compiled)
    define(here / "my.h", 1)
    (here / "first" / "my.h").write_text("#error changed")
    with pytest.raises(CompileError, match="changed"):
        image("#include <my.h>", ["-Ifirst"])


CUDA_HEADERS = [
    "cub/block/block_reduce.cuh",
    "cooperative_groups.h",
    "cooperative_groups/reduce.h",
    "cuda/std/atomic",
    "cuda/std/type_traits",
    "thrust/tuple.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
]


def needs_cccl() -> None:
    if not any(Path(folder, "cub").is_dir() for folder in nvrtc.include_folders()):
        pytest.skip("CUB and libcu++ are not installed beside NVRTC")


@needs_nvrtc
@pytest.mark.parametrize("header", CUDA_HEADERS)
def test_cudas_own_headers(header: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_cccl()
    include = f"#include <{header}>\n#define VALUE 1"
    first = image(include)
    monkeypatch.setattr(nvrtc._Nvrtc, "compile", None)
    assert image(include) == first


@needs_nvrtc
def test_a_sum_by_cub_and_a_header_of_ones_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_cccl()
    source = """
    #include <cub/block/block_reduce.cuh>
    #include "my.h"
    __global__ void total(const float* x, float* y) {
      using Reduce = cub::BlockReduce<float, THREADS>;
      __shared__ typename Reduce::TempStorage storage;
      const float sum = Reduce(storage).Sum(x[threadIdx.x]);
      if (threadIdx.x == 0) y[0] = sum;
    }
    """
    (here / "first" / "my.h").write_text("enum { THREADS = 64 };")
    kernel = cuda_kernel(source, "total", "const float* x, float* y", grid=1, options=["-Ifirst"])
    first = kernel.compile("sm_90")
    monkeypatch.setattr(nvrtc._Nvrtc, "compile", None)
    assert kernel.compile("sm_90") == first


LAYOUTS: dict[str, tuple[str, list[str]]] = {
    "wheels of CUDA 13": ("cu13/lib", ["cu13/include", "cu13/include/cccl"]),
    "wheels of CUDA 12": ("cuda_nvrtc/lib", ["cuda_runtime/include", "cuda_cccl/include"]),
    "conda": ("lib", ["targets/x86_64-linux/include"]),
    "conda of CUDA 13": ("lib", ["targets/x86_64-linux/include", "targets/x86_64-linux/include/cccl"]),
    "toolkit": ("cuda/lib64", ["cuda/include", "cuda/include/cccl"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_where_the_headers_lie(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, folders = LAYOUTS[layout]
    markers = ["cuda_fp16.h", "cub/version.cuh"] if len(folders) > 1 else ["cuda_fp16.h"]
    for folder, marker in zip(folders, markers, strict=True):
        file = tmp_path / folder / marker
        file.parent.mkdir(parents=True)
        file.write_text("")
    monkeypatch.setattr(nvrtc, "_path", lambda name: str(tmp_path / library / "libnvrtc.so.13"))
    assert nvrtc.include_folders() == [str(tmp_path / folder) for folder in folders]


def test_another_release_of_the_headers_is_another_key(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Sequence[str]] = []

    class Nvrtc:
        def compile(self, source: str, name: str, arch: str, options: Sequence[str], kernels: object) -> object:
            compiled.append(options)
            return b"cubin", {}

    library, header = tmp_path / "lib" / "libnvrtc.so.13", tmp_path / "include" / "cccl" / "cub" / "version.cuh"
    for file in (library, header):
        file.parent.mkdir(parents=True)
        file.write_text("1")
    monkeypatch.setattr(nvrtc, "_path", lambda name: str(library))
    monkeypatch.setattr(nvrtc, "_open", lambda path: Nvrtc())
    sources: list[Callable[[], object]] = [
        lambda: nvrtc.compile("#include <cub/x.cuh>", name="op", arch="sm_90"),
        lambda: nvrtc.compile("", name="op", arch="sm_90"),
    ]
    for _ in range(2):
        for run in sources:
            run()
    assert [f"--include-path={header.parents[1]}" in options for options in compiled] == [True, False]
    header.write_text("12")
    for run in sources:
        run()
    assert len(compiled) == 3


def test_without_nvrtc_there_are_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_found", lambda majors: None)
    with pytest.raises(NoCompiler):
        nvrtc.include_folders()
