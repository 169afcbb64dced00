"""recipe/: it makes the packages that README promises, and what it must say again is what pyproject.toml says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("rattler_build", reason="the group `conda` is not installed")
tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Where conda's name is another.
CONDA = {"torch": "pytorch"}


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_conda", ROOT / "tools/conda/__main__.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recipes(platform: str = "linux-64", **values: str) -> list:
    conda = tool()
    return [variant.recipe for variant in conda.rendered(conda.configuration([], values), platform)]


def floors(requirements: list[str]) -> set[str]:
    """``name >=version`` with conda's names; what follows the version is left out."""
    found = (re.match(r"([\w-]+) ?>=([\d.]+)", text) for text in requirements if isinstance(text, str))
    return {f"{CONDA.get(match[1], match[1])} >={match[2]}" for match in found if match}


@pytest.mark.parametrize("platform", ["linux-64", "linux-aarch64"])
def test_one_package_for_each_cuda(platform: str) -> None:
    made = sorted(re.sub(r"_h\w{7}", "", recipe.build.string) for recipe in recipes(platform))
    assert made == ["cpu_abi3_0", "cuda129_abi3_200", "cuda130_abi3_200"]


def test_static_nanobind() -> None:
    made = recipes(fastops_nanobind="static")
    assert sorted(re.sub(r"_h\w{7}", "", recipe.build.string) for recipe in made if "cpu" in recipe.build.string) == [
        "cpu_abi3_0",
        "cpu_py311_0",
    ]
    assert not any("nanobind-backend" in str(recipe.requirements.to_dict()) for recipe in made)


def test_states_what_pyproject_states() -> None:
    for recipe in recipes():
        assert recipe.package.version == PROJECT["project"]["version"]
        assert recipe.about.license == PROJECT["project"]["license"]
        requirements = recipe.requirements.to_dict()
        run = floors(PROJECT["project"]["dependencies"])
        assert run <= floors(requirements["run"])
        torch = {text for text in run if text.startswith("pytorch ")}
        assert floors(PROJECT["build-system"]["requires"]) | torch <= floors(requirements["host"])


def test_other_archs_are_another_build() -> None:
    assert {r.build.string for r in recipes()}.isdisjoint(r.build.string for r in recipes(fastops_cuda_archs="90"))
