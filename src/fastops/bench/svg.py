"""What the pictures share: their head, text, and a colour an implementation."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

# One colour an implementation in every picture, told apart by colour-blind eyes too (Okabe and Ito); two that are in no
# picture together may share one.
_COLOURS = {
    "fastops": "#D55E00",
    "fastops save=none": "#943F00",
    "fastops+compile": "#943F00",
    "eager": "#000000",
    "eager f32": "#777777",
    "compile": "#0072B2",
    "torch chunked": "#56B4E9",
    "liger": "#009E73",
    "quack": "#CC79A7",
    "cut_cross_entropy": "#E69F00",
    "apex": "#E69F00",
    "flash_attn": "#56B4E9",
}
_OTHER = "#999"
_STYLE = "text{font:11px sans-serif}path{fill:none;stroke-width:2}.grid{stroke:#ddd;stroke-width:1}"


def colour(name: str) -> str:
    return _COLOURS.get(name, _OTHER)


def place(name: str) -> tuple[int, str]:
    """To sort by."""
    order = list(_COLOURS)
    return (order.index(name) if name in order else len(order)), name


def picture(width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    style = f'<style>{_STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>'
    return "\n".join([head, style, *parts, "</svg>", ""])


def text(x: float, y: float, content: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'
