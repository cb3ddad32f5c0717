"""Outcomes (sure, possible, impossible) equal trials of every device choice of the kubelet.

The kubelet takes any suitable devices, and a plugin may prefer any of them. The model takes the lowest ids. Each choice
is the model's choice under some order of device names, so trials of all orders cover all choices.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations, product
from typing import NamedTuple

import pytest

from examples import examples
from topowise import pci, pods
from topowise.attributes.pci_devices import Located
from topowise.kubeletconfig import KubeletConfiguration
from topowise.pci import Place
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, NumaNode
from topowise_scheduler.options.device_affinity.affinity_terms import AffinityTerm, read
from topowise_scheduler.options.device_affinity.outcomes import Devices, Settings, judge

GPU, NIC = "nvidia.com/gpu", "rdma/hca"
GIB = 1 << 30
SAME = {
    resource: {f"{letter}{at}": f"{letter}{at}" for at in range(4)} for resource, letter in ((GPU, "g"), (NIC, "n"))
}
NEAR = {"pcie-switch": {"PIX"}, "pcie-root-port": {"PIX", "PXB"}, "pcie-root": {"PIX", "PXB", "PHB"}}
PATHS = (
    "pci0000:00",
    "pci0000:00/0000:00:01.0",
    "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0",
    "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0",
    "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:05:00.0/0000:06:00.0",
    "pci0000:80/0000:80:01.0",
)


class Scene(NamedTuple):
    node: Kubelet
    plugins: Mapping[str, tuple[Device, ...]]
    allocated: Mapping[str, tuple[str, ...]]
    places: Mapping[str, Located]
    pod: pods.Pod
    terms: tuple[AffinityTerm, ...]


def scene(seed: int) -> Scene:
    """A machine of two NUMA nodes, a pod of up to three containers, and one or two affinity terms."""
    rng = random.Random(seed)
    plugins = {
        resource: tuple(
            Device(f"{letter}{at}", rng.choice([(0,), (0,), (1,), (1,), (0, 1), None, ()]))
            for at in range(rng.randint(2, 4))
        )
        for resource, letter in ((GPU, "g"), (NIC, "n"))
    }
    is_known = rng.random() < 0.8
    ids = [device.id for listed in plugins.values() for device in listed]
    places = {
        device: Located(f"0000:{at % rng.choice([20, 20, 3]):02x}:00.0", Place(tuple(rng.choice(PATHS).split("/")), 0))
        for at, device in enumerate(ids)
        if is_known or rng.random() < 0.8
    }
    allocated = {
        resource: tuple(device.id for device in listed if rng.random() < 0.2) for resource, listed in plugins.items()
    }
    config = KubeletConfiguration(
        topologyManagerPolicy=rng.choice(["none", "best-effort", "restricted", "single-numa-node"]),
        topologyManagerScope=rng.choice(["container", "pod"]),
    )
    numa = tuple(NumaNode(at, 4 * GIB, (Core(at, (2 * at,)), Core(at, (2 * at + 1,))), {}, (10, 20)) for at in (0, 1))
    listed = tuple(DevicePlugin(resource, devices, "first") for resource, devices in plugins.items())
    containers = [container(rng, f"c{at}") for at in range(rng.choice([1, 1, 2]))]
    before = [container(rng, "i", rng.choice(["", "Always"]))] if rng.random() < 0.3 else []
    spec = pods.Spec(containers=tuple(containers), initContainers=tuple(before))
    terms = tuple(
        AffinityTerm(
            rng.choice(["require", "prefer"]),
            rng.choice([(GPU,), (GPU, NIC), (GPU, NIC)]),
            rng.choice(["pcie-switch", "pcie-root-port", "pcie-root"]),
        )
        for _ in range(rng.choice([1, 1, 2]))
    )
    node = Kubelet(Machine(numa=numa, devices=listed), config)
    candidate = Scene(node, plugins, allocated, places, pods.Pod(pods.Metadata("p", "d", "u"), spec), terms)
    # Keep few scenes with a pod that the kubelet refuses.
    is_admitted = named(candidate, SAME).admit(candidate.pod).admitted
    return candidate if is_admitted or rng.random() < 0.1 else scene(seed + 100_000)


def container(rng: random.Random, name: str, restarts: str = "") -> pods.Container:
    limits: pods.Quantities = {GPU: rng.randint(0, 2), NIC: rng.randint(0, 2)}
    return pods.Container(name, pods.Resources(limits=limits), restartPolicy=restarts or None)


def named(case: Scene, names: Mapping[str, Mapping[str, str]], *holders: pods.Pod) -> Kubelet:
    """The node with renamed devices and allocated devices, after admission of the holders."""
    node = case.node.fork()
    for resource, listed in case.plugins.items():
        renamed = names[resource]
        node.report_devices(resource, [Device(renamed[device.id], device.numa) for device in listed])
        for number, device in enumerate(case.allocated[resource]):
            node.devices.hold(f"other-{resource}-{number}", "c", resource, (renamed[device],))
    for holder in holders:
        node.admit(holder)
    return node


def every_naming(case: Scene) -> Iterator[Mapping[str, Mapping[str, str]]]:
    """All permutations of device names per resource."""
    each = []
    for resource, listed in case.plugins.items():
        ids = [device.id for device in listed]
        each.append([(resource, dict(zip(ids, order, strict=True))) for order in permutations(ids)])
    for combination in product(*each):
        yield dict(combination)


def outcomes_by_trial(case: Scene, *holders: pods.Pod) -> list[set[bool | None]]:
    """For each affinity term, the set of outcomes of all trials."""
    outcomes: list[set[bool | None]] = [set() for _ in case.terms]
    for names in every_naming(case):
        true_name = {new: old for ids in names.values() for old, new in ids.items()}
        admission = named(case, names, *holders).admit(case.pod)
        for term, seen in zip(case.terms, outcomes, strict=True):
            if not admission.admitted:
                seen.add(False)
                continue
            got = [
                [true_name[device] for resource in term.resources for device in placed.devices.get(resource, ())]
                for placed in admission.placements.values()
                if placed.kind != "init"
            ]
            seen.add(is_met(term, got, case.places))
    return outcomes


def is_met(term: AffinityTerm, got: Sequence[Sequence[str]], places: Mapping[str, Located]) -> bool | None:
    pairs = [pair for devices in got for pair in combinations(devices, 2)]
    known = [(places[a], places[b]) for a, b in pairs if a in places and b in places]
    if any(a.address != b.address and pci.distance(a.place, b.place) not in NEAR[term.level] for a, b in known):
        return False
    return True if len(known) == len(pairs) else None


def says_nothing(case: Scene) -> bool:
    """Whether no container requests two devices of any term; such terms are always met."""
    asking = [container for container in pods.needs(case.pod).containers if container.kind != "init"]
    return all(
        sum(container.limits.get(name, 0) for name in term.resources) < 2 for term in case.terms for container in asking
    )


def word(seen: set[bool | None]) -> str:
    if seen == {True}:
        return "sure"
    if seen == {False}:
        return "impossible"
    return "possible" if True in seen else "unknown"


def judged(case: Scene, node: Kubelet, guessed: Sequence[str] = ()) -> tuple[str, ...]:
    needs = pods.needs(case.pod)
    devices = Devices(case.places, guessed)
    return judge(case.terms, needs, [node], lambda state: state.view("u", needs), devices, Settings()).outcomes


@pytest.mark.parametrize("first", range(0, examples(72), 12))
def test_outcomes_equal_trials_of_every_choice(first: int) -> None:
    for seed in range(first, first + 12):
        case = scene(seed)
        expected = ("sure",) * len(case.terms) if says_nothing(case) else tuple(map(word, outcomes_by_trial(case)))
        assert judged(case, named(case, SAME)) == expected, seed


def test_the_scenes_have_every_outcome() -> None:
    outcomes = [
        outcome for seed in range(240) for case in (scene(seed),) for outcome in judged(case, named(case, SAME))
    ]
    assert all(outcomes.count(outcome) >= 10 for outcome in ("sure", "possible", "impossible", "unknown"))


@pytest.mark.parametrize("first", range(0, min(examples(48), 160), 16))
def test_devices_of_a_predicted_pod_may_differ_from_the_prediction(first: int) -> None:
    """The pod may have devices other than predicted, so a definite outcome must be true for all choices."""
    for seed in range(first, first + 16):
        case = scene(seed)
        limits: pods.Quantities = {GPU: 1, NIC: 1}
        holder = pods.Pod(
            pods.Metadata("h", "d", "uid-h"), pods.Spec((pods.Container("c", pods.Resources(limits=limits)),))
        )
        node = named(case, SAME, holder)
        if "uid-h" not in node.active or not node.fork().admit(case.pod).admitted or says_nothing(case):
            continue
        trials = outcomes_by_trial(case, holder)
        for outcome, seen in zip(judged(case, node, ["uid-h"]), trials, strict=True):
            if outcome in ("sure", "impossible"):
                assert outcome == word(seen), seed


def test_too_many_choices_are_no_promise() -> None:
    listed = tuple(Device(f"g{at:02}", (0,)) for at in range(30))
    node = Kubelet(
        Machine(numa=(NumaNode(0, GIB, (Core(0, (0, 1)),)),), devices=(DevicePlugin(GPU, listed),)),
        KubeletConfiguration(topologyManagerPolicy="single-numa-node"),
    )
    pod = pods.Pod(pods.Metadata("p", "d", "u"), pods.Spec((pods.Container("c", pods.Resources(limits={GPU: 15})),)))
    needs = pods.needs(pod)
    view = node.view("u", needs)
    for paths, outcome in ((PATHS[1:2] * 30, "sure"), ([f"pci0000:{at:02x}" for at in range(30)], "unknown")):
        places = {
            device.id: Located(f"0000:{at:02x}:00.0", Place(tuple(path.split("/")), 0))
            for at, (device, path) in enumerate(zip(listed, paths, strict=True))
        }
        verdict = judge(read(f"{GPU}: pcie-switch"), needs, [node], lambda _: view, Devices(places), Settings())
        assert verdict.outcomes == (outcome,)


def test_an_init_container_may_leave_devices_of_a_pod_that_is_only_predicted() -> None:
    """The kubelet gives a container the devices of the pod's init container first, so these are no free choice."""
    listed = tuple(Device(f"g{at}", (min(at, 1),)) for at in range(3))
    numa = tuple(NumaNode(at, GIB, (Core(at, (at,)),), {}, (10, 20)) for at in (0, 1))
    node = Kubelet(Machine(numa=numa, devices=(DevicePlugin(GPU, listed, "first"),)), KubeletConfiguration())
    one, two = (pods.Resources(limits={GPU: count}) for count in (1, 2))
    assert node.admit(pods.Pod(pods.Metadata("h", "d", "h"), pods.Spec((pods.Container("c", one),)))).admitted
    paths = (PATHS[2], PATHS[5], PATHS[2])
    places = {f"g{at}": Located(f"0000:0{at}:00.0", Place(tuple(path.split("/")), 0)) for at, path in enumerate(paths)}
    for before in ((), (pods.Container("i", two),)):
        needs = pods.needs(pods.Pod(pods.Metadata("p", "d", "u"), pods.Spec((pods.Container("c", two),), before)))
        devices = Devices(places, ["h"])
        terms = read(f"{GPU}: pcie-switch")
        verdict = judge(terms, needs, [node], lambda state, needs=needs: state.view("u", needs), devices, Settings())
        assert verdict.outcomes[0] in ("possible", "unknown"), before
