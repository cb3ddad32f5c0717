"""The picture for a terminal: frames of box characters, a character for each CPU, bars to scale.

It needs no colour: a cell has the tag of the pod that has it, or a character that the key explains.
"""

from __future__ import annotations

from itertools import groupby
from typing import Final

from topowise.text import Line, Styled, rendered
from topowise_scheduler.explain.picture.contents import Picture
from topowise_scheduler.explain.picture.layout import lay_out
from topowise_scheduler.explain.picture.measures import Face, characters
from topowise_scheduler.explain.picture.scene import Box, Style, Text

_CELLS: Final = Face("cells", 1, 1)
_FILLED: Final = ("cpu", "share", "swatch")
_FRAMED: Final = ("zone", "socket")

# A character for every fill but a pod's: as Unicode, and as ASCII.
_GLYPHS: Final = {
    "free": "·.",
    "shared": "░:",
    "reserved": "▓#",
    "hugepages": "▒%",
    "joint": "◆+",
    "exclusive": "■@",
    "offline": "×-",
    "unhealthy": "‼!",
}
_REST_OF_SHARE: Final = "━="
_EDGES: Final = (("╭", "╮", "╰", "╯", "─", "│"), ("+", "+", "+", "+", "-", "|"))

# The nearest of the 256 colours to the fills of the SVG (svg.py).
_OWNERS: Final = (110, 209, 222, 72, 217, 117, 149, 142)
_DIM: Final = "2"
_STYLES: Final[dict[Style, str]] = {
    "node": "1",
    "heading": "1",
    "about": _DIM,
    "note": _DIM,
    "id": _DIM,
    "aside": "95",
}
_STATES: Final = {"free": _DIM, "unhealthy": "91", "joint": "95"}


class _Grid:
    """Rows of characters, each with the SGR codes it is written in."""

    def __init__(self, width: int, height: int) -> None:
        self.rows = [[(" ", "")] * width for _ in range(height)]

    def put(self, x: int, y: int, text: str, code: str = "") -> None:
        for character in text:
            width = _CELLS.width(character)
            if width:
                self.rows[y][x] = (character, code)
                if width == 2:
                    self.rows[y][x + 1] = ("", code)
            elif x:
                # A combining mark belongs to the character before it.
                base, its_code = self.rows[y][x - 1]
                self.rows[y][x - 1] = (base + character, its_code)
            x += width


def terminal(picture: Picture, *, width: int = 100, ascii_only: bool = False, colour: bool = False) -> str:
    """The text of `lines`."""
    return rendered(lines(picture, width=width, ascii_only=ascii_only, colour=colour))


def lines(picture: Picture, *, width: int = 100, ascii_only: bool = False, colour: bool = False) -> list[Line]:
    """Lines of at most `width` columns (at least measures.MIN_COLUMNS)."""
    canvas = lay_out(picture, characters(width, ascii_only=ascii_only))
    grid = _Grid(canvas.width, canvas.height)
    _draw(grid, canvas, int(ascii_only), " " if colour else _REST_OF_SHARE[ascii_only])
    text_lines = [_line(row, colour=colour) for row in grid.rows]
    while text_lines and not text_lines[-1]:
        text_lines.pop()
    return text_lines


def _draw(grid: _Grid, box: Box, charset: int, rest: str) -> None:
    """`rest` is what follows the tag in a pod's part of a bar."""
    if box.kind in _FRAMED:
        _frame(grid, box, _EDGES[charset])
    if box.kind in _FILLED:
        _fill(grid, box, _GLYPHS[box.state][charset] if box.owner is None else rest)
    for text in box.texts:
        on_edge = box.kind in _FRAMED and text.y == box.y
        _write(grid, box, text, on_edge=on_edge)
    for inner in box.boxes:
        _draw(grid, inner, charset, rest)


def _frame(grid: _Grid, box: Box, edges: tuple[str, ...]) -> None:
    upper_left, upper_right, lower_left, lower_right, across, down = edges
    inner = across * (box.width - 2)
    grid.put(box.x, box.y, upper_left + inner + upper_right, _DIM)
    grid.put(box.x, box.bottom - 1, lower_left + inner + lower_right, _DIM)
    for y in range(box.y + 1, box.bottom - 1):
        grid.put(box.x, y, down, _DIM)
        grid.put(box.right - 1, y, down, _DIM)


def _fill(grid: _Grid, box: Box, glyph: str) -> None:
    for y in range(box.y, box.bottom):
        grid.put(box.x, y, glyph * box.width, _code(box))


def _write(grid: _Grid, box: Box, text: Text, *, on_edge: bool) -> None:
    width = _CELLS.width(text.text)
    x = text.x - {"start": 0, "middle": width // 2, "end": width}[text.anchor]
    code = _code(box) if box.kind in _FILLED else _STYLES.get(text.style, "")
    if on_edge:
        grid.put(x - 1, text.y, " " * (width + 2))
    grid.put(x, text.y, text.text, code)


def _code(box: Box) -> str:
    if box.owner is None:
        return _STATES.get(box.state, "")
    return f"30;48;5;{_OWNERS[box.owner % len(_OWNERS)]}"


def _line(row: list[tuple[str, str]], *, colour: bool) -> Line:
    """The characters without trailing blanks; in colour, a part for each run of a style."""
    if not colour:
        return "".join(character for character, _ in row).rstrip()
    length = max((at + 1 for at, cell in enumerate(row) if cell != (" ", "")), default=0)
    return [
        Styled("".join(character for character, _ in run), code)
        for code, run in groupby(row[:length], lambda cell: cell[1])
    ]
