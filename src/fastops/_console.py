"""Output of the commands, whatever the terminal's encoding."""

from __future__ import annotations

import sys


def print_anything() -> None:
    """What stdout and stderr cannot encode, such as a path's letters in the C locale, is printed by its number."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
