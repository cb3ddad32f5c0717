"""Conversations with another project's scheduler about a node of topowise, and their recordings.

A `Scene` is a node with an emulated kubelet, its pods as the API server shows them, and pods to schedule. `object_of`
makes the object that topowise-exporter publishes, from /sys and podresources bytes. A recorded conversation
(tests/interop/recorded) has the object, the pods, the questions, and the answers of the other project's own code, with
its version. Only topowise's half can be made again here.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Coroutine, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from sandbox import machines
from sandbox.hollow.fleet import scanned
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.podresources import PodResourcesServicer
from topowise import pods
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter import machine as hardware
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.allocations import Allocations
from topowise_exporter.kubelet.podresources import PodDecoder, decode_allocatable
from topowise_exporter.publish import numatopology
from topowise_exporter.publish.topology import Observation, Published, Publishing, build
from trees import plant

NODE: Final = "metal"
GIB: Final = 1 << 30

# Attributes that only topowise-scheduler reads.
_OURS: Final = "topowise.io/"


class Scene(msgspec.Struct, frozen=True):
    """A node and pods. `machine` is a machine of the sandbox, or the name of a directory of tests/machines. `bound` are
    the node's pods in the order of their admission; `asked` are the pods to schedule."""

    machine: machines.Machine | str
    kubelet: KubeletConfiguration
    bound: tuple[dict[str, Any], ...] = ()
    asked: tuple[dict[str, Any], ...] = ()
    publishing: Publishing = Publishing()
    excluded: Exclusions = Exclusions()
    instead: tuple[str, str] | None = None
    """A text of the object and what is put in its place, for objects that we never publish."""
    has_gaps: bool = False
    """Whether the object lacks the empty zones of ids that no NUMA node has, also never published."""


def pod(
    name: str,
    *containers: Mapping[str, str],
    init: tuple[Mapping[str, str], ...] = (),
    sidecars: tuple[Mapping[str, str], ...] = (),
    phase: str = "Running",
    namespace: str = "default",
    limits: bool = True,
    static: bool = False,
    terminating: bool = False,
) -> dict[str, Any]:
    """Returns a v1.Pod. Requests are limits as well, unless told otherwise."""

    def made(prefix: str, containers_of: tuple[Mapping[str, str], ...], **more: str) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{prefix}{number}",
                "resources": {"requests": dict(amounts), **({"limits": dict(amounts)} if limits else {})}
                if amounts
                else {},
                **more,
            }
            for number, amounts in enumerate(containers_of)
        ]

    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    if static:
        metadata["annotations"] = {"kubernetes.io/config.mirror": "abc", "kubernetes.io/config.source": "file"}
    if terminating:
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    spec: dict[str, Any] = {"nodeName": NODE, "schedulerName": "elsewhere", "containers": made("c", containers)}
    if init or sidecars:
        spec["initContainers"] = [*made("s", sidecars, restartPolicy="Always"), *made("i", init)]
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase}}


def question(name: str, *containers: Mapping[str, str], limits: bool = True) -> dict[str, Any]:
    """Returns a pod that is on no node yet."""
    manifest = pod(name, *containers, phase="Pending", limits=limits)
    manifest["spec"] = {"containers": manifest["spec"]["containers"]}
    return manifest


class Stage(msgspec.Struct, frozen=True):
    """A scene with its kubelet at work."""

    scene: Scene
    node: EmulatedNode
    seen: Observation

    def published(self) -> Published:
        """Returns what topowise-exporter publishes."""
        return build(NODE, self.seen, self.scene.publishing, self.scene.excluded)

    def shown(self) -> dict[str, Any]:
        """Returns the published object without what no other scheduler reads, as JSON has it."""
        text = msgspec.json.encode(self.published().topology).decode()
        whole = json.loads(text.replace(*self.scene.instead) if self.scene.instead else text)
        if self.scene.has_gaps:
            whole["zones"] = [zone for zone in whole["zones"] if zone.get("resources")]
        for part in (whole, *whole["zones"]):
            attributes = [
                attribute for attribute in part.get("attributes", ()) if not attribute["name"].startswith(_OURS)
            ]
            part["attributes"] = attributes
        return dict(whole)

    def shown_to_volcano(self) -> dict[str, Any]:
        """Returns the Numatopology, as JSON has it."""
        topology = numatopology.observed(NODE, self.seen, self.scene.excluded)
        return dict(json.loads(msgspec.json.encode(topology)))

    def status(self) -> dict[str, Any]:
        """Returns the v1.Node."""
        amounts = {"capacity": self.node.capacity(), "allocatable": self.node.allocatable()}
        return {"metadata": {"name": NODE}, "status": amounts}

    def would_admit(self, manifest: Mapping[str, Any]) -> str:
        """What the kubelet would say; "" for yes."""
        decision = self.node.would_admit(decoded(manifest))
        return "" if decision.admitted else decision.reason


def decoded(document: Mapping[str, Any]) -> pods.Pod:
    """Returns the pod as topowise decodes it."""
    return pods.decode(json.dumps(document).encode())


@cache
def _machine_of(folder: str) -> hardware.Machine:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        plant(folder, root)
        return hardware.scan(str(root / "sys"), str(root / "proc"))


def _answer(call: Coroutine[Any, Any, Any]) -> Any:
    """What the call returns; it waits for nothing."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the emulated kubelet waited for something")


def staged(scene: Scene) -> Stage:
    """Lets the kubelet admit what is bound to it, and looks at it as the exporter does."""
    machine = _machine_of(scene.machine) if isinstance(scene.machine, str) else scanned(scene.machine)
    node = EmulatedNode(machine, scene.kubelet)
    for bound in scene.bound:
        if bound["status"]["phase"] in ("Running", "Pending"):
            decision = node.admit(decoded(bound))
            assert decision.admitted, (bound["metadata"]["name"], decision.message)
            node.start(bound["metadata"]["uid"])
    servicer = PodResourcesServicer(node.holdings)

    nobody: Any = None
    allocatable = _answer(servicer.GetAllocatableResources(nobody, nobody))
    listed = _answer(servicer.List(nobody, nobody))
    decoded_pods = PodDecoder("socket").decode(listed.SerializeToString())
    return Stage(
        scene, node, Observation(machine, scene.kubelet, Allocations(decode_allocatable(allocatable), decoded_pods))
    )
