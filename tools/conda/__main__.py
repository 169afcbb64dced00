"""``python tools/conda render`` and ``build``: the packages of recipe/recipe.yaml.

render prints what each variant is to be, for each platform, and needs no channel. build makes those of one CUDA major
version for this machine: ``python tools/conda build 13``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from rattler_build import (
    Package,
    PlatformConfig,
    RattlerBuildError,
    RenderConfig,
    RenderedVariant,
    Stage0Recipe,
    ToolConfiguration,
    VariantConfig,
)
from rattler_build.progress import SimpleProgressCallback

ROOT = Path(__file__).parents[2]
PLATFORMS = ("linux-64", "linux-aarch64")


def configuration(files: list[Path], values: dict[str, str]) -> VariantConfig:
    """recipe/variants.yaml, and what the caller has other than it."""
    read = VariantConfig.from_files([ROOT / "recipe/variants.yaml", *files])
    return read.merge(VariantConfig({key: [value] for key, value in values.items()}))


def rendered(variants: VariantConfig, platform: str | None = None) -> list[RenderedVariant]:
    """The variants that are to be built."""
    # load_from_file, by which the recipe has the version, is still called an experiment.
    config = RenderConfig(platform=PlatformConfig(target_platform=platform, experimental=True))
    every = Stage0Recipe.from_file(ROOT / "recipe/recipe.yaml").render(variants, config)
    # Through this interface, what the recipe says under `skip` is built all the same.
    return [variant for variant in every if not variant.recipe.context["redundant"]]


def render(variants: VariantConfig) -> None:
    for platform in PLATFORMS:
        for variant in rendered(variants, platform):
            recipe = variant.recipe
            print(f"{platform}/{recipe.package.name}-{recipe.package.version}-{recipe.build.string}")
            for kind, specs in recipe.requirements.to_dict().items():
                if kind != "ignore_run_exports":
                    print(f"  {kind:6}", ", ".join(map(text, specs)))


def text(spec: str | dict[str, dict[str, str]]) -> str:
    """pin_compatible is not settled before there is an environment."""
    if isinstance(spec, str):
        return spec
    ((function, arguments),) = spec.items()
    return f"{function}({', '.join(arguments.values())})"


def build(cuda: str, variants: VariantConfig, channels: list[str], output: Path) -> None:
    cache = Path(os.environ.setdefault("RATTLER_CACHE_DIR", str(ROOT / "build/conda/cache")))
    for old in cache.glob("pkgs/fastops-*"):
        # A package built again by the same name would be tested as it was before.
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    for variant in rendered(variants):
        version = variant.variant["cuda_compiler_version"]
        if variant.recipe.context["cuda"] != cuda:
            continue
        if cuda != "none":
            # pytorch's CUDA builds ask for a driver, which machines that build have not; conda-forge does the same.
            os.environ["CONDA_OVERRIDE_CUDA"] = version
        result = variant.run_build(
            tool_config=ToolConfiguration(test_strategy="native"),
            output_dir=output,
            channels=channels,
            progress_callback=SimpleProgressCallback(),
        )
        for file in result.packages:
            package = Package.from_file(file)
            print(file, *package.depends, *(f"constrains {spec}" for spec in package.constrains), sep="\n  ")


def main() -> int:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--variants", action="append", type=Path, default=[], help="a file over variants.yaml")
    common.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key over variants.yaml")
    parser = argparse.ArgumentParser(prog="tools/conda", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("render", parents=[common])
    options = commands.add_parser("build", parents=[common])
    options.add_argument("cuda", choices=("none", "12", "13"))
    options.add_argument("--channel", action="append", dest="channels", help="in place of conda-forge")
    options.add_argument("--output", type=Path, default=ROOT / "build/conda")
    arguments = parser.parse_args()
    try:
        variants = configuration(arguments.variants, dict(text.split("=", 1) for text in arguments.set))
        if arguments.command == "render":
            render(variants)
        else:
            build(arguments.cuda, variants, arguments.channels or ["conda-forge"], arguments.output.resolve())
    except RattlerBuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
