"""Reflectors that keep the ledger true: NRTs, nodes and pods, each its own task."""

from __future__ import annotations

import msgspec

from topowise import nrt, pods
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector
from topowise_scheduler.cluster.ledger import Ledger


class _Named(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class Node(msgspec.Struct, frozen=True, gc=False):
    """What is used of a v1.Node."""

    metadata: _Named


class _Topologies:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def replace(self, items: list[nrt.NodeResourceTopology]) -> None:
        listed = {item.metadata.name for item in items}
        for name in self._ledger.nodes():
            if name not in listed:
                self._ledger.drop_topology(name)
        for item in items:
            self._ledger.put_topology(item)

    def apply(self, event: EventType, item: nrt.NodeResourceTopology) -> None:
        if event == "DELETED":
            self._ledger.drop_topology(item.metadata.name)
        else:
            self._ledger.put_topology(item)


class _Nodes:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def replace(self, items: list[Node]) -> None:
        self._ledger.known = {item.metadata.name for item in items}

    def apply(self, event: EventType, item: Node) -> None:
        if event == "DELETED":
            self._ledger.known.discard(item.metadata.name)
        else:
            self._ledger.known.add(item.metadata.name)


class _Pods:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._held: set[str] = set()
        self._is_first = True

    def replace(self, items: list[pods.Pod]) -> None:
        listed = {item.metadata.uid for item in items}
        for uid in self._held - listed:
            self._ledger.drop_pod(uid)
        self._held = listed
        for item in items:
            self._ledger.put_pod(item, is_news=not self._is_first)
        self._is_first = False

    def apply(self, event: EventType, item: pods.Pod) -> None:
        uid = item.metadata.uid
        if event == "DELETED":
            self._held.discard(uid)
            self._ledger.drop_pod(uid)
        else:
            self._held.add(uid)
            self._ledger.put_pod(item)


def reflectors(
    api: Api, ledger: Ledger
) -> list[Reflector[nrt.NodeResourceTopology] | Reflector[Node] | Reflector[pods.Pod]]:
    """One for each collection. A cluster without the NRT CRD is one in which no node has been reported yet."""
    decode_node = msgspec.json.Decoder(Node).decode
    return [
        Reflector(api, nrt.PATH, nrt.decode, _Topologies(ledger), missing_is_empty=True),
        Reflector(api, "/api/v1/nodes", decode_node, _Nodes(ledger)),
        Reflector(api, "/api/v1/pods", pods.decode, _Pods(ledger)),
    ]
