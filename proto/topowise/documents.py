"""YAML and JSON from outside, within bounds.

Two things make a short YAML text dangerous. libyaml builds collections by recursion in C, so some thousands of opening
brackets end the whole process with a segmentation fault, which nothing catches. And aliases of aliases name a billion
nodes in ten lines. So the parser's events, which come without recursion, are counted before anything is built.

Times stay texts, as they do in Kubernetes, which makes JSON of YAML before it looks at it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import yaml

from topowise.errors import TopowiseError
from topowise.text import escaped, escaped_json

# No object of Kubernetes is a third as deep; the API server's own limit for custom resources is higher only in theory.
MAX_DEPTH: Final = 64
# With every alias written out: a list of 5,000 pods has a million.
MAX_NODES: Final = 1 << 21
# Written out, aliases may make so many times the text they come in, as in go-yaml.
_MAX_GROWTH: Final = 10
_FEW_NODES: Final = 10_000
# PyYAML's way from the digits of a number to an int takes the square of their count.
_MAX_NUMBER: Final = 400
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


_Dumper: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What a msgspec decoder of JSON raises for bytes from outside: deep nesting is no DecodeError."""


class DocumentError(TopowiseError, ValueError):
    """A text that is no YAML, or more than we are ready to read; one line without the name of its source."""


def load(text: bytes | str) -> Any:
    """The only document of a text, None for an empty one; null ones do not count. Raises DocumentError."""
    documents = [document for document in load_all(text) if document is not None]
    if len(documents) > 1:
        raise DocumentError(f"has {len(documents)} documents, expected one")
    return documents[0] if documents else None


def load_all(text: bytes | str) -> list[Any]:
    """The documents of a text in its order, null ones included. Raises DocumentError."""
    if (text.lstrip()[:1] in (b"{", "{")) and (found := _json(text)) is not None:
        return [found]
    try:
        _check(text)
        return list(yaml.load_all(text, _Loader))
    # PyYAML says ValueError and the like of a scalar that does not fit its tag, and of odd characters.
    except (yaml.YAMLError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError) as exc:
        raise DocumentError(" ".join(str(exc).split()) or type(exc).__name__) from exc


def spell(document: Any, form: str) -> str:
    """A document as YAML if `form` is "yaml", else as JSON. Invisible characters are escapes of the format."""
    if form != "yaml":
        return escaped_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode()) + "\n"
    text = msgspec.yaml.encode(document).decode()
    if escaped(text, keep="\n") == text:
        return text
    # PyYAML leaves all characters beyond ASCII as they are, or none.
    return str(yaml.dump(msgspec.to_builtins(document), Dumper=_Dumper, sort_keys=False, allow_unicode=False))


def repeated_key(text: bytes | str) -> str:
    """A key that a mapping has twice, "" for none, of a text that was loaded: all but the last is lost in silence."""
    try:
        nodes: list[yaml.Node] = list(yaml.compose_all(text, _Loader))
    except yaml.YAMLError:
        # JSON with tabs or the like; a program has written it.
        return ""
    seen: set[int] = set()
    while nodes:
        node = nodes.pop()
        # An alias is the node that it names.
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
    """The value of a JSON text, None if it is none: a flow mapping of YAML begins with the same bracket."""
    try:
        found = msgspec.json.decode(text)
    except UNREADABLE:
        return None
    return None if _is_deep(found) else found


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level if isinstance(one, dict | list) for inner in _members(one)]
        if not level:
            return False
    return True


def _members(value: dict[Any, Any] | list[Any]) -> Iterator[Any]:
    return (one for one in (value.values() if isinstance(value, dict) else value) if isinstance(one, dict | list))


def _check(text: bytes | str) -> None:
    """Raises DocumentError for a text that must not be built, and what PyYAML raises for one that is no YAML."""
    counter = _Counter()
    for event in yaml.parse(text, _Loader):
        counter.take(event)


class _Counter:
    """Counts nodes as they will be with every alias written out."""

    def __init__(self) -> None:
        self._written = 0
        self._expanded = 0
        # (anchor, nodes before it) of each collection that is open.
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
    """Whether PyYAML would make a number of it. "0,2,4" is none, however long a list of CPUs is."""
    if event.tag in _NUMBERS:
        return True
    resolvers = _Loader.yaml_implicit_resolvers.get(event.value[0], ()) if event.implicit[0] else ()
    return any(tag in _NUMBERS and pattern.match(event.value) for tag, pattern in resolvers)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader without times."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
