"""Reflectors of ResourceSlices, ResourceClaims, ResourceClaimTemplates and DeviceClasses, which keep `Claims` current.

Invariant: after a list, `Claims` has exactly the listed objects, or newer versions that a bind has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from topowise.errors import ParseError
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector
from topowise_scheduler.options.claims import objects
from topowise_scheduler.options.claims.ledger import Claims, Sized
from topowise_scheduler.options.claims.objects import DeviceClass, ResourceClaim, ResourceSlice

# v1 is served since 1.34, v1beta2 since 1.33; both have the same fields.
_API: Final = "/apis/resource.k8s.io/v1"
_OLDER: Final = "/apis/resource.k8s.io/v1beta2"
NAMESPACES: Final = f"{_API}/namespaces"
_CLASSES: Final = (f"{_API}/deviceclasses", f"{_OLDER}/deviceclasses")
_SLICES: Final = (f"{_API}/resourceslices", f"{_OLDER}/resourceslices")
_CLAIMS: Final = (f"{_API}/resourceclaims", f"{_OLDER}/resourceclaims")
_TEMPLATES: Final = (f"{_API}/resourceclaimtemplates", f"{_OLDER}/resourceclaimtemplates")

Item = TypeVar("Item", ResourceSlice, ResourceClaim, DeviceClass)


def reflectors(api: Api, claims: Claims) -> list[Reflector[Any]]:
    """Returns a reflector for each collection. A cluster without the API has no devices of claims."""
    consumers: list[tuple[tuple[str, str], Callable[..., Any], Any]] = [
        (_CLASSES, objects.decode_class, _Classes(claims)),
        (_SLICES, objects.decode_slice, _Slices(claims)),
        (_CLAIMS, objects.decode_claim, _ClaimObjects(claims)),
    ]
    if claims.drivers:
        consumers.append((_TEMPLATES, objects.decode_template, _ClaimObjects(claims, are_templates=True)))
    return [
        Reflector(api, path, partial(_sized, decode), consumer, missing_is_empty=True, instead=(older,))
        for (path, older), decode, consumer in consumers
    ]


def decode_claim(raw: bytes | msgspec.Raw) -> Sized[ResourceClaim]:
    """Returns a claim from its JSON. Raises msgspec.DecodeError."""
    return _sized(objects.decode_claim, raw)


def decode_template(raw: bytes | msgspec.Raw) -> Sized[ResourceClaim]:
    """Returns the claim that is made from a template, from the JSON of the template. Raises msgspec.DecodeError."""
    return _sized(objects.decode_template, raw)


def _sized(decode: Callable[[bytes | msgspec.Raw], Item], raw: bytes | msgspec.Raw) -> Sized[Item]:
    try:
        return Sized(decode(raw), memoryview(raw).nbytes)
    except ParseError as exc:
        # The reflector logs the object and leaves it out.
        raise msgspec.DecodeError(str(exc)) from exc


class _Slices:
    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    def replace(self, items: list[Sized[ResourceSlice]]) -> Iterable[None]:
        for name in self._claims.slices - {item.name for item in items}:
            self._claims.drop_slice(name)
            yield
        for item in items:
            self._claims.put_slice(item)
            yield

    def apply(self, event: EventType, item: Sized[ResourceSlice]) -> None:
        if event == "DELETED":
            self._claims.drop_slice(item.name)
        else:
            self._claims.put_slice(item)


class _ClaimObjects:
    def __init__(self, claims: Claims, *, are_templates: bool = False) -> None:
        self._claims = claims
        self._are_templates = are_templates

    def replace(self, items: list[Sized[ResourceClaim]]) -> Iterable[None]:
        before = {key for key in self._claims.keys if key.endswith("/") == self._are_templates}
        for key in before - {item.item.key for item in items}:
            self._claims.drop_claim(key)
            yield
        for item in items:
            self._claims.put_claim(item)
            yield

    def apply(self, event: EventType, item: Sized[ResourceClaim]) -> None:
        if event == "DELETED":
            self._claims.drop_claim(item.item.key)
        else:
            self._claims.put_claim(item)


class _Classes:
    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    def replace(self, items: list[Sized[DeviceClass]]) -> None:
        for name in self._claims.classes - {item.name for item in items}:
            self._claims.drop_class(name)
        for item in items:
            self._claims.put_class(item)

    def apply(self, event: EventType, item: Sized[DeviceClass]) -> None:
        if event == "DELETED":
            self._claims.drop_class(item.name)
        else:
            self._claims.put_class(item)
