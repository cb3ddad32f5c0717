"""A cluster with devices of resource claims (DRA): hollow nodes with ResourceSlices, real controllers of claims.

The kubelets do not prepare claims: their Topology Manager decides without them, and that decision is what matters here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self

import pytest

from real_cluster import PODS, SCHEDULER, Json
from sandbox import controlplane
from sandbox.controlplane import ControllerManager, ControlPlane, assets
from sandbox.hollow import LIFETIME
from steered_cluster import SteeredCluster, steered
from topowise import steering

DRIVER: Final = "gpu.example.com"
GROUP: Final = "/apis/resource.k8s.io/v1"
SLICES: Final = f"{GROUP}/resourceslices"
CLASSES: Final = f"{GROUP}/deviceclasses"
CLAIMS: Final = f"{GROUP}/namespaces/default/resourceclaims"
TEMPLATES: Final = f"{GROUP}/namespaces/default/resourceclaimtemplates"
ALIGNMENT: Final = "topowise.io/claim-alignment"
_MOST_DEVICES: Final = 4
# Of a burst: pods at once, pods that may wait, and the time between two looks at all claims (seconds).
_AT_ONCE: Final = 10
_BACKLOG: Final = 60
_LOOK_S: Final = 0.25
# On a busy machine a pod takes a quarter of a second, and as long as its label if it is steered.
_SECONDS_PER_POD: Final = 2.0
_STILL_S: Final = 10.0


class Alignment(NamedTuple):
    """Where a running pod is: NUMA nodes of its CPUs and of its claimed devices."""

    cpus: set[int]
    devices: set[int]

    @property
    def is_aligned(self) -> bool:
        """Returns whether the CPUs are on NUMA nodes of the devices."""
        return self.cpus <= self.devices


class Burst:
    """What is seen of a burst: where pods with claims were, by name; pods that have not ended by themselves; pods that
    wait for a node; devices that two claims had at the same time; how often all claims were compared; the time until
    all pods were bound (seconds)."""

    def __init__(self, names: Collection[str]) -> None:
        self.alignments: dict[str, Alignment] = {}
        self.lost = set(names)
        self.waiting = 0
        self.twice: set[tuple[str, str]] = set()
        self.looks = 0
        self.seconds = 0.0


class ClaimsCluster(SteeredCluster):
    """`devices` are the NUMA nodes of the devices of each node, in the order of the slice. With `steers` every node has
    the marker plug-in. `claims` is the section of the service's configuration, None: not enabled; `more` are further
    sections."""

    cleared = (
        *SteeredCluster.cleared,
        CLAIMS,
        TEMPLATES,
        SLICES,
        CLASSES,
    )

    def __init__(
        self,
        plane: ControlPlane,
        directory: Path,
        nodes: int,
        *,
        devices: Collection[int] = (*[0] * 8, *[1] * 8),
        steers: bool = True,
        claims: Json | None = None,
        more: Json | None = None,
        **options: Any,
    ) -> None:
        if assets(controlplane.BINARY) is None:
            pytest.skip(f"no {controlplane.BINARY} beside kube-apiserver")
        names = [f"n{number}" for number in range(nodes)]
        super().__init__(plane, directory, nodes, without=() if steers else names, **options)
        self._devices = tuple(devices)
        self._deleted: set[str] = set()
        if not steers:
            del self._more["steering"]
        if claims is not None:
            self._more = {**self._more, "resourceClaims": {"enabled": True, **claims}}
        self._more = {**self._more, **(more or {})}

    async def __aenter__(self) -> Self:
        controllers = ControllerManager(self.plane, self._work / "controllers")
        await asyncio.to_thread(controllers.__enter__)
        try:
            await super().__aenter__()
        except BaseException:
            await asyncio.to_thread(controllers.__exit__, None, None, None)
            raise
        # The pods go before the controllers, which free their claims.
        self._stack.push_async_callback(self._end, controllers)
        expression = f'device.driver == "{DRIVER}"'
        await self.create(_object("DeviceClass", "gpu", {"selectors": [{"cel": {"expression": expression}}]}), CLASSES)
        for count in range(1, _MOST_DEVICES + 1):
            request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}
            # The devices of a claim are on one NUMA node, as a workload with several GPUs asks for it.
            constraint = {"requests": ["gpu"], "matchAttribute": "resource.kubernetes.io/numaNode"}
            spec = {"spec": {"devices": {"requests": [request], "constraints": [constraint]}}}
            await self.create(_object("ResourceClaimTemplate", f"gpus-{count}", spec), TEMPLATES)
        for name in self.fleet.nodes:
            await self.publish(name, self._devices)
        # A plug-in refuses requests for ten seconds after its kubelet's start.
        for name in self.plugins:
            await self.create(steered(f"warm-{name}", 1, 1, nodeSelector={"kubernetes.io/hostname": name}))
        for name in self.plugins:
            await self.until_bound(f"warm-{name}")
            await self.delete(f"warm-{name}")
        await self.settle(still=0.5)
        return self

    async def publish(self, node: str, devices: Collection[int], pool: str = "") -> None:
        """Creates the ResourceSlice of a node, as a DRA driver does."""
        listed = [
            {"name": f"gpu-{number}", "attributes": {"resource.kubernetes.io/numaNode": {"int": numa}}}
            for number, numa in enumerate(devices)
        ]
        spec = {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
            "devices": listed,
        }
        await self.create(_object("ResourceSlice", f"{pool or node}-{DRIVER}", spec), SLICES)

    async def alignments(self) -> dict[str, Alignment]:
        """Returns where each running pod with claims is."""
        claims = json.loads(await self.api.request("GET", CLAIMS))["items"]
        return self._alignments(claims, await self.pods())

    def _alignments(self, claims: Collection[Json], pods: Collection[Json]) -> dict[str, Alignment]:
        numa = {f"gpu-{number}": node for number, node in enumerate(self._devices)}
        devices: dict[str, set[int]] = {}
        for claim in claims:
            results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", [])
            for user in (claim.get("status") or {}).get("reservedFor") or []:
                devices.setdefault(user["name"], set()).update(numa[result["device"]] for result in results)
        running = {
            pod["metadata"]["name"]
            for pod in pods
            if pod["status"].get("phase") == "Running" and pod["spec"].get("resourceClaims")
        }
        placed = self.numa_of_all()
        return {name: Alignment(placed.get(name, set()), devices.get(name, set())) for name in sorted(running)}

    async def run_burst(self, pods: int, draw: Random, lifetimes: tuple[float, float], **fields: Any) -> Burst:
        """Creates pods as fast as they are taken, a third of them without claims, and looks at all claims meanwhile."""
        loop = asyncio.get_running_loop()
        started, names = loop.time(), [f"b{number}" for number in range(pods)]
        seen = Burst(names)
        looking = asyncio.create_task(self._look(seen))
        try:
            for first in range(0, pods, _AT_ONCE):
                stuck = loop.time() + _STILL_S
                while seen.waiting >= _BACKLOG and loop.time() < stuck:
                    await asyncio.sleep(0.05)
                created = (
                    claimed(
                        name,
                        draw.randint(1, _MOST_DEVICES) if number % 3 else 0,
                        draw.randint(2, 6),
                        lifetime=draw.uniform(*lifetimes),
                        **fields,
                    )
                    for number, name in enumerate(names[first : first + _AT_ONCE], first)
                )
                await asyncio.gather(*(self.create(pod) for pod in created))
                seen.waiting += _AT_ONCE
            await self._until(seen, looking, started + _SECONDS_PER_POD * pods)
            seen.seconds = loop.time() - started
            await self.settle(120.0)
            await self._until(seen, looking, loop.time() + 60)
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking
        return seen

    async def _until(self, seen: Burst, looking: asyncio.Task[None], end: float) -> None:
        """Waits for two looks, and until no pod waits for a node."""
        last = seen.looks
        while (seen.looks < last + 2 or seen.waiting) and not looking.done():
            assert asyncio.get_running_loop().time() < end, f"{seen.waiting} pods of a burst still wait for a node"
            await asyncio.sleep(0.1)

    async def _look(self, seen: Burst) -> None:
        """Looks at all claims and pods until it is cancelled, and deletes pods that have ended: a look stays short."""
        while True:
            self.check()
            claims, pods = json.loads(await self.api.request("GET", CLAIMS))["items"], await self.pods()
            seen.twice.update(_given_twice(claims))
            # A pod that has just ended has neither CPUs nor devices.
            alignments = self._alignments(claims, pods).items()
            seen.alignments.update({name: at for name, at in alignments if at.cpus and at.devices})
            seen.waiting = sum(not pod["spec"].get("nodeName") for pod in pods)
            ended = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Succeeded"]
            seen.lost -= {*ended}
            await asyncio.gather(*(self.delete(name) for name in ended if name not in self._deleted))
            self._deleted.update(ended)
            seen.looks += 1
            await asyncio.sleep(_LOOK_S)

    async def _end(self, controllers: ControllerManager) -> None:
        for path in (PODS, CLAIMS):
            await self.api.request("DELETE", path, query={"gracePeriodSeconds": "0"}, timeout=60)
        async with asyncio.timeout(60):
            while json.loads(await self.api.request("GET", CLAIMS))["items"]:
                await asyncio.sleep(0.1)
        await asyncio.to_thread(controllers.__exit__, None, None, None)


def _given_twice(claims: Collection[Json]) -> set[tuple[str, str]]:
    """Returns the devices that are in the allocations of several claims, as pool and device."""
    given = Counter(
        (result["pool"], result["device"])
        for claim in claims
        for result in ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", [])
    )
    return {device for device, count in given.items() if count > 1}


def claimed(
    name: str,
    devices: int,
    cpus: int,
    *,
    alignment: str = "",
    markers: bool = True,
    lifetime: float | None = None,
    **spec: Any,
) -> Json:
    """Returns a Guaranteed pod with whole CPUs; with `devices` it has a claim for so many."""
    sizes = {"cpu": str(cpus), "memory": "256Mi", **({steering.RESOURCE: "1"} if markers else {})}
    container: Json = {"name": "app", "image": "none", "resources": {"requests": dict(sizes), "limits": dict(sizes)}}
    annotations = {} if lifetime is None else {LIFETIME: f"{lifetime:.3f}"}
    if alignment:
        annotations[ALIGNMENT] = alignment
    fields: Json = {"schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    if devices:
        container["resources"]["claims"] = [{"name": "gpus"}]
        fields["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": f"gpus-{devices}"}]
    metadata = {"name": name, "namespace": "default", "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": fields}


def _object(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
