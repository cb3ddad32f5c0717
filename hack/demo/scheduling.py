"""kube-scheduler's part of the demo: the requests it sends to an extender, byte for byte as 1.36 does.

One pod at a time, as its scheduling cycle is serial: filter with the nodes that have room as a whole (NodeResourcesFit,
as far as the demo needs it), prioritize with those that passed, the best of them is bound. Keys are Go's field names,
empty pointers are null, and prioritize is left out if one node remains.
Source: pkg/scheduler/extender.go, staging/src/k8s.io/kube-scheduler/extender/v1/types.go.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec

from topowise import pods, quantity
from topowise.kube.api import Api

Json = dict[str, Any]

# What Go's net/http sends of itself.
_HEADERS = {"Content-Type": "application/json", "User-Agent": "Go-http-client/1.1", "Accept-Encoding": "gzip"}


class Opinion(msgspec.Struct, frozen=True):
    """What was said of one node."""

    node: str
    was_asked: bool
    """False: kube-scheduler itself has refused the node, so the extender was not asked."""
    fits: bool
    score: int | None
    detail: str


class Outcome(msgspec.Struct, frozen=True):
    """One scheduling cycle. `chosen` is None if no node fits; `phase` and `message` are the kubelet's."""

    pod: str
    opinions: tuple[Opinion, ...]
    chosen: str | None
    phase: str = ""
    message: str = ""


class KubeScheduler:
    """Schedules pods through the extender at `prefix`."""

    def __init__(self, api: Api, session: aiohttp.ClientSession, prefix: str) -> None:
        self._api = api
        self._session = session
        self._prefix = prefix

    async def schedule(self, pod: Json, nodes: list[str]) -> Outcome:
        """Creates the pod, asks, binds, and waits for the kubelet's word."""
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
        made = msgspec.json.decode(await self._api.request("POST", path, body=msgspec.json.encode(pod)))
        name = made["metadata"]["name"]
        lacking = await self._lacking(made, nodes)
        asked = [node for node in nodes if node not in lacking]
        fits = await self._filter(made, asked) if asked else []
        scores: dict[str, int | None] = dict.fromkeys(fits)
        if len(fits) > 1:
            scores = {one["Host"]: one["Score"] for one in await self._call("prioritize", made, fits)}
        told = await self._explain(made, asked) if asked else {}
        opinions = tuple(
            Opinion(node, node in asked, node in fits, scores.get(node), told.get(node) or lacking[node])
            for node in nodes
        )
        if not fits:
            return Outcome(name, opinions, None)
        chosen = max(fits, key=lambda node: (scores[node] or 0, -nodes.index(node)))
        await self._bind(path, made, chosen)
        phase, message = await self._settled(f"{path}/{name}")
        return Outcome(name, opinions, chosen, phase, message)

    async def _filter(self, pod: Json, nodes: list[str]) -> list[str]:
        result = await self._call("filter", pod, nodes)
        if result["Error"]:
            raise aiohttp.ClientPayloadError(f"filter: {result['Error']}")
        return result["NodeNames"] or []

    async def _lacking(self, pod: Json, nodes: list[str]) -> dict[str, str]:
        """NodeResourcesFit: the nodes that as a whole have too little, and of what, in kube-scheduler's words."""
        wanted = pods.needs(pods.decode(msgspec.json.encode(pod))).requests
        room = {}
        for item in (await self._get("/api/v1/nodes"))["items"]:
            allocatable = item["status"]["allocatable"]
            room[item["metadata"]["name"]] = {
                name: quantity.for_resource(name, amount) for name, amount in allocatable.items()
            }
        for item in (await self._get("/api/v1/pods"))["items"]:
            other = pods.decode(msgspec.json.encode(item))
            if other.spec.nodeName and not other.is_terminal:
                for name, amount in pods.needs(other).requests.items():
                    room[other.spec.nodeName][name] = room[other.spec.nodeName].get(name, 0) - amount
        # A real kubelet of this machine belongs to another cluster, so its Node is not here.
        foreign = {node: "no such Node in this cluster" for node in nodes if node not in room}
        short = {
            node: [name for name, amount in sorted(wanted.items()) if amount > room[node].get(name, 0)]
            for node in nodes
            if node in room
        }
        return foreign | {node: f"Insufficient {', '.join(names)}" for node, names in short.items() if names}

    async def _get(self, path: str) -> Any:
        return msgspec.json.decode(await self._api.request("GET", path))

    async def _call(self, verb: str, pod: Json, nodes: list[str]) -> Any:
        body = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": nodes})
        url = f"{self._prefix}/{verb}"
        async with self._session.post(url, data=body, headers=_HEADERS) as response:
            response.raise_for_status()
            return msgspec.json.decode(await response.read())

    async def _explain(self, pod: Json, nodes: list[str]) -> dict[str, str]:
        """By node, why the service would say yes or no; kube-scheduler does not ask this."""
        query = [("node", name) for name in nodes]
        async with self._session.post(f"{self._prefix}/explain", params=query, json=pod) as response:
            return {one["node"]: one["text"] for one in msgspec.json.decode(await response.read())}

    async def _bind(self, path: str, pod: Json, node: str) -> None:
        meta = pod["metadata"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._api.request("POST", f"{path}/{meta['name']}/binding", body=msgspec.json.encode(binding))

    async def _settled(self, path: str, limit: float = 5.0) -> tuple[str, str]:
        """The pod's phase and message once the kubelet has decided."""
        async with asyncio.timeout(limit):
            while True:
                status = msgspec.json.decode(await self._api.request("GET", path)).get("status", {})
                if status.get("phase", "Pending") != "Pending":
                    return status["phase"], f"{status.get('reason', '')} {status.get('message', '')}".strip()
                await asyncio.sleep(0.02)
