"""Which norm classes of transformers ``fastops.patch`` swaps, by form, and which it leaves, by reason.

``python tools/census`` is about the transformers of the Python that runs it: for another version, a virtual environment
that has that and fastops. It imports every model's file, and takes half a minute.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "patching"))

import transformers
from norm_classes import census, packages


def main() -> None:
    rows = census(packages())
    swapped = [row for row in rows if row.swapped]
    print(f"transformers {transformers.__version__}: {len(rows)} norm classes that need one size and one tensor")
    print(f"{len(swapped)} swapped, at most {max(row.error for row in swapped):.2g} off in float32, ", end="")
    print(f"{max(row.ulp for row in swapped):.2g} ulp in bfloat16")
    for form, count in Counter(row.swapped for row in swapped).most_common():
        print(f"  {count:4} {form}")
    print(f"{len(rows) - len(swapped)} left")
    for row in rows:
        if row.left:
            print(f"  {row.name}: {row.left}")


if __name__ == "__main__":
    main()
