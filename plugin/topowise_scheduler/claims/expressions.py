"""CEL expressions of device selectors, evaluated as kube-scheduler does. Pure.

The evaluation is CEL's own C++ implementation (cel-expr-python, decision 13); Kubernetes' additions are here: the
variable `device`, quantities and semantic versions. This module is imported only once claims with selectors are seen.

The API server has compiled each stored expression with all functions of Kubernetes. So an expression that does not
compile here uses a function that is missing here, and its result is unknown.

Upstream: k8s.io/dynamic-resource-allocation/cel/compile.go, k8s.io/apiserver/pkg/cel/library (1.36).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from topowise import quantity
from topowise.errors import ParseError
from topowise_scheduler.claims import semver
from topowise_scheduler.claims.errors import EvaluationError, NotModelledError
from topowise_scheduler.claims.objects import Device, DeviceAttribute

LONGEST: Final = 10 * 1024
"""The most characters of an expression (CELSelectorExpressionMaxLength)."""
# kube-scheduler ends an evaluation at a cost of 1,000,000, where a step is 1 and texts and lists cost more. The bound
# on our estimate of steps stays below it, so that an expression that is evaluated here does not reach it there.
_MOST_WORK: Final = 100_000
# The number of attributes and capacities of a device: the steps of a loop over them.
_MOST_ENTRIES: Final = 32

_INT64_MAX: Final = quantity.INT64_MAX
_BILLION: Final = 1_000_000_000

_TOKEN: Final = re.compile(
    r"""//[^\n]* | (?P<string>[rRbB]{0,2}(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*) | (?P<number>\d[\w.]*) | (?P<mark>\[\?|\.\?|[=!<>]=|\S)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_LOOPS: Final = frozenset(("all", "exists", "exists_one", "existsOne", "map", "filter"))
_WHOLE: Final = re.compile(r"[+-]?\d+([kMGTPE]|[KMGTPE]i|[eE]\+?\d+)?", re.ASCII)
_PLAIN: Final = re.compile(r"""(["'])([^\\"']*)\1""")


def _messages() -> type[Any]:
    """Returns the class of quantities and versions as CEL sees them. A single class: CEL finds the implementation of a
    function by the kind of its arguments, and all messages are of one kind."""
    file = descriptor_pb2.FileDescriptorProto(name="topowise/claims.proto", package="kubernetes", syntax="proto3")
    message = file.message_type.add(name="Value")
    for number, name in enumerate(("kind", "text"), 1):
        message.field.add(
            name=name,
            number=number,
            type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
            label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        )
    _POOL.AddSerializedFile(file.SerializeToString())
    return cast(type[Any], message_factory.GetMessageClass(_POOL.FindMessageTypeByName("kubernetes.Value")))


_POOL: Final = descriptor_pool.DescriptorPool()
_Value: Final = _messages()


def _quantity(text: str) -> Any:
    nano = quantity.nano_value(text)
    if nano % _BILLION == 0 and _WHOLE.fullmatch(text) is None:
        # Kubernetes does not call 1.0 or 1000m an integer.
        raise NotModelledError("an integer quantity that is written as a fraction")
    return _of_nano(nano)


def _of_nano(nano: int) -> Any:
    return _Value(kind="quantity", text=str(nano))


def _version(text: str) -> Any:
    return _of_version(semver.parse(text))


def _of_version(version: semver.Version) -> Any:
    major, minor, patch, words = version
    return _Value(kind="semver", text=f"{major}.{minor}.{patch}{'-' if words else ''}{'.'.join(words)}")


def _compare(left: Any, right: Any) -> int:
    if left.kind != right.kind:
        raise ValueError("no such overload")
    if left.kind == "semver":
        return semver.compare(semver.parse(left.text), semver.parse(right.text))
    before, after = int(left.text), int(right.text)
    return (before > after) - (before < after)


def _nano(value: Any) -> int:
    if value.kind != "quantity":
        raise ValueError("no such overload")
    return int(value.text)


def _integer(value: Any) -> int:
    number, rest = divmod(_nano(value), _BILLION)
    if rest or not -_INT64_MAX - 1 <= number <= _INT64_MAX:
        raise ValueError("cannot convert value to integer")
    return number


def _is_integer(value: Any) -> bool:
    number, rest = divmod(_nano(value), _BILLION)
    return rest == 0 and -_INT64_MAX - 1 <= number <= _INT64_MAX


def _added(left: Any, right: Any, sign: int) -> Any:
    amount = right * _BILLION if isinstance(right, int) else _nano(right)
    total = _nano(left) + sign * amount
    if total % _BILLION == 0 and amount % _BILLION:
        raise NotModelledError("a sum of fractions that is an integer")
    return _of_nano(total)


def _part(index: int) -> Callable[[Any], int]:
    def part(value: Any) -> int:
        if value.kind != "semver":
            raise ValueError("no such overload")
        return semver.parse(value.text)[:3][index]

    return part


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ParseError:
        return False
    return True


class _Functions:
    """Declarations of functions. `unmodelled` is the last `NotModelledError` of an implementation: CEL makes
    each exception an error, which another part of the expression may outweigh."""

    def __init__(self) -> None:
        self.unmodelled = ""
        self._overloads: dict[str, list[Any]] = {}

    def add(self, name: str, parameters: list[Any], result: Any, function: Callable[..., Any], is_member: bool) -> None:
        overloads = self._overloads.setdefault(name, [])

        def implementation(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except NotModelledError as error:
                self.unmodelled = str(error)
                raise

        overloads.append(
            cel.Overload(
                f"topowise_{name}_{len(overloads)}",
                return_type=result,
                parameters=parameters,
                is_member=is_member,
                impl=implementation,
            )
        )

    def declarations(self) -> list[Any]:
        return [cel.FunctionDecl(name, overloads) for name, overloads in self._overloads.items()]


def _declared() -> _Functions:
    value, boolean, integer, text = cel.Type("kubernetes.Value"), cel.Type.BOOL, cel.Type.INT, cel.Type.STRING
    functions = _Functions()

    def function(name: str, parameters: list[Any], result: Any, implementation: Callable[..., Any]) -> None:
        functions.add(name, parameters, result, implementation, is_member=False)

    def member(name: str, parameters: list[Any], result: Any, implementation: Callable[..., Any]) -> None:
        functions.add(name, [value, *parameters], result, implementation, is_member=True)

    function("quantity", [text], value, _quantity)
    function("isQuantity", [text], boolean, lambda item: _parses(quantity.nano_value, item))
    function("semver", [text], value, _version)
    function("semver", [text, boolean], value, lambda item, flag: _version(semver.normalized(item) if flag else item))
    function("isSemver", [text], boolean, lambda item: _parses(semver.parse, item))
    function("isSemver", [text, boolean], boolean, _is_version)
    member("compareTo", [value], integer, _compare)
    member("isGreaterThan", [value], boolean, lambda left, right: _compare(left, right) > 0)
    member("isLessThan", [value], boolean, lambda left, right: _compare(left, right) < 0)
    # Kubernetes' documentation calls it as a member, which its library does not declare.
    function("sign", [value], integer, lambda item: (_nano(item) > 0) - (_nano(item) < 0))
    member("asInteger", [], integer, _integer)
    member("isInteger", [], boolean, _is_integer)
    member("asApproximateFloat", [], cel.Type.DOUBLE, lambda item: _nano(item) / _BILLION)
    for name, sign in (("add", 1), ("sub", -1)):
        member(name, [value], value, lambda left, right, sign=sign: _added(left, right, sign))
        member(name, [integer], value, lambda left, right, sign=sign: _added(left, right, sign))
    for index, name in enumerate(("major", "minor", "patch")):
        member(name, [], integer, _part(index))
    return functions


def _is_version(text: str, normalize: bool) -> bool:
    return _parses(lambda item: semver.parse(semver.normalized(item) if normalize else item), text)


_FUNCTIONS: Final = _declared()
_ENVIRONMENT: Final = cel.NewEnv(
    _POOL,
    variables={"device": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)},
    functions=_FUNCTIONS.declarations(),
    extensions=[ext_strings.ExtStrings(2), ext_bindings.ExtBindings(), ext_optional.ExtOptional()],
)


class Input(NamedTuple):
    """The variable `device` of a device. `versions` are the names of attributes that are versions, without domain.
    `problem` is why kube-scheduler evaluates no expression for the device."""

    driver: str
    attributes: dict[str, dict[str, Any]]
    capacity: dict[str, dict[str, Any]]
    has_shares: bool
    versions: frozenset[str] = frozenset()
    problem: str = ""


def input_of(driver: str, device: Device) -> Input:
    """Returns the variable `device` for a device of a driver."""
    attributes: dict[str, dict[str, Any]] = {}
    capacity: dict[str, dict[str, Any]] = {}
    problem = ""
    for name, attribute in (device.attributes or {}).items():
        domain, identifier = _qualified(name, driver)
        try:
            attributes.setdefault(domain, {})[identifier] = _attribute(attribute)
        except (ParseError, EvaluationError) as error:
            problem = f"attribute {name}: {error}"
    for name, amount in (device.capacity or {}).items():
        domain, identifier = _qualified(name, driver)
        # The API server writes quantities in a canonical form, which has no unnecessary fraction.
        capacity.setdefault(domain, {})[identifier] = _of_nano(quantity.nano_value(amount.value))
    versions = frozenset(
        _qualified(name, driver)[1] for name, item in (device.attributes or {}).items() if item.version is not None
    )
    return Input(driver, attributes, capacity, bool(device.allowMultipleAllocations), versions, problem)


def _attribute(attribute: DeviceAttribute) -> Any:
    if attribute.integer is not None:
        return attribute.integer
    if attribute.boolean is not None:
        return attribute.boolean
    if attribute.string is not None:
        return attribute.string
    if attribute.version is not None:
        return _version(attribute.version)
    raise EvaluationError("unsupported attribute value")


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


class Expression:
    """A compiled expression. Raises NotModelledError for an expression that is not evaluated here."""

    def __init__(self, text: str, knows_shares: bool) -> None:
        if len(text) > LONGEST:
            raise NotModelledError(f"a CEL expression of {len(text)} characters")
        tokens = [match for match in _TOKEN.finditer(text) if match.lastgroup]
        if _work(tokens) > _MOST_WORK:
            raise NotModelledError("a CEL expression that may take too long")
        self._knows_shares = knows_shares
        self._domains = {name: _domains_of(tokens, name) for name in ("attributes", "capacity")}
        self._has_optionals = any(match["mark"] in ("[?", ".?") for match in tokens)
        self._compared = _compared_names([match[0] for match in tokens])
        try:
            self._compiled = _ENVIRONMENT.compile(text)
        except RuntimeError as error:
            raise NotModelledError(f"a CEL expression: {str(error).splitlines()[0]}") from error

    def matches(self, device: Input) -> bool:
        """Whether the device matches. Raises EvaluationError, and NotModelledError if the result is not known."""
        if device.problem:
            raise EvaluationError(device.problem)
        if not self._compared.isdisjoint(device.versions):
            raise NotModelledError("a CEL expression that may compare a version with something else")
        attributes, capacity = (self._with_defaults(name, device) for name in ("attributes", "capacity"))
        variable: dict[str, Any] = {"driver": device.driver, "attributes": attributes, "capacity": capacity}
        if self._knows_shares:
            variable["allowMultipleAllocations"] = device.has_shares
        _FUNCTIONS.unmodelled = ""
        try:
            result = self._compiled.eval(data={"device": variable})
        except RuntimeError as error:
            # Most failures are results; the library raises these, such as a field of an optional number.
            raise NotModelledError(f"a CEL expression: {str(error).splitlines()[0]}") from error
        if _FUNCTIONS.unmodelled:
            raise NotModelledError(_FUNCTIONS.unmodelled)
        kind = result.type()
        if kind == cel.Type.BOOL:
            return bool(result.value())
        if any(domains is None for domains in self._domains.values()):
            # Perhaps a domain was missing that has an empty map in kube-scheduler.
            raise NotModelledError("a CEL expression that does not name its domains")
        raise EvaluationError(str(result.value()) if kind == cel.Type.ERROR else f"a result of type {kind.name()}")

    def _with_defaults(self, name: str, device: Input) -> dict[str, dict[str, Any]]:
        """Returns the attributes or the capacity. kube-scheduler's map has an empty map for each domain that is missing
        when it is looked up, but not when the map is listed."""
        values: dict[str, dict[str, Any]] = device.attributes if name == "attributes" else device.capacity
        domains = self._domains[name]
        if domains is None:
            if self._has_optionals:
                raise NotModelledError(
                    "a CEL expression with optional fields that does not name the domains of attributes"
                )
            return values
        missing = {device.driver if domain is None else domain for domain in domains} - values.keys()
        return {**values, **{domain: {} for domain in missing}} if missing else values


def _domains_of(tokens: list[re.Match[str]], name: str) -> set[str | None] | None:
    """Returns the domains that an expression looks up in `device.attributes` or `device.capacity`, with None for
    `device.driver`. Returns None if it uses the map in another way."""
    domains: set[str | None] = set()
    words = [match[0] for match in tokens]
    for index, word in enumerate(words):
        if word != name or words[index - 2 : index] != ["device", "."]:
            continue
        after = words[index + 1 : index + 6]
        plain = _PLAIN.fullmatch(after[1]) if len(after) > 2 else None
        if after[:1] in (["."], [".?"]) and len(after) > 1 and after[2:3] != ["("]:
            domains.add(after[1])
        elif plain is not None and after[0] in ("[", "[?") and after[2] == "]":
            domains.add(plain[2])
        elif after[:1] in (["["], ["[?"]) and after[1:5] == ["device", ".", "driver", "]"]:
            domains.add(None)
        else:
            return None
    return domains


def _compared_names(words: list[str]) -> frozenset[str]:
    """Returns the names of attributes that an expression may compare by ==, != or `in`, except with `semver(...)`.

    Such a comparison of a version with another type is an error in Kubernetes, and false here.
    """
    if not {"==", "!=", "in"}.intersection(words):
        return frozenset()
    names: set[str] = set()
    for index, word in enumerate(words):
        name = word.lstrip("rRbB").strip("\"'") if word[-1] in "\"'" else word
        if name.isidentifier() and not _is_compared_safely(words, index + 1):
            names.add(name)
    return frozenset(names)


def _is_compared_safely(words: list[str], index: int) -> bool:
    """Whether what follows a name keeps its value from comparisons, or compares it with a version."""
    while index < len(words) and words[index] in (")", "]"):
        index += 1
    following = words[index : index + 3]
    if following[:1] == ["."] and following[1:2] in (["orValue"], ["value"]):
        return _is_compared_safely(words, _after_call(words, index + 2))
    if following[:1] in (["=="], ["!="]):
        return following[1:2] == ["semver"]
    return following[:1] not in ([","], ["in"])


def _after_call(words: list[str], index: int) -> int:
    """Returns the index after the call whose parenthesis is at `index`."""
    depth = 0
    for position in range(index, len(words)):
        depth += (words[position] == "(") - (words[position] == ")")
        if depth == 0:
            return position + 1
    return len(words)


def _work(tokens: list[re.Match[str]]) -> int:
    """Returns an upper bound of the steps: each loop may be inside the others."""
    count = len(tokens)
    loops = sum(
        match["word"] in _LOOPS and count > index + 1 and tokens[index + 1][0] == "("
        for index, match in enumerate(tokens)
    )
    text = sum(len(match["string"]) for match in tokens if match["string"])
    return int((count + text // 10 + 1) * max(count, _MOST_ENTRIES) ** loops)
