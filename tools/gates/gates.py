"""What every wheel must be before anybody may install it. A gate returns what it saw, or raises Failed."""

from __future__ import annotations

import base64
import csv
import email
import hashlib
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import device_code
import waits as machine_code
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from opened import ROOT, Failed, Wheel, platform_glibc
from packaging.version import Version

# MB, so that growth is a decision and not an accident; the index itself takes 100.
SIZE_LIMITS = {"fastops": 3.1, "fastops-cu12": 24, "fastops-cu13": 21}

NEEDED = re.compile(r"lib(torch|torch_cpu|c10|stdc\+\+|gcc_s|m|c|dl|rt|pthread)\.so[.\d]*|ld-linux[\w-]*\.so[.\d]*")

# Undefined symbols without a version: torch's C shims, and what every linker leaves open.
KNOWN = re.compile(r"(aoti_)?torch_\w+|_ITM_\w+|__gmon_start__|__cxa_finalize")


class Binary(NamedTuple):
    """What one of a wheel's two may have beside that."""

    needs: str  # libraries
    run_paths: list[str]
    exports: re.Pattern[str]
    imports: re.Pattern[str]


OURS = re.compile(r"_ZNK?7fastops\w+")
BINARIES = {
    # The stable ABI of Python, nanobind's split mode, and our own library beside it.
    "_C.abi3.so": Binary(
        "libfastops.so", ["$ORIGIN"], re.compile("PyInit__C"), re.compile(rf"_?Py\w+|nb_\w+|{OURS.pattern}")
    ),
    # Without Python: a C++ program opens it.
    "libfastops.so": Binary("", [], re.compile(rf"fastops_\w+|{OURS.pattern}"), re.compile("(?!)")),
}

# Of the tree, and what they are in a wheel.
FOLDERS = {
    "src/fastops": "fastops",
    "cpp/include/fastops": "fastops/include/fastops",
    "cuda/device": "fastops/include/fastops/device",
}

# What find_package(fastops X.Y) reads. The build writes it.
CMAKE_VERSION = "fastops/fastops-config-version.cmake"

ISA_LEVELS = {"x86_64": ["base", "avx2", "avx512"], "aarch64": ["base"]}

RELEASE_TAG = re.compile(r"cp310-abi3-manylinux_2_28_(x86_64|aarch64)")

# A folder of somebody's machine, of a container's, or of a CI's.
FOLDER = re.compile(rb"(?<![\w.])/(?:home|root|tmp|work|project|build|opt|host|__w|usr/local)/[\w./-]+")


def name(wheel: Wheel) -> str:
    """File name, METADATA, CMake's version, and the distribution, version and CUDA of the binary are the same."""
    build = wheel.build
    cuda = str(build["cuda_version"])
    expected = f"fastops-cu{cuda.partition('.')[0]}" if cuda else "fastops"
    names = {
        "file": wheel.distribution,
        "METADATA": wheel.metadata["Name"],
        "_C": build["distribution"],
        "by CUDA": expected,
    }
    versions = {"file": wheel.version, "METADATA": wheel.metadata["Version"], "_C": build["version"]}
    for fact in (names, versions):
        if len(set(fact.values())) > 1:
            raise Failed(f"they differ: {fact}")
    numbers = Version(wheel.version).base_version  # CMake's versions have no pre-releases
    if f'set(PACKAGE_VERSION "{numbers}")' not in (wheel.folder / CMAKE_VERSION).read_text():
        raise Failed(f"{CMAKE_VERSION} must have PACKAGE_VERSION {numbers}")
    head = run("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD").strip()
    if wheel.release and build["git_commit"] != head:
        raise Failed(f"it must be of commit {head}, without changes, got {build['git_commit']}")
    return f"{expected} {wheel.version}, CUDA {cuda or 'none'}, commit {build['git_commit']}"


def tag(wheel: Wheel) -> str:
    """One file for every CPython from 3.10; a release is for glibc 2.28, as torch's own wheels are."""
    tags = sorted(map(str, wheel.tags))
    inside = email.message_from_string((wheel.dist_info / "WHEEL").read_text())
    if len(tags) != 1 or not tags[0].startswith("cp310-abi3-"):
        raise Failed(f"expected one tag, cp310-abi3, got {', '.join(tags)}")
    if inside.get_all("Tag") != tags or inside["Root-Is-Purelib"] != "false":
        raise Failed(f"the file's name says {tags[0]}, WHEEL in it {inside.items()}")
    if wheel.release and not RELEASE_TAG.fullmatch(tags[0]):
        raise Failed(f"a release must be for manylinux_2_28, got {tags[0]}")
    return tags[0]


def metadata(wheel: Wheel) -> str:
    """What pip reads: Python and torch by their floors alone, no upper bound that would replace a user's torch.

    What extras require is the user's choice.
    """
    found = wheel.metadata
    expected = {
        "Requires-Python": [">=3.10"],
        "Requires-Dist": [f"torch>={wheel.build['torch_floor']}", "nanobind-backend>=1.0"],
        "License-Expression": ["Apache-2.0"],
        "License-File": ["LICENSE"],
    }
    for key, values in expected.items():
        got = [value for value in found.get_all(key) or [] if "; extra ==" not in value]
        if got != values:
            raise Failed(f"{key} must be {values}, got {got}")
    if "+" in wheel.version:
        raise Failed(f"an index takes no local version, got {wheel.version}")
    return ", ".join(expected["Requires-Dist"])


def twine(wheel: Wheel) -> str:
    """The index accepts the metadata and renders the description."""
    said = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", str(wheel.file))
    return said.rpartition(":")[2].strip()


def contents(wheel: Wheel) -> str:
    """The tree's package, stubs, licence and headers, the SBOM; no test, no other source, no library of others."""
    info = wheel.dist_info.name
    sources = {f"{info}/licenses/LICENSE": "LICENSE", "fastops/fastops-config.cmake": "cmake/fastops-config.cmake"}
    for folder, inside in FOLDERS.items():
        for source in run("git", "-C", str(ROOT), "ls-files", folder).split():
            sources[inside + source.removeprefix(folder)] = source
    made = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "sboms/fastops.cdx.json")}
    made.add(CMAKE_VERSION)
    expected = {*(f"fastops/{name}" for name in BINARIES), *sources, *made}
    if set(wheel.names) != expected:
        extra, missing = set(wheel.names) - expected, expected - set(wheel.names)
        raise Failed(f"not expected: {sorted(extra)}; missing: {sorted(missing)}")
    changed = [n for n, source in sources.items() if (wheel.folder / n).read_bytes() != (ROOT / source).read_bytes()]
    if changed:
        raise Failed(f"not as in the tree: {', '.join(changed)}")
    return f"{len(expected)} files"


def record(wheel: Wheel) -> str:
    """Every file with its digest, which installers and auditors go by."""
    found = {}
    for name, digest, _ in csv.reader((wheel.dist_info / "RECORD").read_text().splitlines()):
        content = (wheel.folder / name).read_bytes()
        actual = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        found[name] = digest == f"sha256={actual}" or (name.endswith(".dist-info/RECORD") and not digest)
    wrong = sorted({name for name, right in found.items() if not right} | set(wheel.names) ^ set(found))
    if wrong:
        raise Failed(f"RECORD is wrong of {', '.join(wrong)}")
    return f"{len(found)} entries"


def size(wheel: Wheel) -> str:
    """Under its limit, with what takes the room."""
    megabytes = wheel.file.stat().st_size / 1e6
    sections = {section.name: section["sh_size"] for section in wheel.elf[wheel.library].iter_sections()}
    device = sections.get(".nv_fatbin", 0)
    host = wheel.library.stat().st_size - device
    code = sections.get(".text", 0)
    said = (
        f"{megabytes:.2f} MB of at most {SIZE_LIMITS[wheel.distribution]}; unpacked, libfastops.so is "
        f"{device / 1e6:.2f} MB of CUDA code and {host / 1e6:.2f} MB for the CPU ({code / 1e6:.2f} of it instructions)"
    )
    if megabytes > SIZE_LIMITS[wheel.distribution]:
        raise Failed(said)
    return said


def sbom(wheel: Wheel) -> str:
    """Valid CycloneDX, of this very wheel, naming what is compiled in."""
    text = (wheel.dist_info / "sboms" / "fastops.cdx.json").read_text(encoding="utf-8")
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise Failed(str(error))
    bill = json.loads(text)
    subject = bill["metadata"]["component"]
    if (subject["name"], subject["version"]) != (wheel.distribution, wheel.version):
        raise Failed(f"it is of {subject['name']} {subject['version']}")
    parts = {component["name"]: component["version"] for component in bill["components"]}
    expected = {"nanobind", "torch"} | ({"cuda-cudart"} if wheel.build["cuda_version"] else set())
    if set(parts) != expected:
        raise Failed(f"components must be {sorted(expected)}, got {sorted(parts)}")
    return ", ".join(f"{name} {version}" for name, version in parts.items())


def needed(wheel: Wheel) -> str:
    """torch, the C and C++ libraries, and our own; from no folder of the build machine."""
    seen: dict[str, None] = {}
    for binary, elf in wheel.elf.items():
        allowed, dynamic = BINARIES[binary.name], list(elf.get_section_by_name(".dynamic").iter_tags())
        libraries = [tag.needed for tag in dynamic if tag.entry.d_tag == "DT_NEEDED"]
        paths = [tag.runpath for tag in dynamic if tag.entry.d_tag == "DT_RUNPATH"]
        paths += [tag.rpath for tag in dynamic if tag.entry.d_tag == "DT_RPATH"]
        if foreign := [name for name in libraries if name != allowed.needs and not NEEDED.fullmatch(name)]:
            raise Failed(f"{binary.name} needs {', '.join(foreign)}")
        if paths != allowed.run_paths:
            raise Failed(f"the run path of {binary.name} must be {allowed.run_paths}, got {paths}")
        seen |= dict.fromkeys(libraries)
    return ", ".join(seen)


def symbols(wheel: Wheel) -> str:
    """Each exports what others use of it, and what it imports is of a stable ABI, versioned, or of the other."""
    counts = []
    for binary, elf in wheel.elf.items():
        allowed, table = BINARIES[binary.name], list(elf.get_section_by_name(".dynsym").iter_symbols())[1:]
        exported = [s.name for s in table if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] != "STB_LOCAL"]
        if not exported or (extra := [name for name in exported if not allowed.exports.fullmatch(name)]):
            raise Failed(f"{binary.name} exports {', '.join(extra) if exported else 'nothing'}")
        versions = elf.get_section_by_name(".gnu.version")

        def versioned(index: int, versions=versions) -> bool:  # type: ignore[no-untyped-def]
            return versions is not None and str(versions.get_symbol(index)["ndx"]).isdigit()

        undefined = [(index, s.name) for index, s in enumerate(table, start=1) if s["st_shndx"] == "SHN_UNDEF"]
        imported = [name for index, name in undefined if not versioned(index)]
        if foreign := [name for name in imported if not (KNOWN.fullmatch(name) or allowed.imports.fullmatch(name))]:
            raise Failed(f"symbols of {binary.name} outside the stable ABIs: {', '.join(foreign)}")
        counts.append(f"{len(imported)} of {binary.name}")
    return ", ".join(counts)


def libc(wheel: Wheel) -> str:
    """No symbol of the C and C++ libraries newer than the platform tag promises."""
    report = json.loads(run(sys.executable, "-m", "auditwheel", "show", "--json", str(wheel.file)))
    found = report["sym_tag"]
    if wheel.glibc is None:
        return f"symbols of {found}; not held to any, since the tag promises none"
    if platform_glibc(found) > wheel.glibc:
        raise Failed(f"the tag promises glibc {wheel.glibc}, the symbols are of {found}")
    return f"symbols of {found}"


def python_abi(wheel: Wheel) -> str:
    """abi3audit: the stable ABI of the Python that the tag names."""
    report = json.loads(run(sys.executable, "-m", "abi3audit", "--strict", "--report", str(wheel.file)))
    results = {found["name"]: found["result"] for found in report["specs"][str(wheel.file)]["wheel"]}
    for result in results.values():
        if not result["is_abi3"] or not result["is_abi3_baseline_compatible"]:
            raise Failed(json.dumps(result))
    return f"abi3 of {results[wheel.extension.name]['computed']}"


def torch_abi(wheel: Wheel) -> str:
    """torch-abi-audit: nothing but the C shims, none newer than the floor."""
    program = "import sys, torch_abi_audit.cli as cli; sys.exit(cli.main())"
    report = json.loads(run(sys.executable, "-c", program, "--json", str(wheel.library)))
    (found,) = report["bundled_libs"]
    torch = found["torch"]
    if report["error"] or not torch["stable"] or torch["unknown_shim_symbols"]:
        raise Failed(json.dumps(found))
    floor = str(wheel.build["torch_floor"])
    if torch["min_torch_version"] != f"{floor}.0":
        raise Failed(f"the floor is {floor}, the symbols are of {torch['min_torch_version']}")
    return f"{torch['stable_shim_count']} shims, PyTorch {torch['min_torch_version']} and newer"


def archs(wheel: Wheel) -> str:
    """The machine code and PTX in the file, of every source, are those that the capability check goes by."""
    tool, found = cuobjdump(), {}
    for kind, option in (("cubin", "--list-elf"), ("ptx", "--list-ptx")):
        listed = run(tool, option, str(wheel.library), ok=(0, 255))  # 255: there are none
        # With its suffix: sm_120a runs on 12.0 alone, where sm_120 runs on 12.1 too.
        found[kind] = Counter(re.findall(rf"\.sm_(\w+)\.{kind}", listed))
    code, ptx = set(found["cubin"]), set(found["ptx"])
    reported = set(map(str, wheel.build["cubins"])), set(map(str, wheel.build["ptx"]))  # type: ignore[call-overload]
    if (code, ptx) != reported:
        raise Failed(f"the file has {sorted(code)} and PTX {sorted(ptx)}, _C says {tuple(map(sorted, reported))}")
    if not code:
        return "no CUDA code"
    if len({*found["cubin"].values(), *found["ptx"].values()}) > 1:
        raise Failed(f"not every source is there for every arch: {found}")
    said = f"sm {' '.join(sorted(code, key=int))}, PTX {' '.join(sorted(ptx, key=int))}"
    text = (ROOT / "cmake" / "FastopsCuda.cmake").read_text()
    wanted = re.search(r"RELEASE_ARCHS ([\d ]+)\)", text)[1].split()  # type: ignore[index]
    wanted = [arch for arch in wanted if int(arch) >= 75 or wheel.distribution != "fastops-cu13"]
    if wheel.release and (code != set(wanted) or ptx != {wanted[-1]}):
        raise Failed(f"a release has {wanted} and PTX {wanted[-1]}, this has {said}")
    return said


def code_size(wheel: Wheel) -> str:
    """Check that sm_90 has at most the kernels and bytes of each family that device_code.csv allows."""
    if 90 not in map(int, wheel.build["cubins"]):  # type: ignore[call-overload]
        return "no code of sm_90"
    cubins = wheel.folder / "cubins"
    cubins.mkdir()
    run(cuobjdump(), "--extract-elf", "sm_90.cubin", str(wheel.library), folder=cubins)
    families = device_code.limits()
    found = device_code.sizes(sorted(cubins.glob("*.sm_90.cubin")), families)
    if found["all"].kernels == 0:
        raise Failed("cuobjdump extracted no kernel of sm_90")
    said = "; ".join(f"{limit.family} {found[limit.family]}" for limit in families)
    for limit in families:
        size = found[limit.family]
        if size.kernels > limit.kernels or size.bytes > limit.megabytes * 1e6:
            raise Failed(f"{limit.family} may have {limit.kernels} kernels, {limit.megabytes} MB: {said}")
    return said


def waits(wheel: Wheel) -> str:
    """Every kernel that may be launched early waits for those before it, in its machine code (cuda/dependent.cuh)."""
    archs = sorted(int(arch) for arch in map(str, wheel.build["cubins"]) if int(arch) >= 90)  # type: ignore[call-overload]
    counts = []
    for arch in archs:
        command = [cuobjdump(), "--gpu-architecture", f"sm_{arch}", "--dump-sass", str(wheel.library)]
        found = 0
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout
            for kernel, code in machine_code.kernels(process.stdout):
                found += 1
                if said := machine_code.wrong(kernel, code):
                    process.kill()
                    raise Failed(f"sm_{arch}: {said}")
        if process.returncode or not found:
            raise Failed(f"cuobjdump read {found} kernels of sm_{arch} and ended with {process.returncode}")
        counts.append(f"{found} of sm {arch}")
    return f"{', '.join(counts)}" if counts else "no kernel is launched early"


def levels(wheel: Wheel) -> str:
    """CPU kernels for every level of the architecture."""
    machine = "x86_64" if all(tag.platform.endswith("x86_64") for tag in wheel.tags) else "aarch64"
    if wheel.build["isa_levels"] != ISA_LEVELS[machine]:
        raise Failed(f"{machine} has {ISA_LEVELS[machine]}, got {wheel.build['isa_levels']}")
    return ", ".join(ISA_LEVELS[machine])


def paths(wheel: Wheel) -> str:
    """No folder of the build machine in the binaries."""
    if found := {path for binary in wheel.binaries for path in FOLDER.findall(binary.read_bytes())}:
        raise Failed(", ".join(sorted(path.decode() for path in found)[:5]))
    return "none"


GATES = (
    *(name, tag, metadata, twine, contents, record, size, sbom),
    *(needed, symbols, libc, python_abi, torch_abi, levels, archs, code_size, waits, paths),
)


def run(*command: str, ok: tuple[int, ...] = (0,), folder: Path | None = None) -> str:
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if result.returncode not in ok:
        raise Failed(f"{Path(command[0]).name} ended with {result.returncode}: {result.stdout}{result.stderr}".strip())
    return result.stdout


def cuobjdump() -> str:
    """NVIDIA's own reader, from its package on PyPI or from a CUDA toolkit."""
    for file in sorted(Path(sysconfig.get_path("platlib")).glob("nvidia/*/bin/cuobjdump")):
        for tool in (file, file.with_name("nvdisasm")):
            if tool.exists():
                tool.chmod(0o755)  # the packages leave it without
        return str(file)
    if found := shutil.which("cuobjdump"):
        return found
    raise Failed("cuobjdump is missing: pip install nvidia-cuda-cuobjdump")
