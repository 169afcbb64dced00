"""Writes from benchmarks/results/*.csv what the docs have of speed: ``make performance``.

That is docs/performance.md, docs/models.md, a part of README.md, and their pictures.
"""

from __future__ import annotations

from pathlib import Path

from page import files

ROOT = Path(__file__).parents[2]


def main() -> None:
    for path, content in files(ROOT).items():
        (ROOT / path).write_text(content, encoding="utf-8")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
