"""Random nodes and pods, beyond what anybody would buy: up to 16 NUMA nodes and 1,024 CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

import random_nodes
from random_nodes import FPGA, GI, GPU, NIC
from sandbox.exported import hardware_of
from sandbox.kubelet.node import EmulatedNode
from topowise import pods
from topowise.errors import ConfigError
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.machine import Machine
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, KubeletStartError, NumaNode
from topowise_scheduler.kubelet import Machine as Model

Json = dict[str, Any]
CRD: Final = Path(__file__).parents[3] / "charts/topowise/crds/noderesourcetopologies.yaml"

# The mask of 16 nodes has 65,536 values, and a kubelet merges hints over all of them.
_WIDE_SHARE = 0.25


class Place(NamedTuple):
    """A node to be: its machine as the exporter scans it, its kubelet's configuration, its devices."""

    machine: Machine
    config: KubeletConfiguration
    devices: tuple[DevicePlugin, ...]
    kubelet: EmulatedNode
    """It is never given a pod."""


def places(rng: Random, count: int) -> Iterator[Place]:
    """So many nodes on which a kubelet starts."""
    while count:
        model = _wide(rng) if rng.random() < _WIDE_SHARE else random_nodes.machine(rng)
        config = random_nodes.configuration(rng, model, rng.choice(random_nodes.POLICIES))
        config = msgspec.structs.replace(config, evictionHard={})
        if len(model.numa) > 8:
            options = {**(config.topologyManagerPolicyOptions or {}), "max-allowable-numa-nodes": "16"}
            config = msgspec.structs.replace(config, topologyManagerPolicyOptions=options)
        machine = hardware_of(model)
        try:
            kubelet = EmulatedNode(machine, config, model.devices)
        except (KubeletStartError, ConfigError):
            continue
        yield Place(machine, config, model.devices, kubelet)
        count -= 1


def _wide(rng: Random) -> Model:
    """Many NUMA nodes with gaps between their ids, some of them memory only, or a few with very many CPUs."""
    zones = rng.choice((2, 4, 6, 8, 12, 16))
    ids = sorted(rng.sample(range(4 * zones), zones)) if rng.random() < 0.5 else list(range(zones))
    each = rng.choice((4, 8, 1024 // (2 * zones)))
    bare = rng.choice((0, 0, zones // 4, zones // 2))
    cores = [each] * (zones - bare) + [0] * bare
    total, first, numa = sum(cores), 0, []
    shown = rng.random() < 0.7
    pages = rng.choice((0, 0, 512))
    for position, count in enumerate(cores):
        zone_cores = tuple(Core(2 * position // zones, (core, core + total)) for core in range(first, first + count))
        first += count
        row = tuple(
            10 if neighbour == position else 12 if neighbour // 2 == position // 2 else 32 for neighbour in range(zones)
        )
        numa.append(
            NumaNode(
                id=ids[position],
                memory=rng.choice((16, 64)) * GI,
                cores=zone_cores,
                hugepages={2048: pages} if pages else {},
                distances=row if shown else None,
            )
        )
    return Model(numa=tuple(numa), devices=tuple(_devices(rng, ids)))


def _devices(rng: Random, ids: list[int]) -> Iterator[DevicePlugin]:
    """Some are near several NUMA nodes, as devices of a socket are."""
    for resource in (GPU, NIC, FPGA):
        if rng.random() < 0.4:
            continue
        wide = rng.choice((1, 1, 2, 4))
        shared = [
            Device(f"{resource[-3:]}{number}", tuple(sorted(rng.sample(ids, min(wide, len(ids))))))
            for number in range(rng.choice((2, 4, 8)))
        ]
        yield DevicePlugin(resource, tuple(shared), rng.choice(("", "", "first", "last")))


def pod(rng: Random, name: str, empty: Sequence[EmulatedNode]) -> Json:
    """Returns a random pod, which some of the empty nodes would admit in nearly all cases."""
    while True:
        spec = _pod(rng, name, rng.choice((1, 1, 1, 1, 4, 16, 64)))
        document = {"metadata": {"name": name, "uid": name}, "spec": spec}
        decoded = pods.decode(msgspec.json.encode(document))
        resources = [resource for resource, amount in pods.needs(decoded).requests.items() if amount]
        capable = [kubelet for kubelet in empty if kubelet.allocatable().keys() >= set(resources)]
        if any(kubelet.would_admit(decoded).admitted for kubelet in capable) or rng.random() < 0.02:
            return spec


def _pod(rng: Random, name: str, factor: int) -> Json:
    """Of `factor` times as many CPUs as usual."""
    spec: Json = _bare(msgspec.json.decode(msgspec.json.encode(random_nodes.pod(rng, name).spec)))
    for group in ("containers", "initContainers"):
        for container in spec.get(group) or ():
            container["image"] = "i:1"
            for amounts in container.get("resources", {}).values():
                if amounts.get("cpu", "").isdecimal():
                    amounts["cpu"] = str(int(amounts["cpu"]) * factor)
    if rng.random() < 0.02:
        few = {"cpu": "1", "memory": "16Mi"}
        more = [{"name": f"m{n}", "image": "i:1", "resources": {"requests": few, "limits": few}} for n in range(20)]
        spec["containers"] += more
    if "resources" in spec:
        spec["resources"] = _level(rng, spec)
    return spec


def _level(rng: Random, spec: Json) -> Json:
    """Pod-level resources that an API server takes: at least what the containers ask for together."""
    needs = pods.needs(pods.decode(msgspec.json.encode({"metadata": {}, "spec": spec})), pod_level_resources=False)
    cpu = needs.requests.get("cpu", 0) + rng.choice((0, 0, 1000))
    requests = {"cpu": f"{cpu}m", "memory": str(needs.requests.get("memory", 0) + rng.choice((0, 0, GI)))}
    return {"requests": requests, **({"limits": requests} if needs.qos == "Guaranteed" else {})}


def _bare(value: Any) -> Any:
    """Without what is not set."""
    if isinstance(value, dict):
        return {name: _bare(item) for name, item in value.items() if item not in (None, "", {}, [])}
    return [_bare(item) for item in value] if isinstance(value, list) else value
