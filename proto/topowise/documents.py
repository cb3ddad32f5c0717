"""Parses YAML and JSON from outside, within limits.

Two kinds of short YAML text are dangerous. libyaml builds collections recursively in C, so some thousands of opening
brackets crash the process with a segmentation fault. And aliases of aliases expand to a billion nodes in ten lines. So
the parser's events, which need no recursion, are counted before anything is built.

Scalars are those of Kubernetes, which converts YAML to JSON before it decodes it (sigs.k8s.io/yaml): timestamps stay
texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec
import yaml

from topowise.errors import ParseError, TopowiseError
from topowise.text import escaped, escaped_json

Decoded = TypeVar("Decoded")

# No Kubernetes object is a third as deep. The API server's limit for custom resources is higher only in theory.
MAX_DEPTH: Final = 64
# Nodes with every alias expanded: a list of 5,000 pods has a million.
MAX_NODES: Final = 1 << 21
# Limit of the growth by aliases, as in go-yaml.
_MAX_GROWTH: Final = 10
_FEW_NODES: Final = 10_000
# PyYAML converts the digits of a number in quadratic time.
_MAX_NUMBER: Final = 400
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


_Dumper: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Exceptions of a msgspec JSON decoder for foreign bytes: deep nesting is not a DecodeError."""


def decoded(decode: Callable[[bytes], Decoded], text: str, what: str, expected: str) -> Decoded:
    """Returns the decoded JSON of an attribute. Raises ParseError."""
    try:
        return decode(text.encode())
    except UNREADABLE as exc:
        raise ParseError(what, text, expected) from exc


class DocumentError(TopowiseError, ValueError):
    """The text is not YAML, or exceeds a limit; the message is one line without the name of its source."""


def load(text: bytes | str) -> Any:
    """Returns the only document of a text, None for empty text; null documents do not count. Raises DocumentError."""
    documents = [document for document in load_all(text) if document is not None]
    if len(documents) > 1:
        raise DocumentError(f"has {len(documents)} documents, expected one")
    return documents[0] if documents else None


def load_all(text: bytes | str) -> list[Any]:
    """Returns the documents of a text in order, including null documents. Raises DocumentError."""
    if (text.lstrip()[:1] in (b"{", "{")) and (document := _json(text)) is not None:
        return [document]
    try:
        _check(text)
        return list(yaml.load_all(text, _Loader))
    # PyYAML raises ValueError and similar errors for a scalar that does not fit its tag, and for control characters.
    except (yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as exc:
        raise DocumentError(" ".join(str(exc).split()) or type(exc).__name__) from exc


def to_text(document: Any, form: str) -> str:
    """Formats a document as YAML if `form` is "yaml", else as JSON. Invisible characters are escaped."""
    if form != "yaml":
        return escaped_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode()) + "\n"
    text = msgspec.yaml.encode(document).decode()
    if escaped(text, keep="\n") == text:
        return text
    # PyYAML escapes either all characters beyond ASCII or none.
    return str(yaml.dump(msgspec.to_builtins(document), Dumper=_Dumper, sort_keys=False, allow_unicode=False))


def is_json(text: bytes | str) -> bool:
    """Returns whether a text is JSON."""
    return _json(text) is not None


def repeated_key(text: bytes | str) -> str:
    """Returns a key that a mapping has twice, else "". A loader silently keeps only the last value of such a key."""
    try:
        nodes: list[yaml.Node] = list(yaml.compose_all(text, _Loader))
    except yaml.YAMLError:
        # JSON with tabs, for example: written by a program.
        return ""
    seen: set[int] = set()
    while nodes:
        node = nodes.pop()
        # PyYAML composes an alias to the node object that it names.
        if not isinstance(node, yaml.CollectionNode) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if repeated := next((key for key, count in keys.items() if count > 1), ""):
                return str(repeated)
            nodes += [value for _, value in node.value]
        else:
            nodes += node.value
    return ""


def _json(text: bytes | str) -> Any:
    """Returns the value of a JSON text, None for other text: a flow mapping of YAML begins with the same bracket."""
    try:
        value = msgspec.json.decode(text)
    except UNREADABLE:
        return None
    return None if _is_deep(value) else value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for member in level if isinstance(member, dict | list) for inner in _members(member)]
        if not level:
            return False
    return True


def _members(value: dict[Any, Any] | list[Any]) -> Iterator[Any]:
    return (
        member for member in (value.values() if isinstance(value, dict) else value) if isinstance(member, dict | list)
    )


def _check(text: bytes | str) -> None:
    """Raises DocumentError for a text over the limits, and PyYAML's errors for text that is not YAML."""
    counter = _Counter()
    for event in yaml.parse(text, _Loader):
        counter.take(event)


class _Counter:
    """Counts nodes with every alias expanded."""

    def __init__(self) -> None:
        self._written = 0
        self._expanded = 0
        # (anchor, nodes before it) of each open collection.
        self._open: list[tuple[str | None, int]] = []
        self._sizes: dict[str, int | None] = {}

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._add(1)
            if event.anchor:
                self._sizes[event.anchor] = 1
            if len(event.value) > _MAX_NUMBER and _is_number(event):
                raise DocumentError(f"a number of {len(event.value)} characters, expected up to {_MAX_NUMBER}")
            if event.tag and not event.tag.startswith("tag:yaml.org,2002:"):
                raise DocumentError(f"tag {event.tag!r:.80}, expected none")
        elif isinstance(event, yaml.AliasEvent):
            size = self._sizes.get(event.anchor or "", 1)
            if size is None:
                raise DocumentError(f"alias {event.anchor!r:.80} within what it names")
            self._add(size)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._expanded))
            if event.anchor:
                self._sizes[event.anchor] = None
            if len(self._open) > MAX_DEPTH:
                raise DocumentError(f"nested deeper than {MAX_DEPTH} levels")
            self._add(1)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._open.pop()
            if anchor:
                self._sizes[anchor] = self._expanded - before

    def _add(self, nodes: int) -> None:
        self._written += 1
        self._expanded += nodes
        most = min(MAX_NODES, max(_FEW_NODES, _MAX_GROWTH * self._written))
        if self._expanded > most:
            raise DocumentError(f"more than {most} values, with aliases written out")


def _is_number(event: yaml.ScalarEvent) -> bool:
    """Whether PyYAML would convert the scalar to a number. "0,2,4" stays text, however long the list of CPUs is."""
    if event.tag in _NUMBERS:
        return True
    resolvers = _Loader.yaml_implicit_resolvers.get(event.value[0], ()) if event.implicit[0] else ()
    return any(tag in _NUMBERS and pattern.match(event.value) for tag, pattern in resolvers)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader with the scalars of sigs.k8s.io/yaml (go-yaml v2, resolve.go): `y` is true, 1e3 a number, 1:30 a
    text. A float without a fraction becomes an integer, as in the JSON that sigs.k8s.io/yaml makes of it."""


def _bool(_: _Loader, node: yaml.ScalarNode) -> bool:
    return str(node.value).lower() in ("y", "yes", "true", "on")


def _number(_: _Loader, node: yaml.ScalarNode) -> int | float:
    text = str(node.value).replace("_", "")
    octal = _OCTAL.fullmatch(text)
    try:
        number = int(octal[1] + octal[2], 8) if octal else int(text, 0)
    except ValueError:
        decimal = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        return int(decimal) if decimal.is_integer() and abs(decimal) < _MOST_WRITTEN_OUT else decimal
    return number


_OCTAL: Final = re.compile(r"([-+]?)0o?([0-7]+)", re.IGNORECASE)
_MOST_WRITTEN_OUT: Final = 1e21
_DIGITS: Final = "-+0123456789"
_BOOL_WORDS: Final = ("y", "yes", "true", "on", "n", "no", "false", "off")
_SCALARS: Final = (
    ("bool", "|".join(form for word in _BOOL_WORDS for form in dict.fromkeys((word, word.title(), word.upper()))),
     "yYtToOnNfF"),
    ("int", r"[-+]?(?:0[bB][01_]+|0[oO]?[0-7_]+|0[xX][0-9a-fA-F_]+|0|[1-9][0-9_]*)", _DIGITS),
    ("float",
     r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
     _DIGITS + "."),
)  # fmt: skip
_Loader.yaml_implicit_resolvers = {
    first: kept
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    if (kept := [pair for pair in resolvers if pair[0].rpartition(":")[2] in ("null", "merge")])
}
for _kind, _pattern, _firsts in _SCALARS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})$"), list(_firsts))
_Loader.add_constructor("tag:yaml.org,2002:bool", _bool)
_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)
