"""``python channel.py FOLDER``: a channel with the packages that recipe.yaml names, made of what the machine has.

Names, run exports and the way files are shared out are conda-forge's.
"""

from __future__ import annotations

import shlex
import sys
import time
from importlib import metadata
from pathlib import Path

from machine import (
    CUDA,
    GLIBC,
    GXX,
    GXX_VERSION,
    MACHINE,
    NVCC,
    NVCC_VERSION,
    PYTHON,
    PYTHON_MINOR,
    SUBDIR,
    closure,
    requires,
    torch_folder,
)
from rattler_build import Stage0Recipe, VariantConfig

# conda-forge's pytorch needs numpy, where pip's leaves it to the user.
TORCH_NEEDS = (*requires("torch"), "numpy")
TOOLS = ("pip", "cmake", "ninja", "nanobind", "nanobind-backend", "scikit-build-core")
# Copied as they are; a Python per file to compile it would take minutes.
COPIES = {"dynamic_linking": {"binary_relocation": False}, "python": {"skip_pyc_compilation": ["**/*.py"]}}


def contents(*arguments: str) -> str:
    return shlex.join([sys.executable, str(Path(__file__).with_name("contents.py")), *arguments])


def activation(**variables: str) -> list[str]:
    """A script that sets these wherever the package is."""
    lines = "\n".join(f'export {name}="{value}"' for name, value in variables.items())
    folder = "$PREFIX/etc/conda/activate.d"
    return [f"mkdir -p {folder}", f"echo {shlex.quote(lines)} > {folder}/$PKG_NAME.sh"]


def recipe(name: str, version: str, *, build: dict | None = None, **requirements: object) -> dict:
    return {
        "schema_version": 1,
        "package": {"name": name, "version": version},
        "build": {"number": 0, **(build or {"noarch": "generic"})},
        "requirements": requirements,
    }


def python() -> list[dict]:
    major_minor = PYTHON_MINOR.replace(".", "")
    build = {
        "string": "0_cpython",
        "script": contents("python"),
        "prefix_detection": {"ignore": True},
        # Its RPATH shall lead to the library in the package, not to the machine's own.
        "dynamic_linking": {"binary_relocation": [f"bin/python{PYTHON_MINOR}"]},
        "python": {**COPIES["python"], "site_packages_path": f"lib/python{PYTHON_MINOR}/site-packages"},
    }
    exports = {"noarch": ["python"], "weak": [f"python_abi {PYTHON_MINOR}.* *_cp{major_minor}"]}
    return [
        recipe("python", PYTHON, build=build, run_exports=exports),
        recipe("python_abi", PYTHON_MINOR, build={"noarch": "generic", "string": f"0_cp{major_minor}"}),
        # What makes one build serve every later Python.
        recipe("cpython", PYTHON, run=[f"python {PYTHON}.*"]),
        recipe("python-gil", PYTHON, run=[f"cpython {PYTHON}.*"]),
        recipe("_python_abi3_support", "1.0", run=["cpython", "python-gil"]),
        recipe(
            "python-abi3",
            PYTHON_MINOR,
            run=[f"python {PYTHON_MINOR}.*", "_python_abi3_support"],
            run_exports=["_python_abi3_support 1.*", f"cpython >={PYTHON_MINOR}"],
        ),
    ]


def compilers() -> list[dict]:
    major = GXX_VERSION.split(".")[0]
    sysroot = f"$PREFIX/{MACHINE}-conda-linux-gnu/sysroot/lib64"
    loader = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}[MACHINE]
    # What a binary may need of glibc, rattler-build reads from the names of these files; it opens none.
    files = ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", loader]
    flags = activation(
        CXX=GXX,
        CXXFLAGS="-fvisibility-inlines-hidden -ftree-vectorize -fPIC -fno-plt -O2 -pipe",
        LDFLAGS="-Wl,-O2 -Wl,--as-needed -Wl,--disable-new-dtags -Wl,-rpath,$PREFIX/lib -L$PREFIX/lib",
        CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release",
    )
    return [
        recipe(
            f"sysroot_{SUBDIR}",
            GLIBC,
            build={"noarch": "generic", "script": [f"mkdir -p {sysroot}", f"cd {sysroot}", f"touch {' '.join(files)}"]},
            run_exports={"strong": [f"__glibc >={GLIBC},<3.0.a0"]},
        ),
        recipe(
            f"gxx_{SUBDIR}",
            GXX_VERSION,
            build={"script": flags},
            run_exports={"strong": [f"libstdcxx >={major}", f"libgcc >={major}"]},
        ),
        recipe("libgcc", GXX_VERSION, build={**COPIES, "script": contents("runtime", "libgcc_s.so.1")}),
        recipe(
            "libstdcxx", GXX_VERSION, build={**COPIES, "script": contents("runtime", "libstdc++.so.6")}, run=["libgcc"]
        ),
    ]


def cuda() -> list[dict]:
    """nvcc, which brings the machine's cudart with it; so the packages of cudart are but their names."""
    major = int(CUDA.split(".")[0])
    minor_version = f"cuda-version >={CUDA},<{major + 1}"
    # A list of archs that the build must not take.
    nvcc = {"script": activation(CUDACXX=NVCC, CUDAARCHS="all")}
    exports = [f"cuda-cudart >={NVCC_VERSION},<{major + 1}.0a0"]
    return [
        recipe("cuda-version", CUDA, run_constraints=[f"__cuda >={major}"]),
        recipe(
            f"cuda-nvcc_{SUBDIR}",
            NVCC_VERSION,
            build=nvcc,
            run=[f"cuda-version {CUDA}.*"],
            run_exports={"strong": [minor_version]},
        ),
        recipe("cuda-cudart", NVCC_VERSION, run=[minor_version]),
        recipe("cuda-cudart-static", NVCC_VERSION, run=[minor_version]),
        recipe("cuda-cudart-dev", NVCC_VERSION, run=["cuda-cudart", "cuda-cudart-static"], run_exports=exports),
    ]


def torch(cuda: str) -> list[dict]:
    """libtorch and pytorch, under the names of a CPU build or of a CUDA build; the contents are the same."""
    version = metadata.version("torch").split("+")[0]
    minor = ".".join(version.split(".")[:2])
    string = f"cuda{cuda.replace('.', '')}_200" if cuda else "cpu_0"
    build = {**COPIES, "string": string, "number": 200 if cuda else 0, "prefix_detection": {"ignore": True}}
    # What libtorch was built for, as conda-forge's says it; another list that the build must not take.
    archs = activation(CF_TORCH_CUDA_ARCH_LIST="9.0")
    run, driver = ([f"cuda-version {cuda.split('.')[0]}.*"], ["__cuda"]) if cuda else ([], [])
    exact = f"libtorch =={version} {string}"
    return [
        recipe(
            "libtorch",
            version,
            build={**build, "script": [contents("libtorch"), *archs]},
            run=run,
            run_exports=[f"libtorch {minor}.*"],
        ),
        recipe(
            "pytorch",
            version,
            build={**build, "script": contents("pytorch")},
            host=["python", exact],
            run=["python", exact, *run, *driver, *TORCH_NEEDS],
            run_exports=[f"pytorch {minor}.*"],
        ),
    ]


def distributions() -> list[dict]:
    recipes = []
    for name in closure(*TOOLS, *TORCH_NEEDS):
        build = {**COPIES, "script": contents("distribution", name)}
        run = ["python", *requires(name)]
        recipes.append(recipe(name, metadata.version(name), build=build, host=["python"], run=run))
    return recipes


def main(folder: Path) -> None:
    torch_folder()
    recipes = [*python(), *compilers(), *distributions(), *torch("")]
    if NVCC:
        recipes += [*cuda(), *torch(CUDA)]
    variants = VariantConfig({"python": [f"{PYTHON_MINOR}.* *_cpython"]})
    for text in recipes:
        began = time.monotonic()
        (variant,) = Stage0Recipe.from_dict(text).render(variants)
        # The lowest compression: they are read once.
        (package,) = variant.run_build(output_dir=folder, channels=[folder.as_uri()], package_format="conda:1").packages
        print(package.name, f"{time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
