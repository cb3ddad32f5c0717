"""The constraints of a claim: devices that share the value of an attribute, or have different values. Pure.

Upstream: matchAttributeConstraint in allocator_incubating.go, distinctAttributeConstraint in constraint.go (1.36).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from topowise_scheduler.options.claims.inventory import PoolDevice
from topowise_scheduler.options.claims.objects import DeviceAttribute, DeviceConstraint

Value = tuple[str, int | bool | str]
"""The type of an attribute and its value. Versions are compared as texts."""


class Constraint(ABC):
    """Devices are added in the order of the search, and removed when it goes back. `request` is the name of the
    request, `subrequest` the name of the chosen alternative, empty for a request without alternatives."""

    def __init__(self, constraint: DeviceConstraint) -> None:
        self._requests = frozenset(constraint.requests or ())
        self._attribute = constraint.matchAttribute or constraint.distinctAttribute or ""
        self._domain, _, self._identifier = self._attribute.partition("/")
        self._count = 0

    @abstractmethod
    def add(self, request: str, subrequest: str, item: PoolDevice) -> bool:
        """Returns whether the device can be added to the devices so far, and adds it."""

    @abstractmethod
    def remove(self, request: str, subrequest: str) -> None:
        """Removes the device that was added last for the request."""

    def _covers(self, request: str, subrequest: str) -> bool:
        requests = self._requests
        return not requests or request in requests or (bool(subrequest) and f"{request}/{subrequest}" in requests)

    def _found(self, item: PoolDevice) -> DeviceAttribute | None:
        attributes = item.device.attributes or {}
        attribute = attributes.get(self._attribute)
        if attribute is None and self._domain == item.id.driver and self._identifier:
            attribute = attributes.get(self._identifier)
        return attribute


class MatchAttribute(Constraint):
    """All devices have the same value."""

    def __init__(self, constraint: DeviceConstraint) -> None:
        super().__init__(constraint)
        self._value: Value | None = None

    def add(self, request: str, subrequest: str, item: PoolDevice) -> bool:
        if not self._covers(request, subrequest):
            return True
        attribute = self._found(item)
        if attribute is None:
            return False
        value = value_of(attribute)
        if self._count == 0:
            self._value = value
        elif value is None or value != self._value:
            return False
        self._count += 1
        return True

    def remove(self, request: str, subrequest: str) -> None:
        if self._covers(request, subrequest):
            self._count -= 1


class DistinctAttribute(Constraint):
    """All devices have different values. Like upstream it knows a single value per request: a device is not compared
    with the devices before the last of the same request."""

    def __init__(self, constraint: DeviceConstraint) -> None:
        super().__init__(constraint)
        self._values: dict[str, Value | None] = {}

    def add(self, request: str, subrequest: str, item: PoolDevice) -> bool:
        if not self._covers(request, subrequest):
            return True
        attribute = self._found(item)
        if attribute is None:
            return False
        value = value_of(attribute)
        if self._count and self._values and (value is None or value in self._values.values()):
            return False
        self._values[request] = value
        self._count += 1
        return True

    def remove(self, request: str, subrequest: str) -> None:
        if self._covers(request, subrequest):
            self._values.pop(request, None)
            self._count -= 1


def value_of(attribute: DeviceAttribute) -> Value | None:
    """Returns the value of an attribute, None for a list, which the allocator compares with nothing."""
    if attribute.string is not None:
        return "string", attribute.string
    if attribute.integer is not None:
        return "int", attribute.integer
    if attribute.boolean is not None:
        return "bool", attribute.boolean
    if attribute.version is not None:
        return "version", attribute.version
    return None
