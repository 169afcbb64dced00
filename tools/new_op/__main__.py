"""Writes the files of a new operator: ``make new-op NAME=my_op``.

The template is a working operator, ``cube``, in the tree's own layout; its files are copied under the new name, and the
name is entered where public names and cases are listed.
"""

from __future__ import annotations

import keyword
import re
import subprocess
import sys
from pathlib import Path

TEMPLATE = Path(__file__).parent / "template"
ROOT = Path(__file__).parents[2]
WORD = "cube"

# Words that C++ keeps for itself, or that kernels and launchers use for something else.
TAKEN = re.findall(
    r"\w+",
    """
    alignas alignof and asm auto bitand bitor bool break case catch char class co_await co_return co_yield compl concept
    const const_cast consteval constexpr constinit continue decltype default delete do double dynamic_cast else enum
    explicit export extern false final float for friend goto if import inline int long module mutable namespace new
    noexcept not nullptr operator or override private protected public register reinterpret_cast requires return short
    signed sizeof static static_assert static_cast struct switch template this throw true try typedef typeid typename
    union unsigned using virtual void volatile wchar_t while xor
    avx2 avx512 base bench capabilities cpu cuda device fastops generic kernels kit ops pointwise reference std torch
    """,
)

CASE = """    Case(
        name="cube",
        function=ops.cube,
        reference=reference.cube,
        plain=lambda x: x * x * x,
        torch_op=None,
        samples=elementwise.samples(scale=2.0),
        raw=elementwise.unary("cube", saves_output=False),
        problem=elementwise.one_tensor,
        bounds=bounds(f16=(1, 1, 1), bf16=(1, 1, 1), f32=(2, 3, 3), f64=(2, 3, 3)),
        formula="x³",
        gradient="3·x²·g",
        relative=True,
        relative_gradient=True,
    ),
"""

NEXT = """
{name}(x) is x³ until you write your own formula. What to do next:
  1. make selftest ARGS="--op {name} --quick"    builds it and passes as it is
  2. write the formula and its gradient into the files above
  3. in src/fastops/cases/__init__.py complete its row: plain, torch_op (or None), samples, problem, bounds, formula
     and gradient; inputs of its own go into a file beside it
  4. make selftest ARGS="--op {name}" and make test ARGS="-k {name}", then make format lint
  5. a row in README.md's table and a line in CHANGELOG.md
"""


def main(arguments: list[str]) -> int:
    try:
        name = valid_name(arguments)
        files = new_files(name) | changed_files(name)
    except ValueError as error:
        print(f"new-op: {error}", file=sys.stderr)
        return 2
    for path, text in files.items():
        print("new    " if not path.exists() else "changed", path.relative_to(ROOT))
        path.write_text(text)
    tidy(list(files))
    print(NEXT.format(name=name))
    return 0


def valid_name(arguments: list[str]) -> str:
    if len(arguments) != 1:
        raise ValueError("give the operator one name: make new-op NAME=my_op")
    name = arguments[0]
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ValueError(f"NAME must be a word of lower-case letters, digits and single underscores, got {name!r}")
    if keyword.iskeyword(name) or name in TAKEN:
        raise ValueError(f"NAME must not be {name!r}, which means something else in Python or C++")
    if name.endswith(("_backward", "_reference", "_kernels")):
        raise ValueError(f"NAME must not end in {name[name.rindex('_') :]!r}: every operator has such names of its own")
    package = ROOT / "src/fastops"
    if (package / name).exists() or (package / f"{name}.py").exists():
        raise ValueError(f"NAME must not be {name!r}: fastops.{name} is a module")
    return name


def new_files(name: str) -> dict[Path, str]:
    files = {}
    for source in sorted(p for p in TEMPLATE.rglob(f"{WORD}.*") if p.suffix in (".cpp", ".cu", ".py")):
        target = ROOT / source.relative_to(TEMPLATE).with_stem(name)
        if target.exists():
            raise ValueError(f"{name!r} exists: {target.relative_to(ROOT)}")
        files[target] = renamed(source.read_text(), name)
    return files


def changed_files(name: str) -> dict[Path, str]:
    package = ROOT / "src/fastops"
    table = package / "cases/__init__.py"
    public = f"from .{name} import {name}"
    plain = f"from .ops.{name} import {name}_reference as {name}"
    return {
        package / "ops/__init__.py": listed(package / "ops/__init__.py", name, public),
        package / "reference.py": listed(package / "reference.py", name, plain),
        table: inserted(table, r"^CASES\b.*?(?=^\))", renamed(CASE, name)),
    }


def renamed(text: str, name: str) -> str:
    camel = "".join(part.capitalize() for part in name.split("_"))
    return text.replace(WORD.capitalize(), camel).replace(WORD, name)


def listed(path: Path, name: str, line: str) -> str:
    """The module with one more import, after its last, and one more name in ``__all__``; ruff sorts both."""
    text = inserted(path, r"(?:.*^from \.\S+ import [^\n]+\n)", line + "\n")
    if "__all__ = [" not in text:
        raise ValueError(f"{path.relative_to(ROOT)} has no line `__all__ = [...]`, where the name belongs")
    return text.replace("__all__ = [", f'__all__ = ["{name}", ', 1)


def inserted(path: Path, before: str, text: str) -> str:
    """The file's text with ``text`` inserted behind what the pattern matches."""
    old = path.read_text()
    match = re.search(before, old, re.MULTILINE | re.DOTALL)
    if not match:
        raise ValueError(f"{path.relative_to(ROOT)} does not have the lines behind which the new ones belong")
    return old[: match.end()] + text + old[match.end() :]


def tidy(paths: list[Path]) -> None:
    """A new name's length moves line breaks and its letters the place in a sorted list."""
    tools = Path(sys.executable).parent
    python = [str(p) for p in paths if p.suffix == ".py"]
    commands = {
        "ruff": [["check", "--quiet", "--fix", "--select", "I001,RUF022", *python], ["format", "--quiet", *python]],
        "clang-format": [["-i", *(str(p) for p in paths if p.suffix != ".py")]],
    }
    for tool, calls in commands.items():
        for arguments in calls:
            if (tools / tool).exists():
                subprocess.run([tools / tool, *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
