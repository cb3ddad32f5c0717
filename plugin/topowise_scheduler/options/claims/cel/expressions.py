"""CEL expressions of device selectors, evaluated as kube-scheduler does. Pure.

Upstream: k8s.io/dynamic-resource-allocation/cel/compile.go (1.36).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from topowise import quantity
from topowise.errors import ParseError
from topowise_scheduler.options.claims import semver
from topowise_scheduler.options.claims.cel.parser import Evaluate, Parser
from topowise_scheduler.options.claims.cel.values import Domains, Quantity, Run, Version
from topowise_scheduler.options.claims.objects import Device, DeviceAttribute
from topowise_scheduler.options.claims.work import EvaluationError

_FIELDS: Final = frozenset(("driver", "attributes", "capacity", "allowMultipleAllocations"))


class Input(NamedTuple):
    """The variables for a device. `problem` is why kube-scheduler evaluates no expression for the device."""

    variables: Mapping[str, Any]
    problem: str = ""


def input_of(driver: str, device: Device) -> Input:
    """Returns the variables for a device of a driver."""
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
        capacity.setdefault(domain, {})[identifier] = Quantity(quantity.nano_value(amount.value))
    fields: dict[str, Any] = {
        "driver": driver,
        "attributes": Domains(attributes),
        "capacity": Domains(capacity),
        "allowMultipleAllocations": bool(device.allowMultipleAllocations),
    }
    return Input({"device": fields}, problem)


def _attribute(attribute: DeviceAttribute) -> Any:
    several = attribute.ints or attribute.bools or attribute.strings
    if several:
        return list(several)
    if attribute.versions:
        return [Version(semver.parse(version)) for version in attribute.versions]
    if attribute.integer is not None:
        return attribute.integer
    if attribute.boolean is not None:
        return attribute.boolean
    if attribute.string is not None:
        return attribute.string
    if attribute.version is not None:
        return Version(semver.parse(attribute.version))
    raise EvaluationError("unsupported attribute value")


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


class Expression:
    """A compiled expression. Raises NotModelledError for an expression beyond the part of the language that is
    modelled."""

    def __init__(self, text: str) -> None:
        self._evaluate: Evaluate | None = None
        try:
            self._evaluate = Parser(text, _FIELDS).parse()
        except EvaluationError as error:
            self._problem = str(error)

    def matches(self, device: Input, run: Run) -> bool:
        """Returns whether the device matches. Raises EvaluationError, and NotModelledError if the result is not
        known."""
        if self._evaluate is None or device.problem:
            raise EvaluationError(device.problem or self._problem)
        result = self._evaluate(run, device.variables)
        if type(result) is not bool:
            raise EvaluationError(f"a result of type {type(result).__name__}, expected bool")
        return result
