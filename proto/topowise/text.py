"""Escapes text for people: characters that a reader cannot see are escaped, and a line stays a single line.

Names, labels and messages of a cluster appear in terminals, logs, metrics and events. A control character moves a
cursor or starts a line, a format character reverses the direction of the text around it. So style is no part of a text:
a `Styled` carries the style beside the text, and only `rendered` writes escape sequences to a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

# Letters and marks that Unicode counts as printable although no font shows them.
_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
# Only text with such a character is checked character by character.
_SUSPECT: Final = re.compile(r"[^ -~]")
_UID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


class Styled(NamedTuple):
    """A part of a line with its own SGR parameters, such as "1" for bold."""

    text: str
    code: str


Line = str | Sequence[str | Styled]
"""A line of output, without its line end."""


def escaped(text: str, *, keep: str = "", ascii_only: bool = False, backslash: str = "\\") -> str:
    """The text with control, format and other invisible characters as escapes such as `\\x1b` and `\\u202e`.

    `keep` are control characters that stay. `ascii_only` escapes all characters beyond ASCII. `backslash` starts an
    escape; a format that has escapes itself needs two backslashes.
    """
    if not _SUSPECT.search(text):
        return text
    return "".join(
        character
        if character in keep or (_is_visible(character) and (character.isascii() or not ascii_only))
        else backslash + _escape(character)
        for character in text
    )


def escaped_json(document: str) -> str:
    """Returns a JSON document of the same value, with invisible characters in strings as `\\u` escapes."""
    return _SUSPECT.sub(_json_escape, document)


def escaped_json_bytes(document: bytes) -> bytes:
    """Same as `escaped_json`; the same bytes if there is nothing to escape."""
    if document.isascii() and b"\x7f" not in document:
        # JSON encoders escape all other control characters.
        return document
    return escaped_json(document.decode()).encode()


def rendered(lines: Iterable[Line]) -> str:
    """Returns lines for a terminal: the text is escaped, including line ends, and the styles are SGR sequences."""
    return "".join(f"{_rendered(line)}\n" for line in lines)


def _rendered(line: Line) -> str:
    if isinstance(line, str):
        return escaped(line)
    parts = [part if isinstance(part, Styled) else Styled(part, "") for part in line]
    return "".join(
        f"\x1b[{part.code}m{escaped(part.text)}\x1b[0m" if part.code and part.text else escaped(part.text)
        for part in parts
    )


def _is_visible(character: str) -> bool:
    return character.isprintable() and character not in _BLANK


def _escape(character: str) -> str:
    number = ord(character)
    return f"x{number:02x}" if number < 0x100 else f"u{number:04x}" if number < 0x10000 else f"U{number:08x}"


def _json_escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in "\n\t" or _is_visible(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def without_uids(text: str) -> str:
    """Redacts UIDs: a UID authorises a bind."""
    return _UID.sub("(uid)", text)
