"""Makes the files of results/h200 that the benchmarks write, each by one command, or lists the commands."""

from __future__ import annotations

import argparse
import fnmatch
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ELEMENTWISE = ("square", "relu", "sigmoid", "axpby")
NORMS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
ODD = ",".join(f"{rows}x{n}" for rows in (1, 37, 1000, 65537) for n in (192, 769, 1500, 5000, 12288))


def commands() -> Iterator[tuple[str, list[str]]]:
    """The name of each file, and the arguments of ``python`` that make it but for ``--json``."""

    def bench(measure: str, *args: str, op: str) -> list[str]:
        return ["-m", "fastops.bench", "--device", "cuda", "--op", op, "--measure", measure, *args]

    for op in (*NORMS, *ELEMENTWISE, "linear"):
        yield f"bench-{op}", bench("call,host", op=op)
    yield "bench-lltm", bench("call,host", "--shapes", "4096x1024,16384x1024", op="lltm")
    yield "bench-lltm-small", bench("call,host", "--dtype", "f32", "--dtype", "bf16", "--shapes", "16x128", op="lltm")
    yield "bench-rms_norm-first", bench("first", op="rms_norm")
    for op in (*NORMS, *ELEMENTWISE):
        yield f"bench-{op}-odd-bf16", bench("call", "--shapes", ODD, op=op)
        for dtype in ("f32", "f16"):
            yield f"bench-{op}-{dtype}", bench("call", "--dtype", dtype, op=op)
            yield f"bench-{op}-odd-{dtype}", bench("call", "--dtype", dtype, "--shapes", ODD, op=op)
    yield "kit", [str(Path(__file__).with_name("kit.py"))]


def run(args: list[str], file: Path, log: Path) -> tuple[int, float]:
    """Exit status and seconds."""
    start = time.perf_counter()
    with log.open("w") as output:
        command = [sys.executable, *args, "--json", str(file)]
        status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    return status, time.perf_counter() - start


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("folder", nargs="?", type=Path, help="where the files go; none: print the commands")
    p.add_argument("--only", default="*", metavar="PATTERN", help='names such as "bench-*-odd-*"')
    p.add_argument(
        "--warm", type=int, default=0, metavar="N", help="fill the cache of torch.compile before, N at a time"
    )
    options = p.parse_args()
    chosen = [(name, args) for name, args in commands() if fnmatch.fnmatch(name, options.only)]
    if options.folder is None:
        for name, args in chosen:
            print(f"{shlex.join(['python', *args])} --json {name}.json")
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        if options.warm:
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(scratch) / "inductor"))
            with ThreadPoolExecutor(options.warm) as pool:
                compiled = [(n, a) for n, a in chosen if "first" not in n and n != "kit"]
                list(pool.map(lambda c: run(c[1], Path(scratch, f"{c[0]}.json"), Path(os.devnull)), compiled))
        failed = 0
        for name, args in chosen:
            log = Path(scratch, f"{name}.txt")
            status, seconds = run(args, options.folder / f"{name}.json", log)
            failed += status != 0
            print(f"{name}: {'made' if status == 0 else f'exit status {status}'} in {seconds:.0f} s", flush=True)
            if status:
                print(log.read_text()[-2000:])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
