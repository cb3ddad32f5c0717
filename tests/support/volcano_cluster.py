"""A cluster whose pods a real volcano-scheduler places, with the recipe's configuration, on a real API server.

This module replaces volcano-controller-manager: it opens queues, and makes a PodGroup for a pod without a group. The
PodGroups have no `minResources`, with which the action `enqueue` would exclude jobs by sums before any call of the
extender.

volcano-scheduler must be beside etcd and kube-apiserver, Volcano's CRDs (config/crd/volcano/bases of its sources) in
`$VOLCANO_CRDS` or in the directory volcano-crds beside the directory of the binaries.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import yaml

from real_cluster import PODS, Cluster
from sandbox import controlplane
from sandbox.apiserver import documents
from sandbox.controlplane import ControlPlane
from sandbox.processes import Process, Servers, free_ports
from topowise import pods
from topowise.errors import ApiError
from topowise.kube.api import MERGE_PATCH
from topowise_exporter.publish import numatopology

Json = dict[str, Any]

BINARY: Final = "volcano-scheduler"
SCHEDULER: Final = "volcano"
GROUP: Final = "scheduling.k8s.io/group-name"
QUEUE: Final = "scheduling.volcano.sh/queue-name"
POLICY: Final = "volcano.sh/numa-topology-policy"
QUEUES: Final = "/apis/scheduling.volcano.sh/v1beta1/queues"
POD_GROUPS: Final = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
_RECIPES: Final = Path(__file__).parents[2] / "charts" / "topowise" / "recipes" / "volcano"
_API_VERSION: Final = "scheduling.volcano.sh/v1beta1"
# Volcano's default is a second; a shorter period only shortens the test.
_PERIOD: Final = "300ms"

ASSETS: Final = controlplane.assets(BINARY)


def _definitions() -> Path | None:
    folder = Path(os.environ.get("VOLCANO_CRDS") or (ASSETS.parent / "volcano-crds" if ASSETS else "volcano-crds"))
    return folder if (folder / "scheduling.volcano.sh_podgroups.yaml").is_file() else None


DEFINITIONS: Final = _definitions()
MISSING: Final = (
    None
    if ASSETS is not None and DEFINITIONS is not None
    else "no volcano-scheduler beside etcd and kube-apiserver in $KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin"
    if ASSETS is None
    else "no CRDs of Volcano in $VOLCANO_CRDS or in volcano-crds beside the folder of the binaries"
)


def configuration(prefix: str, *, extender: bool, numa_aware: bool, reclaims: bool, actions: str = "") -> Json:
    """Returns the recipe's volcano-scheduler.conf, with the service at `prefix`. `reclaims`: changed as documented, so
    that the service takes part in the choice of victims of the action reclaim."""
    document: Json = yaml.safe_load((_RECIPES / "volcano-scheduler.conf").read_text())
    first, second = (tier["plugins"] for tier in document["tiers"])
    asking = next(plugin for plugin in first if plugin["name"] == "extender")
    asking["arguments"]["extender.urlPrefix"] = f"{prefix}/volcano"
    if reclaims:
        next(plugin for plugin in first if plugin["name"] == "gang")["enableReclaimable"] = False
        shares = next(plugin for plugin in second if plugin["name"] == "proportion")
        second.remove(shares)
        first.insert(first.index(asking), shares)
    if not extender:
        first.remove(asking)
    if numa_aware:
        second.append({"name": "numa-aware", "arguments": {"weight": 10}})
    return {**document, **({"actions": actions} if actions else {})}


class VolcanoScheduler(Servers):
    """volcano-scheduler as a context manager; its configuration and `log` are files below `work`. Flags are 1.16's."""

    def __init__(self, plane: ControlPlane, document: Json, work: Path) -> None:
        self._plane = plane
        self._document = document
        self._work = work
        self.log = work / f"{BINARY}.log"

    def _start(self, stack: ExitStack) -> None:
        # The folder of the configuration is watched: a log in it would be read again at each of its lines.
        watched = self._work / "conf"
        watched.mkdir(parents=True)
        (watched / "volcano-scheduler.conf").write_text(yaml.safe_dump(self._document, sort_keys=False))
        # A socket's path must be short.
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="volcano-"))
        health, address = free_ports(2)
        arguments = [
            "env",
            f"DEBUG_SOCKET_DIR={sockets}",
            str(self._plane.folder / BINARY),
            f"--kubeconfig={self._plane.kubeconfig(self._work / 'kubeconfig')}",
            f"--scheduler-conf={watched / 'volcano-scheduler.conf'}",
            f"--schedule-period={_PERIOD}",
            "--leader-elect=false",
            "--cache-dumper=false",
            "--enable-healthz",
            f"--healthz-address=127.0.0.1:{health}",
            f"--listen-address=127.0.0.1:{address}",
            "-v=3",
        ]
        child = stack.enter_context(Process(BINARY, arguments, self.log))
        child.wait_until_ready(f"http://127.0.0.1:{health}/healthz")


class VolcanoCluster(Cluster):
    """`extender`: our service is asked; `numa_aware`: so is Volcano's own plug-in; `actions`: not the recipe's;
    `reclaims`: see `configuration`."""

    definitions = (*Cluster.definitions, *(documents.load_all(DEFINITIONS) if DEFINITIONS else ()))
    cleared = (*Cluster.cleared, POD_GROUPS, numatopology.PATH)

    def __init__(
        self,
        *arguments: Any,
        extender: bool = True,
        numa_aware: bool = False,
        reclaims: bool = False,
        actions: str = "",
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._extender = extender
        self._numa_aware = numa_aware
        self._reclaims = reclaims
        self._actions = actions

    async def start_scheduler(self, number: int = 0) -> None:
        document = configuration(
            self.services[number].prefix,
            extender=self._extender,
            numa_aware=self._numa_aware,
            reclaims=self._reclaims,
            actions=self._actions,
        )
        scheduler = VolcanoScheduler(self.plane, document, self._directory / f"{BINARY}-{time.monotonic_ns()}")
        await asyncio.to_thread(scheduler.__enter__)
        self.schedulers[number] = scheduler

    async def create(self, document: Json, path: str = PODS) -> None:
        """Creates an object. A pod without a group gets its own PodGroup, as Volcano's controller makes it."""
        if path == PODS:
            document = {**document, "spec": {**document["spec"], "schedulerName": SCHEDULER}}
            meta = document["metadata"]
            annotations = meta.get("annotations") or {}
            if GROUP not in annotations:
                group = f"podgroup-{meta['name']}"
                await self.create_group(
                    group,
                    1,
                    priority_class=document["spec"].get("priorityClassName", ""),
                    queue=annotations.get(QUEUE, "default"),
                )
                document["metadata"] = {**meta, "annotations": {**annotations, GROUP: group}}
        await super().create(document, path)

    async def create_group(
        self, name: str, min_member: int, *, priority_class: str = "", queue: str = "default"
    ) -> None:
        """A PodGroup."""
        spec: Json = {"minMember": min_member, "queue": queue}
        if priority_class:
            spec["priorityClassName"] = priority_class
        await super().create(
            {"apiVersion": _API_VERSION, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}, POD_GROUPS
        )

    async def create_gang(self, name: str, members: int, spec: Json, annotations: Json | None = None) -> None:
        """A PodGroup of equal pods of which all or none are to run."""
        await self.create_group(name, members, priority_class=spec.get("priorityClassName", ""))
        for number in range(members):
            meta = {"name": f"{name}-{number}", "annotations": {**(annotations or {}), GROUP: name}}
            await self.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    async def groups(self) -> dict[str, list[Json]]:
        """Returns the pods of each PodGroup."""
        by_group: dict[str, list[Json]] = defaultdict(list)
        for pod in await self.pods():
            by_group[pod["metadata"]["annotations"][GROUP]].append(pod)
        return by_group

    def takes_all(self, waiting: list[Json]) -> bool:
        """Returns whether the kubelets, in their true state, would admit these equal pods together."""
        equal = [pods.decode(json.dumps(pod).encode()) for pod in waiting]
        named = {name for name, amount in pods.needs(equal[0]).requests.items() if amount > 0}
        for node in self.fleet.nodes.values():
            if named <= node.kubelet.allocatable().keys():
                equal = equal[node.kubelet.would_admit_of(equal) :]
        return not equal

    async def divided(self) -> dict[str, str]:
        """Returns the PodGroups with some assigned and some unassigned pods."""
        return {
            name: f"{bound} of {len(members)}"
            for name, members in (await self.groups()).items()
            if 0 < (bound := sum(bool(member["spec"].get("nodeName")) for member in members)) < len(members)
        }

    async def assert_all_well(self) -> None:
        """No kubelet has refused a pod, no group is divided, and none waits beside room."""
        assert not self.refusals
        assert not await self.divided()
        waiting = {
            name: members
            for name, members in (await self.groups()).items()
            if not any(member["spec"].get("nodeName") for member in members)
        }
        assert not [name for name, members in waiting.items() if self.takes_all(members)]

    async def conditions(self) -> Counter[str]:
        """What Volcano says of the pods that wait."""
        return Counter(
            condition.get("message", "")
            for pod in await self.waiting()
            for condition in pod["status"].get("conditions") or ()
            if condition["type"] == "PodScheduled"
        )

    def _settings(self, number: int) -> Json:
        recipe: Json = yaml.safe_load((_RECIPES / "scheduler.yaml").read_text())
        return {"volcano": recipe["volcano"], "requeue": recipe["requeue"]}

    async def _define(self) -> None:
        await super()._define()
        await self.open_queue("root")
        await self.open_queue("default", parent="root")

    async def open_queue(self, name: str, **spec: Any) -> None:
        """A queue, there and open."""
        queue = {"apiVersion": _API_VERSION, "kind": "Queue", "metadata": {"name": name}, "spec": {"weight": 1, **spec}}
        deadline = time.monotonic() + 30
        while True:
            try:
                await self.api.request("POST", QUEUES, body=json.dumps(queue).encode())
                break
            except ApiError as exc:
                # An earlier cluster may have left the queue; the CRD may not be served yet.
                if exc.status == 409:
                    break
                if exc.status != 404 or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)
        state = json.dumps({"status": {"state": "Open"}}).encode()
        await self.api.request("PATCH", f"{QUEUES}/{name}/status", body=state, content_type=MERGE_PATCH)
