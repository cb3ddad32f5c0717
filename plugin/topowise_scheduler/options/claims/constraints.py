"""The constraints of a claim, which relate the attributes of its devices. Pure.

An attribute has a set of values, with one element unless it is a list. Devices match if one value is common to all;
they are distinct if no two have a value in common.
"""

from __future__ import annotations

from topowise_scheduler.options.claims.inventory import PoolDevice
from topowise_scheduler.options.claims.objects import DeviceAttribute, DeviceConstraint
from topowise_scheduler.options.claims.requests import Request
from topowise_scheduler.options.claims.work import NotModelledError

Values = frozenset[tuple[str, int | bool | str]]
"""The values of an attribute with their type. Versions are compared as texts."""


class Constraint:
    """Devices are added in the order of the search, and removed in the opposite order."""

    def __init__(self, constraint: DeviceConstraint) -> None:
        attribute = constraint.matchAttribute or constraint.distinctAttribute
        if attribute is None:
            raise NotModelledError("a constraint with neither matchAttribute nor distinctAttribute")
        self._attribute = attribute
        self._requests = frozenset(constraint.requests or ())
        self._is_match = constraint.matchAttribute is not None
        # Of the devices that were added; of `matchAttribute` what the devices so far have in common.
        self._values: list[Values] = []

    def add(self, request: Request, item: PoolDevice) -> bool:
        """Whether the device can be added to the devices so far, and adds it."""
        if not self._covers(request):
            return True
        values = _values_of(item, self._attribute)
        if not values:
            return False
        if not self._is_match:
            if any(values & other for other in self._values):
                return False
        elif self._values:
            values &= self._values[-1]
            if not values:
                return False
        self._values.append(values)
        return True

    def remove(self, request: Request) -> None:
        """Removes the device that was added last, which is one of the request."""
        if self._covers(request):
            self._values.pop()

    def _covers(self, request: Request) -> bool:
        requests = self._requests
        return not requests or request.full_name in requests or (bool(request.parent) and request.parent in requests)


def _values_of(item: PoolDevice, name: str) -> Values | None:
    """Returns the values of an attribute, None for a device without it. A name without domain has the driver's."""
    attributes = item.device.attributes or {}
    attribute = attributes.get(name)
    if attribute is None:
        domain, _, identifier = name.partition("/")
        attribute = attributes.get(identifier) if identifier and domain == item.id.driver else None
    return None if attribute is None else _as_set(attribute)


def _as_set(attribute: DeviceAttribute) -> Values:
    for kind, one, several in (
        ("int", attribute.integer, attribute.ints),
        ("bool", attribute.boolean, attribute.bools),
        ("string", attribute.string, attribute.strings),
        ("version", attribute.version, attribute.versions),
    ):
        values = several or (() if one is None else (one,))
        if values:
            return frozenset([(kind, value) for value in values])
    return frozenset()
