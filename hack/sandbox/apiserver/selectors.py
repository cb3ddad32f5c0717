"""Label and field selectors.

Grammar of labels: k8s.io/apimachinery/pkg/labels (`a=b`, `a==b`, `a!=b`, `a in (x,y)`, `a notin (x,y)`, `a`, `!a`,
joined by commas). Fields know only `=`, `==` and `!=`, on the few paths each kind offers; asking for
another path is a 400, which is why the paths are part of the resource table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from sandbox.apiserver.errors import Json, bad_request

Predicate = Callable[[Json], bool]

_SET = re.compile(r"([^\s!=<>,()]+)\s+(in|notin)\s+\(([^)]*)\)")
_COMPARE = re.compile(r"([^\s!=<>,()]+)\s*(==|=|!=|<|>)\s*([^\s!=<>,()]*)")
_EXISTS = re.compile(r"(!?)\s*([^\s!=<>,()]+)")
_Test = Callable[[dict[str, str]], bool]


def labels(text: str) -> Callable[[dict[str, str]], bool]:
    """Returns a test of a label set. Raises StatusError 400 for a text that is no selector."""
    tests: list[_Test] = []
    rest = text.strip()
    while rest:
        test, end = _requirement(rest, text)
        tests.append(test)
        rest = rest[end:].strip()
        if rest and not rest.startswith(","):
            raise bad_request(f'unable to parse requirement: found {rest!r}, expected: "," or end of {text!r}')
        rest = rest[1:].strip()
    return lambda labels: all(test(labels) for test in tests)


def _requirement(rest: str, text: str) -> tuple[_Test, int]:
    if match := _SET.match(rest):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return (lambda labels: labels.get(key, _ABSENT) in values), match.end()
        return (lambda labels: labels.get(key, _ABSENT) not in values), match.end()
    if match := _COMPARE.match(rest):
        return _comparison(*match.groups()), match.end()
    if match := _EXISTS.match(rest):
        negated, key = match.groups()
        return (lambda labels: (key in labels) is not bool(negated)), match.end()
    raise bad_request(f"unable to parse requirement {rest!r} of selector {text!r}")


# A label value cannot hold a NUL, so no selector can name it.
_ABSENT = "\0"


def _comparison(key: str, operator: str, value: str) -> _Test:
    if operator in ("=", "=="):
        return lambda labels: labels.get(key, _ABSENT) == value
    if operator == "!=":
        return lambda labels: labels.get(key, _ABSENT) != value
    raise bad_request(f"the operator {operator!r} is not served")


def from_label_selector(selector: Json | None) -> Callable[[dict[str, str]], bool]:
    """Returns a test from a `LabelSelector` object; None selects nothing, the empty object everything."""
    if selector is None:
        return lambda labels: False
    clauses = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        key, operator = expression["key"], expression["operator"]
        values = "(" + ",".join(expression.get("values") or ()) + ")"
        spelled = {
            "In": f"{key} in {values}",
            "NotIn": f"{key} notin {values}",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        clauses.append(spelled[operator])
    return labels(",".join(clauses))


def fields(text: str, offered: Collection[str]) -> Predicate:
    """Returns a test of an object by field paths; `metadata.name` and `metadata.namespace` are always offered."""
    tests: list[Predicate] = []
    for clause in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([^!=]+)(==|=|!=)(.*)", clause)
        if match is None:
            raise bad_request(f"invalid selector: {text!r}; can't understand {clause!r}")
        path, operator, value = match.groups()
        if path not in ("metadata.name", "metadata.namespace") and path not in offered:
            raise bad_request(f"field label not supported: {path}")
        tests.append(_field_test(tuple(path.split(".")), value, expected=operator != "!="))
    return lambda obj: all(test(obj) for test in tests)


def _field_test(path: tuple[str, ...], value: str, *, expected: bool) -> Predicate:
    def test(obj: Json) -> bool:
        current: Any = obj
        for step in path:
            current = current.get(step) if isinstance(current, dict) else None
        return (_spelled(current, path) == value) is expected

    return test


def _spelled(value: Any, path: tuple[str, ...]) -> str:
    """Returns a field's value as field sets to_text it: absent is empty, except for booleans, whose zero is `false`."""
    if value is None:
        return "false" if path[-1] in ("unschedulable", "hostNetwork") else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    # The `source` of an event is its component.
    return str(value.get("component", "")) if isinstance(value, dict) else str(value)


def selection(label_text: str, field_text: str, offered: Collection[str]) -> Predicate | None:
    """Returns both selectors as a predicate, None if they select every object."""
    if not label_text and not field_text:
        return None
    label_test, field_test = labels(label_text), fields(field_text, offered)
    return lambda obj: label_test(obj["metadata"].get("labels") or {}) and field_test(obj)
