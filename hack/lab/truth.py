"""Reads what a node says, and compares objects and predictions with it.

Pure. Invariant: the truth is the kernel's and the kubelet's own text. Shared code of the daemons parses the kubelet's
files; no value that a daemon has computed is part of the truth.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from lab import dra
from topowise import attributes, checkpoints, cpuset, nrt, quantity, steering
from topowise.attributes import devices as device_attributes
from topowise.attributes import holdings

Json = dict[str, Any]
Devices = dict[str, frozenset[str]]

_KIB: Final = 1024


class Node(NamedTuple):
    """A NUMA node by /sys; `hugepages` are counts by page size in KiB."""

    cpus: frozenset[int]
    distances: tuple[int, ...]
    memory: int
    hugepages: dict[int, int]


class Held(NamedTuple):
    """The allocation of a container; `memory` as (type, NUMA nodes, bytes)."""

    cpus: frozenset[int] = frozenset()
    memory: frozenset[tuple[str, tuple[int, ...], int]] = frozenset()
    devices: Mapping[str, frozenset[str]] = {}


class Truth(NamedTuple):
    """The state of a node: containers by pod uid from state files, by namespace and name from podresources; `near` has
    the NUMA nodes of each device, by resource and id. `claimed` are the claims of each pod with their devices, as
    podresources has them, `prepared` as the DRA driver has them."""

    by_uid: dict[str, dict[str, Held]]
    listed: dict[tuple[str, str], dict[str, Held]]
    near: dict[str, dict[str, frozenset[int]]]
    allocatable_cpus: frozenset[int]
    claimed: dict[tuple[str, str], dict[str, frozenset[str]]]
    prepared: dict[str, frozenset[str]]


class Expected(msgspec.Struct, frozen=True):
    """A container in the annotation of a bound pod."""

    numa: tuple[int, ...]
    cpus: str = ""
    devices: dict[str, tuple[str, ...]] = {}


def nodes(sys: Mapping[str, str]) -> dict[int, Node]:
    """Returns the NUMA nodes by texts of /sys."""
    return {
        int(path.split("/")[3].removeprefix("node")): _node(sys, path.removesuffix("/cpulist"))
        for path in sys
        if path.startswith("devices/system/node/node") and path.endswith("/cpulist")
    }


def _node(sys: Mapping[str, str], folder: str) -> Node:
    (total,) = (line.split()[3] for line in sys[f"{folder}/meminfo"].splitlines() if " MemTotal:" in line)
    pages = f"{folder}/hugepages/hugepages-"
    return Node(
        cpuset.parse(sys[f"{folder}/cpulist"]),
        tuple(map(int, sys[f"{folder}/distance"].split())),
        int(total) * _KIB,
        {int(path.removeprefix(pages).partition("kB")[0]): int(sys[path]) for path in sys if path.startswith(pages)},
    )


def read(document: Json) -> Truth:
    """Decodes `Node.seen`. Raises ParseError, and KeyError while the kubelet has not written its files."""
    files = document["files"]
    cpus = checkpoints.cpu_state(files["cpu_manager_state"]["text"].encode())
    memory = checkpoints.memory_state(files["memory_manager_state"]["text"].encode())
    uids = cpus.holders.keys() | memory.holders.keys()
    return Truth(
        by_uid={uid: _in_files(cpus.holders.get(uid, {}), memory.holders.get(uid, {})) for uid in uids},
        listed={
            (pod.get("namespace", ""), pod.get("name", "")): {
                container["name"]: _listed(container) for container in pod.get("containers", ())
            }
            for pod in document["list"].get("pod_resources", ())
        },
        near=_near(_hardware(document["allocatable"])),
        allocatable_cpus=frozenset(map(int, document["allocatable"].get("cpu_ids", ()))),
        claimed={
            (pod.get("namespace", ""), pod.get("name", "")): _claimed(pod)
            for pod in document["list"].get("pod_resources", ())
        },
        prepared={
            claim["claim"]: frozenset(claim["devices"])
            for claim in json.loads(files.get(dra.PREPARED.name, {}).get("text", "{}")).values()
        },
    )


def _claimed(pod: Json) -> dict[str, frozenset[str]]:
    """Returns the devices of a pod by claim."""
    claims: dict[str, frozenset[str]] = {}
    for container in pod.get("containers", ()):
        for claim in container.get("dynamic_resources", ()):
            devices = {each["device_name"] for each in claim.get("claim_resources", ())}
            claims[claim["claim_name"]] = claims.get(claim["claim_name"], frozenset()) | devices
    return claims


def functions(sys: Mapping[str, str]) -> dict[str, int]:
    """Returns the NUMA nodes of PCI functions, by the name of their device of claims."""
    return {
        dra.device_name(path.split("/")[3]): int(text)
        for path, text in sys.items()
        if path.startswith("bus/pci/devices/") and path.endswith("/numa_node")
    }


def _in_files(cpus: Mapping[str, frozenset[int]], memory: Mapping[str, checkpoints.MemoryBlocks]) -> dict[str, Held]:
    return {
        name: Held(
            cpus.get(name, frozenset()),
            frozenset((block.type, block.nodes, block.size) for block in memory.get(name, ()) if block.size),
        )
        for name in cpus.keys() | memory.keys()
    }


def _listed(container: Json) -> Held:
    devices: dict[str, set[str]] = {}
    for entry in _hardware(container):
        devices.setdefault(entry["resource_name"], set()).update(entry["device_ids"])
    memory = (
        (block["memory_type"], tuple(sorted(_ids(block))), int(block["size"])) for block in container.get("memory", ())
    )
    return Held(
        frozenset(map(int, container.get("cpu_ids", ()))),
        frozenset(block for block in memory if block[2]),
        {resource: frozenset(ids) for resource, ids in devices.items()},
    )


def _hardware(listed: Json) -> list[Json]:
    """Returns the listed devices without the markers of steering, which the object does not have."""
    return [entry for entry in listed.get("devices", ()) if entry["resource_name"] != steering.RESOURCE]


def _ids(entry: Json) -> Iterable[int]:
    """NUMA nodes of an entry. On the wire node 0 is an empty message."""
    return (int(node.get("ID", 0)) for node in entry.get("topology", {}).get("nodes", ()))


def _near(entries: Iterable[Json]) -> dict[str, dict[str, frozenset[int]]]:
    """Returns the NUMA nodes by device: podresources lists a device of two NUMA nodes twice."""
    nodes: dict[str, dict[str, frozenset[int]]] = {}
    for entry in entries:
        by_id = nodes.setdefault(entry["resource_name"], {})
        for name in entry["device_ids"]:
            by_id[name] = by_id.get(name, frozenset()) | frozenset(_ids(entry))
    return nodes


def exclusive(truth: Truth) -> dict[tuple[str, str], dict[str, Held]]:
    """Pods that podresources lists with something, without containers that have nothing."""
    containers_of = {
        pod: {name: allocation for name, allocation in containers.items() if any(allocation)}
        for pod, containers in truth.listed.items()
    }
    return {pod: containers for pod, containers in containers_of.items() if containers}


def differences(raw: Json, machine: Mapping[int, Node], truth: Truth) -> list[str]:
    """Returns the differences between an object and its node."""
    topology = msgspec.convert(raw, nrt.NodeResourceTopology)
    problems = list(_of_zones(topology, machine))
    named = {entry.name: entry.value for entry in topology.attributes or ()}
    published = {
        (pod.namespace, pod.name): {container.name: _published(container) for container in pod.containers}
        for pod in holdings.read(named.get(attributes.HOLDINGS, "[]"))
        if pod.namespace
    }
    kubelet = exclusive(truth)
    problems += [f"{'/'.join(pod)} is in the object alone" for pod in published.keys() - kubelet.keys()]
    problems += [f"{'/'.join(pod)} is in the kubelet alone" for pod in kubelet.keys() - published.keys()]
    problems += [
        f"{'/'.join(pod)}: {published[pod]} and not {kubelet[pod]}"
        for pod in published.keys() & kubelet.keys()
        if published[pod] != kubelet[pod]
    ]
    devices: dict[str, dict[str, frozenset[int]]] = {}
    for device in device_attributes.read(named.get(attributes.DEVICES, "{}")):
        devices.setdefault(device.resource, {})[device.id] = frozenset(device.nodes)
    if devices != truth.near:
        problems.append(f"devices are {devices} and not {truth.near}")
    return problems


def _published(container: holdings.Container) -> Held:
    return Held(
        container.cpu_ids(),
        frozenset((block.type, tuple(sorted(cpuset.parse(block.nodes))), block.size) for block in container.memory),
        {resource: frozenset(ids) for resource, ids in container.devices.items()},
    )


def _of_zones(topology: nrt.NodeResourceTopology, machine: Mapping[int, Node]) -> Iterable[str]:
    zones = {zone.name: zone for zone in topology.zones or ()}
    names = {nrt.zone_name(node) for node in machine}
    if zones.keys() != names:
        yield f"zones are {sorted(zones)} and not {sorted(names)}"
        return
    for number, node in machine.items():
        zone = zones[nrt.zone_name(number)]
        costs = tuple(cost.value for cost in zone.costs or ())
        cpus = next((entry.value for entry in zone.attributes or () if entry.name == attributes.ZONE_CPUS), "")
        amounts = {resource.name: quantity.value(resource.capacity) for resource in zone.resources or ()}
        pages = {f"hugepages-{size // _KIB}Mi": count * size * _KIB for size, count in node.hugepages.items() if count}
        shown = {name: amount for name, amount in amounts.items() if name in pages}
        for quantity_name, said, true in (
            ("distances", costs, node.distances),
            ("CPUs", cpuset.parse(cpus), node.cpus),
            ("memory", amounts.get("memory"), node.memory),
            ("huge pages", shown, {_spelt(name): amount for name, amount in pages.items()}),
        ):
            if said != true:
                yield f"{zone.name}: {quantity_name} {said} and not {true}"


def _spelt(pages: str) -> str:
    return pages.replace("1024Mi", "1Gi")


class Agreement(NamedTuple):
    """The agreement for a pod: `exact` in all ids; else `equal` if only equal devices differ; else `why`."""

    exact: bool
    equal: bool
    why: tuple[str, ...] = ()


def agreement(
    predicted: Mapping[str, Expected],
    uid: str,
    pod: tuple[str, str],
    truth: Truth,
    machine: Mapping[int, Node],
    *,
    has_hints: bool = True,
) -> Agreement:
    """Returns how a prediction agrees with the truth.

    Containers that podresources does not list (ended init containers) are compared with the state files only. Without
    hints, under the policy none, all devices of a resource are equal.
    """
    why: list[str] = []
    chosen_otherwise = False
    files, listed = truth.by_uid.get(uid, {}), truth.listed.get(pod, {})
    for name, expected in predicted.items():
        cpus = files.get(name, Held()).cpus
        if cpuset.parse(expected.cpus) != cpus:
            why.append(f"{name}: CPUs {expected.cpus or 'none'} predicted, {cpuset.to_text(cpus) or 'none'} given")
        if name not in listed:
            continue
        actual = listed[name].devices
        expected_ids = {resource: frozenset(ids) for resource, ids in expected.devices.items()}
        near = expected.numa if has_hints else tuple(machine)
        if _aligned(expected_ids, truth, near) != _aligned(actual, truth, near):
            why.append(f"{name}: devices {_spell(expected_ids)} predicted, {_spell(actual)} given")
        elif expected_ids != actual:
            chosen_otherwise = True
        # A device among equal devices may be near a second NUMA node, which does not locate the container.
        counted = expected_ids if chosen_otherwise else actual
        numa = _numa(cpus, files.get(name, Held()).memory, counted, truth, machine)
        if frozenset(expected.numa) != numa:
            why.append(f"{name}: NUMA nodes {sorted(expected.numa)} predicted, {sorted(numa)} given")
    holds = {name for name, allocation in listed.items() if any(allocation)}
    why += [f"{name}: nothing predicted, {listed[name]} given" for name in sorted(holds - predicted.keys())]
    return Agreement(not why and not chosen_otherwise, not why and chosen_otherwise, tuple(why))


def located(pod: Json, truth: Truth, machine: Mapping[int, Node]) -> dict[str, frozenset[int]]:
    """Returns the NUMA nodes of a pod's allocations by container."""
    metadata = pod["metadata"]
    files = truth.by_uid.get(metadata["uid"], {})
    listed = truth.listed.get((metadata["namespace"], metadata["name"]), {})
    nothing = Held()
    return {
        name: _numa(
            files.get(name, nothing).cpus,
            files.get(name, nothing).memory,
            listed.get(name, nothing).devices,
            truth,
            machine,
        )
        for name in files.keys() | listed.keys()
    }


def unexplained(steps: Iterable[Json], actual: Mapping[str, frozenset[int]]) -> list[str]:
    """Returns the containers, or "pod", that are on other NUMA nodes than the steps of an explanation say."""
    whole = frozenset[int]().union(*actual.values())
    different = []
    for step in steps:
        given = actual.get(step["container"], frozenset()) if step["container"] else whole
        if step["chosen"] is not None and not given <= {*step["chosen"]}:
            name = step["container"] or "pod"
            different.append(f"{name}: NUMA nodes {step['chosen']} explained, {sorted(given)} given")
    return different


def _aligned(devices: Mapping[str, frozenset[str]], truth: Truth, numa: tuple[int, ...]) -> dict[str, Counter[str]]:
    """Counts devices near the chosen nodes, far from them, and near none: within each the kubelet takes any."""
    return {
        resource: Counter(_relation(truth.near.get(resource, {}).get(device), numa) for device in ids)
        for resource, ids in devices.items()
    }


def _relation(near: frozenset[int] | None, numa: tuple[int, ...]) -> str:
    if not near:
        return "nowhere"
    return "near" if near & frozenset(numa) else "far"


def _numa(
    cpus: frozenset[int],
    memory: Iterable[tuple[str, tuple[int, ...], int]],
    devices: Mapping[str, frozenset[str]],
    truth: Truth,
    machine: Mapping[int, Node],
) -> frozenset[int]:
    """Returns all NUMA nodes of an allocation; a device near several nodes counts for none."""
    of_cpus = {number for number, node in machine.items() if node.cpus & cpus}
    of_memory = {number for _, where, _ in memory for number in where}
    places = (
        truth.near.get(resource, {}).get(device, frozenset()) for resource, ids in devices.items() for device in ids
    )
    return frozenset(of_cpus | of_memory | {number for near in places if len(near) == 1 for number in near})


def _spell(devices: Mapping[str, frozenset[str]]) -> dict[str, list[str]]:
    return {resource: sorted(ids) for resource, ids in devices.items()}


def predicted(pod: Json) -> dict[str, Expected]:
    """Returns the prediction by container, empty without a prediction."""
    text = pod["metadata"].get("annotations", {}).get("topowise.io/predicted", "{}")
    return msgspec.json.decode(text, type=dict[str, Expected])
