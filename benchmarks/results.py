"""Measures on a GPU what a card's CSV file in results/ is to have, a raw JSON file a command, or lists the commands."""

from __future__ import annotations

import argparse
import fnmatch
import os
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

ELEMENTWISE = ("square", "relu", "sigmoid", "axpby")
NORMS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
KINDS = {"norms": NORMS, "elementwise": ELEMENTWISE}
ODD = ",".join(f"{rows}x{n}" for rows in (1, 37, 1000, 65537) for n in (192, 769, 1500, 5000, 12288))
LINEAR = "16x160x384,16x1024,64x1024,512x1024,4096x1024,4096x256x1024"


@dataclass(frozen=True)
class Bench:
    """A run of ``fastops.bench``."""

    ops: tuple[str, ...]
    measure: str = "call"
    dtypes: tuple[str, ...] = ()
    shapes: str = ""
    peers: str = ""

    def arguments(self) -> list[str]:
        words = ["-m", "fastops.bench", "--device", "cuda", "--measure", self.measure]
        many = (("--op", self.ops), ("--dtype", self.dtypes))
        words += [word for option, values in many for value in values for word in (option, value)]
        for option, value in (("--shapes", self.shapes), ("--peers", self.peers)):
            words += [option, value] if value else []
        return words

    def compiling(self) -> list[Bench]:
        """What leaves torch.compile's work for its calls behind, an op each, but for the small ones of ``host``."""
        return [replace(self, ops=(op,), measure="call", peers="compile") for op in self.ops]


BENCHES = {
    "bench-norms-bf16": Bench(NORMS, "call,host"),
    "bench-elementwise-bf16": Bench((*ELEMENTWISE, "linear"), "call,host"),
    **{f"bench-{kind}-{dtype}": Bench(ops, dtypes=(dtype,)) for kind, ops in KINDS.items() for dtype in ("f32", "f16")},
    **{
        f"bench-{kind}-odd-{dtype}": Bench(ops, dtypes=(dtype,), shapes=ODD)
        for kind, ops in KINDS.items()
        for dtype in ("bf16", "f32", "f16")
    },
    "bench-linear": Bench(("linear",), dtypes=("f32", "bf16", "f16"), shapes=LINEAR),
    "bench-head": Bench(("linear_cross_entropy",)),
    "bench-blocks": Bench(("swiglu", "geglu", "reglu", "glu", "rope", "qk_norm_rope"), dtypes=("bf16",)),
    "bench-lltm": Bench(("lltm",), "call,host", shapes="4096x1024,16384x1024"),
    "bench-lltm-small": Bench(("lltm",), "call,host", dtypes=("f32", "bf16"), shapes="16x32x128,16x128"),
    **{
        f"bench-first-{op}": Bench((op,), "first", peers="eager,compile")
        for op in ("layer_norm", "rms_norm", "relu", "linear", "lltm")
    },
}
COMMANDS = {name: bench.arguments() for name, bench in BENCHES.items()}
COMMANDS["kit"] = [os.path.relpath(Path(__file__).with_name("kit.py"))]


def is_recorded(name: str) -> bool:
    """Whether a card's CSV file has the command's measurements: the odd grids would double it, and are not quoted."""
    return name in BENCHES and "-odd-" not in name


def written_to(name: str, folder: Path, csv: Path | None) -> list[str]:
    words = ["--json", str(folder / f"{name}.json")]
    return [*words, "--csv", str(csv)] if csv and is_recorded(name) else words


def run(args: list[str], log: Path) -> tuple[int, float]:
    """Exit status and seconds."""
    start = time.perf_counter()
    with log.open("w") as output:
        command = [sys.executable, *args]
        status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    return status, time.perf_counter() - start


def fill_caches(names: list[str], processes: int, scratch: Path) -> None:
    benches = [BENCHES[name] for name in names if name in BENCHES and BENCHES[name].measure != "first"]

    def fill(number: int, part: Bench) -> None:
        log = scratch / f"warm-{number}.txt"
        if run(part.arguments(), log)[0]:
            print(log.read_text()[-500:], flush=True)

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(fill, count(), chain.from_iterable(bench.compiling() for bench in benches)))


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folder", nargs="?", type=Path, help="where the JSON files go; none: print the commands")
    p.add_argument("--csv", type=Path, metavar="FILE", help="the card's, such as benchmarks/results/h200.csv")
    p.add_argument("--only", action="append", metavar="PATTERN", help='names such as "bench-*-odd-*"; may be repeated')
    p.add_argument(
        "--warm", type=int, default=0, metavar="N", help="fill the cache of torch.compile before, N processes at a time"
    )
    options = p.parse_args()
    chosen = [name for name in COMMANDS if any(fnmatch.fnmatchcase(name, pattern) for pattern in options.only or ["*"])]
    if options.folder is None:
        for name in chosen:
            print(shlex.join(["python", *COMMANDS[name], *written_to(name, Path(), options.csv)]))
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(scratch / "inductor"))
        if options.warm:
            start = time.perf_counter()
            fill_caches(chosen, options.warm, scratch)
            print(f"torch.compile's cache: {time.perf_counter() - start:.0f} s", flush=True)
        failed = 0
        for name in chosen:
            log = scratch / f"{name}.txt"
            status, seconds = run([*COMMANDS[name], *written_to(name, options.folder, options.csv)], log)
            failed += status != 0
            print(f"{name}: {'made' if status == 0 else f'exit status {status}'} in {seconds:.0f} s", flush=True)
            if status:
                print(log.read_text()[-2000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
