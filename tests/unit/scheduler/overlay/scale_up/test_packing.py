"""How many empty nodes pods need: equal to trying all assignments, and what a group's empty node is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from scheduling import Service, exact, kubelet, pod
from steering_pods import requiring
from topowise import pods
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.overlay.scale_up import node_groups
from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels, Profile

KEYS = ("pool", "type")
GROUP: GroupLabels = (("pool", "a"),)
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]


def group_service(*names: str, running: Sequence[str] = (), **changed: Any) -> Service:
    """A service with these nodes of a group, each with pods of these CPUs."""
    service = Service("TightFit")
    for name in names:
        node = kubelet(**changed)
        for serial, cpu in enumerate(running):
            assert node.admit(pods.decode(json.dumps(pod(f"{name}-{serial}", cpu)).encode())).admitted
        service.put_node(name, labels={"pool": "a", "kubernetes.io/hostname": name})
        service.report(exact(node, name=name, **changed))
    return service


def profile_of(service: Service, daemons: Sequence[PodRecord] = ()) -> Profile | None:
    nodes = [node for name in service.nodes if (node := service.nodes.get(name)) is not None]
    return node_groups.profile(service.ledger, GROUP, node_groups.groups(nodes, KEYS)[GROUP], daemons)


def known_profile(service: Service, daemons: Sequence[PodRecord] = ()) -> Profile:
    profile = profile_of(service, daemons)
    assert profile is not None
    return profile


def records(service: Service, *amounts: str, **fields: Any) -> list[PodRecord]:
    return [service.put(pod(f"w{serial}", cpu, **fields)) for serial, cpu in enumerate(amounts)]


def test_a_node_without_a_group_label_is_in_no_group() -> None:
    assert node_groups.group_of({"zone": "a"}, KEYS) == ()
    assert node_groups.group_of({"type": "m", "pool": "a", "zone": "b"}, KEYS) == (("pool", "a"), ("type", "m"))


def test_the_profile_of_a_group_is_a_full_node_without_its_pods() -> None:
    """3 and 4 CPUs: the full node takes none, the empty node both."""
    service = group_service("n1", running=("3", "4"))
    plan = node_groups.pack(service.trial, records(service, "3", "4"), [known_profile(service)])
    assert [len(node.records) for node in plan.new_nodes] == [2]
    assert not plan.unplaced


def test_daemon_pods_are_on_the_empty_node_too() -> None:
    service = group_service("n1", running=("3", "4"))
    daemon = service.put(pod("daemon", "2", node="n1"))
    plan = node_groups.pack(service.trial, records(service, "3", "4"), [known_profile(service, [daemon])])
    assert [len(node.records) for node in plan.new_nodes] == [1, 1]


def test_a_pod_that_fits_in_sum_and_not_aligned_gets_no_node() -> None:
    service = group_service("n1", running=("1",))
    plan = node_groups.pack(service.trial, records(service, "5"), [known_profile(service)])
    assert not plan.new_nodes
    assert [record.name for record in plan.unplaced] == ["w0"]


def test_a_pod_must_be_aligned_by_each_kind_of_kubelet_of_the_group() -> None:
    """The older node would take 5 CPUs unaligned, the newer refuses them: nobody knows which kind comes next."""
    service = group_service("n1", topologyManagerPolicy="best-effort")
    assert node_groups.pack(service.trial, records(service, "5"), [known_profile(service)]).new_nodes
    service.put_node("n2", labels={"pool": "a", "kubernetes.io/hostname": "n2"})
    service.report(exact(kubelet(), name="n2"))
    assert not node_groups.pack(service.trial, records(service, "5"), [known_profile(service)]).new_nodes


def test_a_group_without_a_report_has_no_profile() -> None:
    service = Service("TightFit")
    service.put_node("n1", labels={"pool": "a"})
    assert profile_of(service) is None


def test_the_selector_and_the_taints_of_the_group_count() -> None:
    service = group_service("n1")
    refused = records(service, "2", nodeSelector={"pool": "b"}, conditions=UNSCHEDULABLE)
    assert node_groups.pack(service.trial, refused, [known_profile(service)]).unplaced
    taints = [{"key": "dedicated", "effect": "NoSchedule"}, {"key": "topowise.io/unreported", "effect": "NoSchedule"}]
    service.put_node("n1", {"taints": taints, "unschedulable": True}, labels={"pool": "a"})
    assert node_groups.pack(service.trial, records(service, "2"), [known_profile(service)]).unplaced
    tolerated = records(
        service, "2", tolerations=[{"key": "dedicated", "operator": "Exists"}], conditions=UNSCHEDULABLE
    )
    assert node_groups.pack(service.trial, tolerated, [known_profile(service)]).new_nodes, (
        "cordon and start-up taint end"
    )


def test_a_node_that_is_coming_is_filled_first() -> None:
    service = group_service("n1", running=("3", "4"))
    profile = known_profile(service)
    coming = node_groups.empty_node(service.trial, profile)
    plan = node_groups.pack(service.trial, records(service, "3", "3", "3"), [profile], [coming])
    assert [record.name for record in coming.records] == ["w0", "w1"]
    assert [[record.name for record in node.records] for node in plan.new_nodes] == [["w2"]]


@pytest.mark.parametrize("policy", ["best-effort", "single-numa-node"])
def test_pods_that_require_a_numa_node_are_not_packed_beside_it(policy: str) -> None:
    """NUMA node 0 has 3 CPUs; a kubelet with best-effort would admit the second pod on NUMA node 1."""
    service = group_service("n1", topologyManagerPolicy=policy)
    wanted = [service.put(requiring(f"w{serial}", 0, "2")) for serial in range(2)]
    plan = node_groups.pack(service.trial, wanted, [known_profile(service)])
    assert [len(node.records) for node in plan.new_nodes] == [1, 1]


def test_a_new_node_is_of_no_use_if_its_kubelet_admits_the_pod_elsewhere() -> None:
    """NUMA node 0 has 3 CPUs for 4; best-effort takes any pod."""
    service = group_service("n1", topologyManagerPolicy="best-effort")
    record = service.put(requiring("w", 0, "4"))
    assert node_groups.refusal(service.trial, known_profile(service), record) == "its kubelet cannot align the pod"


def fewest(amounts: Sequence[int]) -> int:
    """The fewest nodes of 3 and 4 CPUs by NUMA node, by trying all sets of pods for each node."""

    def loads(rest: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """What remains after each set of pods that the kubelet admits on an empty node, at least the first pod."""
        for chosen in range(1, 1 << len(rest)):
            if not chosen & 1:
                continue
            on_node = [amount for at, amount in enumerate(rest) if chosen >> at & 1]
            if _admits(on_node):
                yield tuple(amount for at, amount in enumerate(rest) if not chosen >> at & 1)

    def best(rest: tuple[int, ...]) -> int:
        return 0 if not rest else 1 + min(best(remaining) for remaining in loads(rest))

    return best(tuple(sorted(amounts, reverse=True)))


_KNOWN: dict[tuple[int, ...], bool] = {}


def _admits(amounts: Sequence[int]) -> bool:
    key = tuple(amounts)
    if key not in _KNOWN:
        node = kubelet()
        _KNOWN[key] = all(
            node.admit(pods.decode(json.dumps(pod(f"p{at}", str(amount))).encode())).admitted
            for at, amount in enumerate(amounts)
        )
    return _KNOWN[key]


@pytest.mark.parametrize("cpu", ["1", "2", "3", "4"])
def test_equal_pods_get_as_few_nodes_as_possible(cpu: str) -> None:
    service = group_service("n1")
    plan = node_groups.pack(service.trial, records(service, *[cpu] * 7), [known_profile(service)])
    assert len(plan.new_nodes) == fewest([int(cpu)] * 7)


@pytest.mark.parametrize("seed", range(12))
def test_different_pods_get_at_most_one_node_more_than_possible(seed: int) -> None:
    """First fit in order of arrival; each node of the packing is what its kubelet admits."""
    amounts = [Random(seed).randint(1, 4) for _ in range(7)]
    service = group_service("n1")
    plan = node_groups.pack(service.trial, records(service, *map(str, amounts)), [known_profile(service)])
    assert fewest(amounts) <= len(plan.new_nodes) <= fewest(amounts) + 1
    for node in plan.new_nodes:
        true = kubelet()
        for record in node.records:
            assert true.admit_view(record.view(true)).admitted
