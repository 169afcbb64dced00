"""Writes docs/performance.md and its pictures from benchmarks/results/*.csv: ``make performance``."""

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
