"""A cluster with devices of resource claims (DRA): hollow nodes with ResourceSlices, real controllers of claims.

The kubelets do not prepare claims: their Topology Manager decides without them, and that decision is what matters here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self

import pytest

from real_cluster import PODS, SCHEDULER, Json
from sandbox import controller_manager
from sandbox.controller_manager import ControllerManager
from sandbox.controlplane import ControlPlane, assets
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
_WAVE: Final = 9
_STILL_S: Final = 10.0


class Alignment(NamedTuple):
    """Where a running pod is: NUMA nodes of its CPUs and of its claimed devices."""

    cpus: set[int]
    devices: set[int]

    @property
    def is_aligned(self) -> bool:
        """Returns whether the CPUs are on NUMA nodes of the devices."""
        return self.cpus <= self.devices


class Waves(NamedTuple):
    """Where pods with claims were, by name, pods that found no node, and how long each wave took until nothing changed
    (seconds)."""

    alignments: dict[str, Alignment]
    waiting: list[str]
    seconds: list[float]


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
        if assets(controller_manager.BINARY) is None:
            pytest.skip(f"no {controller_manager.BINARY} beside kube-apiserver")
        names = [f"n{number}" for number in range(nodes)]
        super().__init__(plane, directory, nodes, without=() if steers else names, **options)
        self._devices = tuple(devices)
        self._more = {} if not steers else self._more
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
        numa = {f"gpu-{number}": node for number, node in enumerate(self._devices)}
        claims = json.loads(await self.api.request("GET", CLAIMS))["items"]
        devices: dict[str, set[int]] = {}
        for claim in claims:
            results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", [])
            for user in (claim.get("status") or {}).get("reservedFor") or []:
                devices.setdefault(user["name"], set()).update(numa[result["device"]] for result in results)
        running = {
            pod["metadata"]["name"]
            for pod in await self.pods()
            if pod["status"].get("phase") == "Running" and pod["spec"].get("resourceClaims")
        }
        return {name: Alignment(self.numa(name), devices.get(name, set())) for name in sorted(running)}

    async def claim(self, pod: str) -> Json:
        """Returns the claim of a pod that was made from its template."""
        status = json.loads(await self.api.request("GET", f"{PODS}/{pod}"))["status"]
        (name,) = [item["resourceClaimName"] for item in status["resourceClaimStatuses"]]
        claim: Json = json.loads(await self.api.request("GET", f"{CLAIMS}/{name}"))
        return claim

    async def run_waves(self, waves: int, draw: Random, **fields: Any) -> Waves:
        """Runs pods in waves: of each wave a third has no claims, and after it two of three pods end."""
        seen, running = Waves({}, [], []), list[str]()
        for wave in range(waves):
            pods = [
                claimed(f"w{wave}-{at}", draw.randint(1, 4) if at % 3 else 0, draw.randint(2, 6), **fields)
                for at in range(_WAVE)
            ]
            started = asyncio.get_running_loop().time()
            await asyncio.gather(*(self.create(pod) for pod in pods))
            running += [pod["metadata"]["name"] for pod in pods]
            waiting = await self._until_running(running)
            seen.seconds.append(asyncio.get_running_loop().time() - started)
            seen.waiting.extend(waiting)
            seen.alignments.update(await self.alignments())
            ending = {*draw.sample(running, len(running) * 2 // 3), *waiting}
            await asyncio.gather(*(self.delete(name) for name in ending))
            running = [name for name in running if name not in ending]
            await self.settle(still=0.3)
        return seen

    async def _until_running(self, names: Collection[str]) -> list[str]:
        """Waits until these pods run. Returns the pods that still wait when nothing has changed for ten seconds."""

        async def waiting() -> list[str]:
            self.check()
            phases = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in await self.pods()}
            return [name for name in names if phases.get(name) != "Running"]

        loop = asyncio.get_running_loop()
        last, since = await waiting(), loop.time()
        while last and loop.time() - since < _STILL_S:
            await asyncio.sleep(0.1)
            now = await waiting()
            if now != last:
                last, since = now, loop.time()
        return last

    async def _end(self, controllers: ControllerManager) -> None:
        await self.api.request("DELETE", PODS, query={"gracePeriodSeconds": "0"}, timeout=60)
        async with asyncio.timeout(60):
            while json.loads(await self.api.request("GET", CLAIMS))["items"]:
                await asyncio.sleep(0.1)
        await asyncio.to_thread(controllers.__exit__, None, None, None)


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
