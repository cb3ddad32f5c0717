"""JSONPath templates and custom columns of kubectl: `{range .items[*]}{.node}{"\\n"}{end}`, `NODE:.node,CPU:.free.cpu`.

A template is compiled once. A part of it is an expression, a list of steps from values to values, or a range with
parts. No library implements kubectl's templates, which differ from RFC 9535.

Upstream: k8s.io/client-go/util/jsonpath, k8s.io/kubectl/pkg/cmd/get/customcolumn.go (1.36).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from topowise.errors import SourceError

Step = Callable[[list[Any]], list[Any]]
Part = Any
"""A list of steps, or a `_Range`."""

_QUOTED: Final = r"""(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
_EXPRESSION: Final = re.compile(rf"\{{((?:{_QUOTED}|[^{{}}\"'\n])*)\}}")
_STEP: Final = re.compile(
    r"[ @$]+"
    r"|(?P<deep>\.\.)(?P<below>\w(?:\\.|[^\\.,\[\]$@{}\s])*)?"
    r"|\.(?P<field>(?:\\.|[^\\.,\[\]$@{}\s])*)"
    rf"|\[\?\((?P<filter>(?:{_QUOTED}|[^)\"'])*)\)\]"
    r"|\[(?P<index>[^\]\n]*)\]"
    rf"|(?P<text>{_QUOTED})"
    r"|(?P<number>[+-]?\d+(?:\.\d+)?)"
    r"|(?P<word>[A-Za-z_]\w*)"
)
_COMPARISON: Final = re.compile(r"([^!<>=]+)([!<>=]+)(.+)", re.DOTALL)
_COMPARE: Final = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip
_SLICE: Final = re.compile(r"(-?\d+)?(?:(:)(-?\d+)?(?::(\d+)?)?)?", re.ASCII)
_RELAXED: Final = re.compile(r"\{\.?([^{}]+)\}|\.?([^{}]+)")
_NONE: Final = "<none>"


class _Range(NamedTuple):
    """A range: the steps to its values, and the parts that are printed for each value."""

    steps: list[Step]
    parts: list[Part]


def template(text: str) -> Callable[[Any], str]:
    """Returns the function that prints a document by the template. Raises SourceError for an unsupported template."""
    open_parts: list[list[Part]] = [[]]
    at = 0
    while at < len(text):
        match = _EXPRESSION.match(text, at)
        if match is None:
            literal = re.compile(r"[^{]+").match(text, at)
            if literal is None:
                raise _error(text[at:], "an expression in braces, such as {.items[*].node}")
            open_parts[-1].append([_constant(literal[0])])
            at = literal.end()
            continue
        at = match.end()
        expression = match[1].strip()
        if expression == "end":
            if len(open_parts) == 1:
                raise _error(text, "{range} before {end}")
            open_parts.pop()
        elif re.match(r"range\b", expression):
            inner = _Range(list(_steps(expression[len("range") :])), [])
            open_parts[-1].append(inner)
            open_parts.append(inner.parts)
        else:
            open_parts[-1].append(list(_steps(expression)))
    if len(open_parts) > 1:
        raise _error(text, "{end} after {range}")
    return lambda document: _rendered(open_parts[0], document)


def columns(text: str) -> tuple[list[str], Callable[[Any], list[str]]]:
    """Returns the header, and the function from an object to its cells. Raises SourceError."""
    header, cells = [], []
    for column in text.split(","):
        name, colon, expression = column.partition(":")
        match = _RELAXED.fullmatch(expression)
        if not colon or match is None:
            raise SourceError("-o custom-columns", f"{column!r:.80} is not a column, expected HEADER:.field.of.a.row")
        header.append(name)
        cells.append(list(_steps(f".{match[1] or match[2]}")))
    return header, lambda row: [",".join(map(_printed, _walk(steps, row))) or _NONE for steps in cells]


def _error(text: str, expected: str) -> SourceError:
    return SourceError("-o jsonpath", f"{text!r:.80} is not supported, expected {expected}")


def _rendered(parts: Sequence[Part], value: Any) -> str:
    texts = []
    for part in parts:
        if isinstance(part, _Range):
            texts += [_rendered(part.parts, item) for item in _walk(part.steps, value)]
        else:
            texts.append(" ".join(map(_printed, _walk(part, value))))
    return "".join(texts)


def _walk(steps: Sequence[Step], value: Any) -> list[Any]:
    values = [value]
    for step in steps:
        values = step(values)
    return values


def _printed(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()


def _steps(expression: str) -> Iterator[Step]:
    """The steps of an expression without its braces."""
    at = 0
    while at < len(expression):
        match = _STEP.match(expression, at)
        if match is None or match["word"] not in (None, "true", "false"):
            raise _error(expression[at:], "a path such as .items[*].node, or a quoted text")
        at = match.end()
        if match["deep"]:
            yield lambda values: [inner for value in values for inner in _descendants(value)]
        name = match["below"] if match["deep"] else match["field"]
        if name is not None:
            yield _members if name == "*" else _field(re.sub(r"\\(.)", r"\1", name))
        elif match["filter"] is not None:
            yield _filter(match["filter"])
        elif match["index"] is not None:
            yield _bracket(match["index"])
        elif match["text"] or match["number"] or match["word"]:
            yield _constant(_literal(match[0]))


def _literal(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError) as exc:
        raise _error(text, "a text in quotes, or a number") from exc


def _constant(value: Any) -> Step:
    return lambda values: [value]


def _field(name: str) -> Step:
    return lambda values: [value[name] for value in values if isinstance(value, dict) and name in value]


def _members(values: list[Any]) -> list[Any]:
    return [
        member
        for value in values
        if isinstance(value, dict | list)
        for member in (value.values() if isinstance(value, dict) else value)
    ]


def _descendants(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list) and value:
        yield value
        for member in _members([value]):
            yield from _descendants(member)


def _bracket(text: str) -> Step:
    """`[*]`, `[1]`, `[-1]`, `[0:4:2]`, `['key']`, and unions of them."""
    if "," in text:
        union = [_bracket(item.strip()) for item in text.split(",")]
        return lambda values: [result for step in union for result in step(values)]
    if text == "*":
        text = ":"
    if len(text) > 1 and text[0] == text[-1] == "'":
        steps = list(_steps(f".{text[1:-1]}"))
        return lambda values: [result for value in values for result in _walk(steps, value)]
    match = _SLICE.fullmatch(text)
    if match is None or not text:
        raise _error(f"[{text}]", "[*], [INDEX], [FIRST:END] or ['KEY']")
    first, colon, end, step = match.groups()
    return lambda values: [
        item
        for value in values
        if value is not None
        for item in _sliced(value, int(first or 0), (int(end) if end else None) if colon else 0, int(step or 1), colon)
    ]


def _sliced(value: Any, first: int, end: int | None, step: int, colon: str | None) -> list[Any]:
    """The items as in Go: an index beyond the list is an error."""
    if not isinstance(value, list) or step < 1:
        raise SourceError("-o jsonpath", f"{_printed(value):.80} is not a list, expected a list before [...]")
    count = len(value)
    first += count if first < 0 else 0
    last = first + 1 if colon is None else count if end is None else end + count if end < 0 else end
    if first == last:
        return []
    if not 0 <= first < count or not first <= last <= count:
        index = last - 1 if 0 <= first < count else first
        raise SourceError("-o jsonpath", f"array index out of bounds: index {index}, length {count}")
    return value[first:last:step]


def _filter(text: str) -> Step:
    """`[?(@.node=="a")]`, or `[?(@.node)]` for items with the field."""
    match = _COMPARISON.fullmatch(text)
    left, right = ([list(_steps(side)) for side in (match[1], match[3])]) if match else (list(_steps(text)), [])
    compare = _COMPARE.get(match[2]) if match else None
    if match and compare is None:
        raise _error(text, f"one of {' '.join(_COMPARE)}")

    def passes(item: Any) -> bool:
        before = _walk(left, item)
        if compare is None:
            return bool(before)
        after = _walk(right, item)
        if len(before) != 1 or len(after) != 1:
            return False
        try:
            return bool(compare(before[0], after[0]))
        except TypeError as exc:
            raise SourceError("-o jsonpath", f"incompatible types for comparison in [?({text})]") from exc

    return lambda values: [item for value in values if isinstance(value, list) for item in value if passes(item)]
