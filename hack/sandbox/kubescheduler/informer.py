"""Turns a reflector's lists and events into a stream of changes, as client-go's informers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from topowise.kube.reflector import EventType

Object = TypeVar("Object")


class Informer(Generic[Object]):
    """A Consumer. `key` tells objects apart; what a new list lacks is dropped."""

    def __init__(
        self, key: Callable[[Object], str], put: Callable[[Object], None], drop: Callable[[str], None]
    ) -> None:
        self._key = key
        self._put = put
        self._drop = drop
        self._held: set[str] = set()
        self.synced = asyncio.Event()

    def replace(self, items: list[Object]) -> None:
        """The collection is exactly this."""
        there = {self._key(item) for item in items}
        for key in self._held - there:
            self._drop(key)
        self._held = there
        for item in items:
            self._put(item)
        self.synced.set()

    def apply(self, event: EventType, item: Object) -> None:
        """As Consumer: applies an event."""
        key = self._key(item)
        if event == "DELETED":
            self._held.discard(key)
            self._drop(key)
        else:
            self._held.add(key)
            self._put(item)
