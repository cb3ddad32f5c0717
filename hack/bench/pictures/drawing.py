"""What all pictures share: the style sheet, text, and axes.

Colours are those of docs/images/architecture.svg, and for data Paul Tol's "light" and "bright" schemes, which
colour-blind people tell apart (https://sronpersonalpages.nl/~pault/); nothing is told by its colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple
from xml.sax.saxutils import escape

_LIGHT: Final = {
    "back": "#ffffff", "panel": "#f3f5f8", "grid": "#dbe1e8", "text": "#1d2430", "soft": "#566071",
    "d0": "#1f5fb4", "d1": "#77aadd", "d2": "#228833", "d3": "#bbcc33", "d4": "#aa4499", "d5": "#ffaabb",
    "d6": "#ccbb44", "d7": "#ee8866", "d8": "#b0413e",
}  # fmt: skip
_DARK: Final = {
    "back": "#0f141b", "panel": "#19212b", "grid": "#303b49", "text": "#e8edf4", "soft": "#aab5c4",
    "d0": "#6aa5f0", "d1": "#39608f", "d2": "#4bb56a", "d3": "#a1b02c", "d4": "#c973bb", "d5": "#dc92a1",
    "d6": "#cdbf75", "d7": "#cd7558", "d8": "#e0645f",
}  # fmt: skip
_FONTS: Final = 'system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif'
_RULES: Final = """text { fill: var(--text); }
    .back { fill: var(--back); }
    .panel { fill: var(--panel); }
    .grid { stroke: var(--grid); }
    .title { font-size: 17px; font-weight: 600; }
    .name { font-size: 14px; font-weight: 600; }
    .label { font-size: 13px; }
    .soft { font-size: 12.5px; fill: var(--soft); }
    .small { font-size: 11px; }
    .whisker { stroke: var(--text); stroke-width: 1.2; fill: none; }
    .hatch { stroke: var(--back); stroke-width: 2; }
    .line { fill: none; stroke-width: 2; }
    .dashed { fill: none; stroke-width: 1.6; stroke-dasharray: 5 4; }"""

Anchor = Literal["start", "middle", "end"]


class Frame(NamedTuple):
    """The rectangle that data are drawn in."""

    x: float
    y: float
    width: float
    height: float


class Axis(NamedTuple):
    """From values to pixels; `is_log` by powers of ten."""

    low: float
    high: float
    start: float
    length: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """The pixel."""
        low, high, value = (math.log10(one) if self.is_log else one for one in (self.low, self.high, value))
        return self.start + self.length * (value - low) / (high - low)


def document(width: int, height: int, title: str, description: str, parts: Iterable[str]) -> str:
    """The whole picture; `description` is for those who do not see it."""
    light, dark = (" ".join(f"--{name}:{value};" for name, value in one.items()) for one in (_LIGHT, _DARK))
    data = [name for name in _LIGHT if name.startswith("d")]
    fills = " ".join(f".{name} {{ fill: var(--{name}); }}" for name in data)
    strokes = " ".join(f".s{name[1:]} {{ stroke: var(--{name}); }}" for name in data)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
            ' aria-labelledby="title desc">',
            f'  <title id="title">{escape(title)}</title>',
            f'  <desc id="desc">{escape(description)}</desc>',
            "  <style>",
            f"    svg {{ {light} }}",
            f"    @media (prefers-color-scheme: dark) {{\n      svg {{ {dark} }}\n    }}",
            f"    text {{ font-family: {_FONTS}; }}",
            f"    {_RULES}",
            f"    {fills}",
            f"    {strokes}",
            "  </style>",
            '  <defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse">'
            '<path class="hatch" d="M-1 1l2-2M0 6l6-6M5 7l2-2"/></pattern></defs>',
            f'  <rect class="back" width="{width}" height="{height}" rx="12"/>',
            *(f"  {part}" for part in parts),
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "label", anchor: Anchor = "start") -> str:
    """One line of words; `y` is their baseline."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def box(frame: Frame, kind: str, radius: float = 0) -> str:
    """A filled rectangle."""
    x, y, width, height = frame
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}"/>'


def hatched(frame: Frame) -> str:
    """Stripes over a rectangle."""
    x, y, width, height = frame
    return f'<rect fill="url(#hatch)" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def path(points: Sequence[tuple[float, float]], kind: str) -> str:
    """Straight lines from point to point."""
    return f'<path class="{kind}" d="M{" ".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def marker(x: float, y: float, form: int, kind: str) -> str:
    """A dot, square, triangle or diamond."""
    if form == 0:
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    corners = (
        ((-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)),
        ((0, -4.6), (4.4, 3.4), (-4.4, 3.4)),
        ((0, -5), (5, 0), (0, 5), (-5, 0)),
    )[form - 1]
    return f'<path class="{kind}" d="M{" ".join(f"{x + a:.1f} {y + b:.1f}" for a, b in corners)}z"/>'


def scale_left(frame: Frame, axis: Axis, ticks: Iterable[float], unit: str = "") -> list[str]:
    """A line across for each tick, and its value on the left."""
    parts = []
    for tick in ticks:
        y = axis.at(tick)
        parts.append(f'<path class="grid" d="M{frame.x:.1f} {y:.1f}h{frame.width:.1f}"/>')
        parts.append(text(frame.x - 8, y + 4, f"{tick:,g}{unit}", "soft", "end"))
    return parts


def scale_below(frame: Frame, axis: Axis, ticks: Iterable[float]) -> list[str]:
    """A short line down for each tick, and its value."""
    below = frame.y + frame.height
    parts = []
    for tick in ticks:
        x = axis.at(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} {below:.1f}v5"/>')
        parts.append(text(x, below + 19, f"{tick:,g}", "soft", "middle"))
    return parts
