"""The picture as an SVG document without external resources.

It follows hwloc's lstopo (utils/lstopo/lstopo-svg.c): rectangles and texts with a class for each kind, and a style
sheet, which follows the viewer's light or dark scheme. The style sheet has plain rules and no variables, because only
browsers support variables.

Pods have the eight fills of Paul Tol's "light" scheme, made for black text on them and told apart by colour-blind
people (https://sronpersonalpages.nl/~pault/, SRON/EPS/TN/09-002); after eight pods a texture is laid over them. No
colour stands alone: every fill of a pod carries its tag, and all else has a texture or an outline of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape, quoteattr

import msgspec

from topowise.text import escaped
from topowise_scheduler.explain.picture.contents import Picture
from topowise_scheduler.explain.picture.layout import lay_out
from topowise_scheduler.explain.picture.measures import PIXELS
from topowise_scheduler.explain.picture.scene import Box, Kind, Text

TEXTURES: Final = ("", "rising", "dots", "mesh")
"""Over the colours of the first eight pods, the second eight, and so on."""
_ROOT: Final = "topowise"
_CORNERS: Final[dict[Kind, int]] = {"socket": 10, "zone": 8, "panel": 8, "cache": 5, "core": 4, "device": 4}
_SMALL_CORNER: Final = 2
_GROUPED: Final = ("socket", "zone", "panel")
_STATE_TEXTURES: Final = {"reserved": "falling", "hugepages": "upright", "joint": "falling", "unhealthy": "crossed"}
_CROSSED: Final = '<path d="M-1 1l2-2M0 6l6-6M5 7l2-2M-1 5l2 2M0 0l6 6M5-1l2 2"/>'
_PATTERNS: Final = {
    "rising": '<path d="M-1 1l2-2M0 6l6-6M5 7l2-2"/>',
    "falling": '<path d="M-1 5l2 2M0 0l6 6M5-1l2 2"/>',
    "mesh": _CROSSED,
    "upright": '<path d="M1.5 0v6M4.5 0v6"/>',
    "crossed": _CROSSED,
    "dots": '<circle cx="1.5" cy="1.5" r=".9"/><circle cx="4.5" cy="4.5" r=".9"/>',
}
_FAMILIES: Final = {
    "sans": 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif',
    "mono": 'ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono","DejaVu Sans Mono",monospace',
}


class Theme(msgspec.Struct, frozen=True, kw_only=True):
    """A colour scheme. `ink` is the text on the fills of pods."""

    canvas: str
    frame: str
    socket: str
    core: str
    line: str
    text: str
    dim: str
    accent: str
    free: str
    free_line: str
    shared: str
    reserved: str
    hugepages: str
    joint: str
    unknown: str
    bad: str
    bad_line: str
    ink: str
    owners: tuple[str, ...]


LIGHT: Final = Theme(
    canvas="#f4f6f8",
    frame="#ffffff",
    socket="#e9edf1",
    core="#e9edf1",
    line="#d3dae1",
    text="#1c2530",
    dim="#566270",
    accent="#6a3fa0",
    free="#ffffff",
    free_line="#c2cbd5",
    shared="#dfe5eb",
    reserved="#ccd4dc",
    hugepages="#d5dce4",
    joint="#d9cbee",
    unknown="#a9b4bf",
    bad="#fbe1dd",
    bad_line="#c4432b",
    ink="#10161d",
    owners=("#77aadd", "#ee8866", "#eedd88", "#44bb99", "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00"),
)
DARK: Final = Theme(
    canvas="#0f141a",
    frame="#181f27",
    socket="#1f2731",
    core="#27313c",
    line="#313c48",
    text="#e3e9ef",
    dim="#98a5b3",
    accent="#c3a5ec",
    free="#121820",
    free_line="#465362",
    shared="#2d3844",
    reserved="#4a5663",
    hugepages="#3c4855",
    joint="#5c4a7d",
    unknown="#5b6773",
    bad="#4b2420",
    bad_line="#ef8371",
    ink="#10161d",
    owners=("#6592bf", "#cd7558", "#cdbf75", "#3ba184", "#dc92a1", "#84bfdc", "#a1b02c", "#939300"),
)


def svg(picture: Picture) -> str:
    """The whole document."""
    canvas = lay_out(picture, PIXELS)
    label = quoteattr(escaped(canvas.title))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{_ROOT}" width="{canvas.width}" height="{canvas.height}" '
        f'viewBox="0 0 {canvas.width} {canvas.height}" role="img" aria-label={label}>',
        f"<style>\n{_style()}\n</style>",
        "<defs>",
        *(_pattern(name, shapes) for name, shapes in _PATTERNS.items()),
        "</defs>",
        *_drawn(canvas),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _drawn(box: Box) -> Iterator[str]:
    is_group = box.kind in _GROUPED
    if is_group:
        yield "<g>"
    # A bar is an outline around its parts, and only where it has a state.
    if box.kind != "bar":
        yield _rect(box)
        yield from _texture(box)
    for text in box.texts:
        yield _text(text, _colour(box))
    for inner in box.boxes:
        yield from _drawn(inner)
    if box.kind == "bar" and box.state:
        yield _rect(box)
    if is_group:
        yield "</g>"


def _rect(box: Box) -> str:
    classes: list[str] = [box.kind]
    if box.owner is not None:
        classes.append(f"pod{box.owner % len(LIGHT.owners)}")
    elif box.state:
        classes.append(box.state)
    title = f"<title>{escape(escaped(box.title))}</title></rect>" if box.title and box.kind != "canvas" else ""
    return f'<rect class="{" ".join(classes)}"{_geometry(box)}{">" + title if title else "/>"}'


def _texture(box: Box) -> Iterator[str]:
    """A second rectangle with a pattern, through which the pointer sees the first."""
    if box.kind in ("device", "cache"):
        return
    name = _STATE_TEXTURES.get(box.state, "")
    if box.owner is not None:
        name = TEXTURES[box.owner // len(LIGHT.owners) % len(TEXTURES)]
    if name:
        yield f'<rect class="over" fill="url(#{_ROOT}-{name})"{_geometry(box)}/>'


def _geometry(box: Box) -> str:
    corner = _CORNERS.get(box.kind, 0 if box.kind == "canvas" else _SMALL_CORNER)
    place = f' x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
    return f'{place} rx="{corner}"' if corner else place


def _colour(box: Box) -> str:
    """The class of texts on a fill, "" where it is that of the style."""
    if box.owner is not None:
        return " ink"
    return " strong" if box.state in ("reserved", "exclusive") else ""


def _text(text: Text, colour: str) -> str:
    face = PIXELS.faces[text.style]
    # Digits and capitals are some 0.7 of the size high in all fonts; they are what has to look centred.
    baseline = text.y + (10 * face.line + 7 * face.size) // 20
    anchor = "" if text.anchor == "start" else f' text-anchor="{text.anchor}"'
    return f'<text class="{text.style}{colour}" x="{text.x}" y="{baseline}"{anchor}>{escape(text.text)}</text>'


def _pattern(name: str, shapes: str) -> str:
    on = "pod" if name in TEXTURES else "state"
    return (
        f'<pattern id="{_ROOT}-{name}" class="on-{on}" '
        f'width="6" height="6" patternUnits="userSpaceOnUse">{shapes}</pattern>'
    )


def _style() -> str:
    rules = [
        "text{pointer-events:none;white-space:pre}",
        *(
            f".{style}{{font:{'700 ' if face.is_bold else ''}{face.size}px {_FAMILIES[face.family]}}}"
            for style, face in PIXELS.faces.items()
        ),
        ".over{pointer-events:none}",
        ".offline{stroke-dasharray:2 2}",
        *_colours(LIGHT),
    ]
    dark = ["@media (prefers-color-scheme:dark){", *map(_scoped, _colours(DARK)), "}"]
    return "\n".join([*map(_scoped, rules), *dark])


def _scoped(rule: str) -> str:
    """The rule with the selector of the picture: a page may have several pictures."""
    selectors, body = rule.split("{", 1)
    return ",".join(f".{_ROOT} {selector}" for selector in selectors.split(",")) + "{" + body


def _colours(theme: Theme) -> list[str]:
    return [
        f"text{{fill:{theme.text}}}",
        f".about,.aside,.figure,.note,.id{{fill:{theme.dim}}}",
        f".caption,.name{{fill:{theme.text}}}",
        f".aside{{fill:{theme.accent}}}",
        f".ink{{fill:{theme.ink}}}",
        f".strong{{fill:{theme.text}}}",
        f".canvas{{fill:{theme.canvas}}}",
        f".zone,.panel{{fill:{theme.frame};stroke:{theme.line}}}",
        f".socket{{fill:{theme.socket};stroke:{theme.line}}}",
        ".cache,.bar{fill:none}",
        f".joined{{stroke:{theme.accent};stroke-width:1.5;pointer-events:none}}",
        f".framed{{stroke:{theme.free_line}}}",
        f".core{{fill:{theme.core}}}",
        f".cpu,.share,.swatch{{stroke:{theme.core};stroke-width:.75}}",
        f".device{{fill:{theme.frame};stroke:{theme.free_line}}}",
        f".free{{fill:{theme.free};stroke:{theme.free_line}}}",
        f".shared{{fill:{theme.shared}}}",
        f".reserved{{fill:{theme.reserved}}}",
        f".hugepages{{fill:{theme.hugepages}}}",
        f".joint{{fill:{theme.joint}}}",
        f".exclusive{{fill:{theme.unknown}}}",
        f".offline{{fill:none;stroke:{theme.dim}}}",
        f".unhealthy{{fill:{theme.bad};stroke:{theme.bad_line}}}",
        *(f".pod{number}{{fill:{fill}}}" for number, fill in enumerate(theme.owners)),
        ".on-pod,.on-state{fill:none}",
        f".on-pod path{{stroke:{theme.ink};stroke-opacity:.2}}",
        f".on-pod circle{{fill:{theme.ink};fill-opacity:.25}}",
        f".on-state path{{stroke:{theme.text};stroke-opacity:.24}}",
    ]
