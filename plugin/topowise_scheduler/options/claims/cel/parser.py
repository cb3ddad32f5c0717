"""Makes a function of Python from the text of a CEL expression. Pure.

The text has been compiled by the API server. So types are not checked, and what does not parse here is beyond the part
of the language that is modelled.

Upstream: github.com/google/cel-go/parser, interpreter/interpretable.go and attributes.go, cel/macro.go.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from topowise import quantity
from topowise_scheduler.options.claims.cel import functions, values
from topowise_scheduler.options.claims.cel.values import Optional, Run
from topowise_scheduler.options.claims.work import EvaluationError, NotModelledError

LONGEST: Final = 10 * 1024
"""The most characters of an expression (CELSelectorExpressionMaxLength)."""
DEEPEST: Final = 32
"""The most levels of an expression: each takes two calls on Python's stack."""

Scope = Mapping[str, Any]
"""Variables by name; a `_Binding` is evaluated when it is read first."""
Evaluate = Callable[[Run, Scope], Any]


class Node(NamedTuple):
    """A part of an expression with `depth` levels. `presence` evaluates `has(part)` if the part is a field. `is_set`: a
    list of literals, which are neither lists nor maps."""

    evaluate: Evaluate
    depth: int = 1
    presence: Evaluate | None = None
    is_device: bool = False
    is_literal: bool = False
    is_set: bool = False


_TOKEN: Final = re.compile(
    r"""(?:\s|//[^\n]*)*
    (?: (?P<string>[rR]?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
      | (?P<int>0x[0-9a-fA-F]+|\d+)(?![\w.])
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)(?!["'])
      | (?P<mark>\|\||&&|[=!<>]=|\.\?|[-+*/%!<>?:.,()\[\]]) )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_END: Final = re.compile(r"(?:\s|//[^\n]*)*", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(?:([abfnrtv\\?\"'`])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_LEVELS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!=", "in"), 1),
    **dict.fromkeys("+-", 2),
    **dict.fromkeys("*/%", 3),
}
_OPERATORS: Final[Mapping[str, Callable[[Run, Any, Any], Any]]] = {
    "==": values.are_equal,
    "!=": lambda run, left, right: not values.is_equal(run, left, right),
    "<": lambda run, left, right: values.compare(run, left, right) < 0,
    "<=": lambda run, left, right: values.compare(run, left, right) <= 0,
    ">": lambda run, left, right: values.compare(run, left, right) > 0,
    ">=": lambda run, left, right: values.compare(run, left, right) >= 0,
    "in": values.contains,
    "+": functions.add,
    "-": functions.arithmetic(operator.sub),
    "*": functions.arithmetic(operator.mul),
    "/": functions.arithmetic(functions.quotient),
    "%": functions.arithmetic(functions.remainder),
}
_LONGEST_INTEGER: Final = 40
_LITERALS: Final = {"true": True, "false": False}


class Parser:
    """Parses one text. `fields` are the fields of the variable `device`."""

    def __init__(self, text: str, fields: frozenset[str]) -> None:
        if len(text) > LONGEST:
            raise NotModelledError(f"a CEL expression of {len(text)} characters")
        self._fields = fields
        self._tokens = _tokens(text)
        self._at = 0
        self._level = 0
        self._variables = ["device"]

    def parse(self) -> Evaluate:
        """Returns a function that evaluates the expression. Raises NotModelledError."""
        node = self._expression()
        if self._at < len(self._tokens):
            raise self._unexpected()
        return node.evaluate

    # Tokens

    def _peek(self) -> str:
        """Returns the next token if it is a word or a mark, else ""."""
        if self._at >= len(self._tokens):
            return ""
        kind, text = self._tokens[self._at]
        return text if kind in ("word", "mark") else ""

    def _take(self, *texts: str) -> str:
        """Returns the next token and goes on if it is one of these, else returns ""."""
        text = self._peek()
        if text not in texts:
            return ""
        self._at += 1
        return text

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._unexpected()

    def _word(self) -> str:
        text = self._peek()
        if not text.isidentifier():
            raise self._unexpected()
        self._at += 1
        return text

    def _unexpected(self) -> NotModelledError:
        text = self._tokens[self._at][1] if self._at < len(self._tokens) else "the end"
        return NotModelledError(f"a CEL expression with {text[:40]} at an unexpected place")

    # Grammar

    def _expression(self) -> Node:
        self._level += 1
        if self._level > DEEPEST:
            raise _too_deep()
        node = self._chain("||", is_or=True)
        if self._take("?"):
            yes = self._chain("||", is_or=True)
            self._expect(":")
            node = _node(_conditional, node, yes, self._expression())
        self._level -= 1
        return node

    def _chain(self, operator: str, *, is_or: bool) -> Node:
        def term() -> Node:
            return self._chain("&&", is_or=False) if is_or else self._binary(1)

        terms = [term()]
        while self._take(operator):
            terms.append(term())
        return terms[0] if len(terms) == 1 else _node(_logical(is_or), *terms)

    def _binary(self, level: int) -> Node:
        node = self._unary() if level > 3 else self._binary(level + 1)
        while _LEVELS.get(self._peek()) == level:
            operator = self._take(self._peek())
            right = self._unary() if level > 2 else self._binary(level + 1)
            function = values.is_in_set if operator == "in" and right.is_set else _OPERATORS[operator]
            node = _node(_call(function), node, right)
        return node

    def _unary(self) -> Node:
        signs = list(iter(lambda: self._take("-", "!"), ""))
        if signs and signs[-1] == "-" and self._at < len(self._tokens) and self._tokens[self._at][0] == "int":
            # -9223372036854775808 is an integer, and 9223372036854775808 is none.
            kind, text = self._tokens[self._at]
            self._tokens[self._at] = kind, f"-{text}"
            signs.pop()
        node = self._member()
        for sign in reversed(signs):
            node = _node(_call(functions.negate if sign == "-" else _inverse), node)
        return node

    def _member(self) -> Node:
        node = self._primary()
        while mark := self._take(".", ".?", "["):
            if mark == "[":
                key = self._expression()
                self._expect("]")
                node = _node(_call(values.at), node, key)
                continue
            name = self._word()
            if mark == "." and self._take("("):
                node = self._method(node, name)
            elif node.is_device and name not in self._fields:
                raise EvaluationError(f"undefined field '{name}'")
            else:
                presence = _presence(name)((node.evaluate,)) if mark == "." else None
                node = _node(_field(values.at if mark == "." else values.at_optional, name), node)
                node = node._replace(presence=presence)
        return node

    def _primary(self) -> Node:
        if self._at >= len(self._tokens):
            raise self._unexpected()
        kind, text = self._tokens[self._at]
        if kind in ("string", "int"):
            self._at += 1
            return _constant(_literal(kind, text))
        if self._take("("):
            node = self._expression()
            self._expect(")")
            return node
        if self._take("["):
            items = self._arguments("]")
            return _node(_list, *items)._replace(is_set=bool(items) and all(item.is_literal for item in items))
        name = self._word()
        if name in _LITERALS:
            return _constant(_LITERALS[name])
        if name == "cel" and name not in self._variables and self._take("."):
            name = f"{name}.{self._word()}"
            if self._peek() != "(":
                raise self._unexpected()
        if self._take("("):
            return self._function(name)
        if name not in self._variables:
            raise NotModelledError(f"{name[:40]} in a CEL expression")
        return Node(_variable(name), is_device=name == "device" and self._variables.count(name) == 1)

    def _arguments(self, end: str) -> list[Node]:
        nodes: list[Node] = []
        while not self._take(end):
            nodes.append(self._expression())
            if not self._take(","):
                self._expect(end)
                break
        return nodes

    # Functions and macros

    def _function(self, name: str) -> Node:
        if name == "has":
            node = self._member()
            self._expect(")")
            if node.presence is None:
                raise self._unexpected()
            return Node(node.presence, node.depth)
        if name == "cel.bind":
            variable = self._word()
            self._expect(",")
            value = self._expression()
            self._expect(",")
            return _node(_bind(variable), value, self._within(variable))
        arguments = self._arguments(")")
        function = functions.GLOBAL.get((name, len(arguments)))
        if function is None:
            raise NotModelledError(f"function {name[:40]} in a CEL expression")
        return _node(_call(function), *arguments)

    def _method(self, node: Node, name: str) -> Node:
        if name in ("all", "exists"):
            variable = self._word()
            self._expect(",")
            return _node(_loop(variable, is_or=name == "exists"), node, self._within(variable))
        arguments = self._arguments(")")
        if name == "orValue" and len(arguments) == 1:
            return _node(_or_value, node, *arguments)
        function = functions.MEMBERS.get((name, 1 + len(arguments)))
        if function is None:
            raise NotModelledError(f"function {name[:40]} in a CEL expression")
        return _node(_call(function), node, *arguments)

    def _within(self, variable: str) -> Node:
        """Returns the last argument of a macro, which knows a variable."""
        self._variables.append(variable)
        node = self._expression()
        self._variables.pop()
        self._expect(")")
        return node


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    while match := _TOKEN.match(text, position):
        kind = match.lastgroup or ""
        tokens.append((kind, match[kind]))
        position = match.end()
    rest = _END.match(text, position)
    if rest is None or rest.end() < len(text):
        raise NotModelledError(f"{text[position : position + 20].strip()!r} in a CEL expression")
    return tokens


def _literal(kind: str, text: str) -> Any:
    if kind == "int":
        # Python reads no decimal number of thousands of digits.
        number = int(text, 0 if "x" in text else 10) if len(text) <= _LONGEST_INTEGER else 1 << 64
        if not -quantity.INT64_MAX - 1 <= number <= quantity.INT64_MAX:
            raise NotModelledError(f"the number {text[:40]} in a CEL expression")
        return number
    return text[2:-1] if text[0] in "rR" else _ESCAPE.sub(_unescaped, text[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    if match[4] or (match[3] or "").lower()[:2] in ("d8", "d9", "da", "db", "dc", "dd", "de", "df"):
        raise NotModelledError(f"the escape {match[0]} in a CEL expression")
    return _ESCAPED.get(match[1], match[1]) if match[1] else chr(int(match[2] or match[3], 16))


# --- The functions that nodes become: `_name(…)` returns how a node evaluates with its parts ---


def _too_deep() -> NotModelledError:
    return NotModelledError(f"a CEL expression of more than {DEEPEST} levels")


def _node(make: Callable[[tuple[Evaluate, ...]], Evaluate], *parts: Node) -> Node:
    depth = 1 + max((part.depth for part in parts), default=0)
    if depth > DEEPEST:
        raise _too_deep()
    return Node(make(tuple([part.evaluate for part in parts])), depth)


def _constant(value: Any) -> Node:
    return Node(lambda run, scope: value, is_literal=True)


class _Binding:
    """The value of `cel.bind`, which is evaluated when the variable is read first."""

    def __init__(self, evaluate: Evaluate, scope: Scope) -> None:
        self._evaluate = evaluate
        self._scope = scope
        self._results: list[Any] = []

    def value(self, run: Run) -> Any:
        if not self._results:
            try:
                self._results.append(self._evaluate(run, self._scope))
            except EvaluationError as error:
                self._results.append(error)
        if isinstance(self._results[0], EvaluationError):
            raise self._results[0]
        return self._results[0]


def _variable(name: str) -> Evaluate:
    def evaluate(run: Run, scope: Scope) -> Any:
        value = scope[name]
        return value.value(run) if type(value) is _Binding else value

    return evaluate


def _call(function: Callable[..., Any]) -> Callable[[tuple[Evaluate, ...]], Evaluate]:
    def make(parts: tuple[Evaluate, ...]) -> Evaluate:
        if len(parts) == 2:
            first, second = parts

            def evaluate_two(run: Run, scope: Scope) -> Any:
                run.left -= 1
                if run.left < 0:
                    run.spend(0)
                return function(run, first(run, scope), second(run, scope))

            return evaluate_two

        def evaluate(run: Run, scope: Scope) -> Any:
            run.spend(1)
            return function(run, *[part(run, scope) for part in parts])

        return evaluate

    return make


def _field(function: Callable[..., Any], name: str) -> Callable[[tuple[Evaluate, ...]], Evaluate]:
    return lambda parts: lambda run, scope: function(run, parts[0](run, scope), name)


def _presence(name: str) -> Callable[[tuple[Evaluate, ...]], Evaluate]:
    def make(parts: tuple[Evaluate, ...]) -> Evaluate:
        def evaluate(run: Run, scope: Scope) -> bool:
            return bool(values.at_optional(run, parts[0](run, scope), name).values)

        return evaluate

    return make


def _list(parts: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(run: Run, scope: Scope) -> list[Any]:
        run.spend(1 + len(parts))
        return [part(run, scope) for part in parts]

    return evaluate


def _inverse(run: Run, value: Any) -> bool:
    if type(value) is not bool:
        raise values.no_overload()
    return not value


def _conditional(parts: tuple[Evaluate, ...]) -> Evaluate:
    condition, yes, no = parts

    def evaluate(run: Run, scope: Scope) -> Any:
        run.spend(1)
        return (no if _inverse(run, condition(run, scope)) else yes)(run, scope)

    return evaluate


def _logical(is_or: bool) -> Callable[[tuple[Evaluate, ...]], Evaluate]:
    """`||` and `&&`: a part that decides outweighs the errors of other parts."""

    def make(parts: tuple[Evaluate, ...]) -> Evaluate:
        def evaluate(run: Run, scope: Scope) -> bool:
            error: EvaluationError | None = None
            for part in parts:
                run.spend(1)
                try:
                    if _inverse(run, part(run, scope)) is not is_or:
                        return is_or
                except EvaluationError as caught:
                    error = error or caught
            if error is not None:
                raise error
            return not is_or

        return evaluate

    return make


def _bind(variable: str) -> Callable[[tuple[Evaluate, ...]], Evaluate]:
    def make(parts: tuple[Evaluate, ...]) -> Evaluate:
        value, body = parts

        def evaluate(run: Run, scope: Scope) -> Any:
            run.spend(1 + len(scope))
            return body(run, {**scope, variable: _Binding(value, scope)})

        return evaluate

    return make


def _or_value(parts: tuple[Evaluate, ...]) -> Evaluate:
    target, other = parts

    def evaluate(run: Run, scope: Scope) -> Any:
        run.spend(1)
        value = target(run, scope)
        if type(value) is not Optional:
            return value
        return value.values[0] if value.values else other(run, scope)

    return evaluate


def _loop(variable: str, *, is_or: bool) -> Callable[[tuple[Evaluate, ...]], Evaluate]:
    """`exists` and `all`."""

    def make(parts: tuple[Evaluate, ...]) -> Evaluate:
        target, test = parts

        def evaluate(run: Run, scope: Scope) -> bool:
            container = target(run, scope)
            if type(container) is not list and not isinstance(container, dict):
                raise values.no_overload()
            run.spend((1 + len(scope)) * (1 + len(container)))
            each = [_in_scope(test, {**scope, variable: item}) for item in container]
            return bool(_logical(is_or)(tuple(each))(run, scope))

        return evaluate

    return make


def _in_scope(evaluate: Evaluate, scope: Scope) -> Evaluate:
    return lambda run, _: evaluate(run, scope)
