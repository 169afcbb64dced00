"""Runs every kernel on the GPU over sizes and dtypes, and nothing of anyone else's, for compute-sanitizer to watch::

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 python tools/sanitize.py
    compute-sanitizer --tool racecheck --error-exitcode 1 python tools/sanitize.py
    compute-sanitizer --tool initcheck --error-exitcode 1 python tools/sanitize.py

Names of ops behind it choose them. No GEMMs: racecheck has been seen to fail inside cuBLAS. It reports hazards in
torch's own reductions, which make inputs here. Values are the selftest's affair.
"""

from __future__ import annotations

import sys

import torch

from fastops.cases import CASES, Make, misaligned

# Rows shared by a block's warps, blocks that walk over several rows; columns below and above each kernel's reach,
# of whole words and not.
SIZES = (
    (1, 1),
    (3, 7),
    (5, 64),
    (1100, 40),
    (37, 769),
    (9, 1024),
    (2000, 136),
    (5, 4097),
    (3, 8192),
    (41, 61),
    (9, 101),
    (7, 203),
    (5, 403),
    (5, 701),
    (5, 1500),
    (5, 1501),
    (5000, 61),
    (3001, 201),
    (2200, 769),
    (3, 16392),
    (3, 16391),
    (300, 5000),
    (70, 40000),
    (20, 131072),
    (3, 131080),
)


def main() -> int:
    if not torch.cuda.is_available():
        print("needs a CUDA GPU", file=sys.stderr)
        return 2
    calls = 0
    cases = [case for case in CASES if case.name in sys.argv[1:] or len(sys.argv) == 1]
    for case in cases:
        for dtype in case.dtypes:
            for rows, n in SIZES:
                for call in case.raw(Make("cuda", dtype), rows, n):
                    shifted = tuple(misaligned(x) if isinstance(x, torch.Tensor) else x for x in call.args)
                    for variant in (call, call.with_args(shifted)):
                        variant()
                        calls += 1

    torch.cuda.synchronize()
    print(f"{calls} calls of {len(cases)} ops on {torch.cuda.get_device_name()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
