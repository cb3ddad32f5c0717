"""Objects of exporters other than topowise: each oddity is read, or is left out and becomes a problem."""

from __future__ import annotations

import msgspec
import pytest

from topowise import nrt
from topowise_scheduler import report
from topowise_scheduler.kubelet import Kubelet

from .conftest import free_cpus, pod_of, topology_of

ZONE = {"cpu": ("8", "8", "8"), "memory": ("8Gi", "8Gi", "8Gi")}


def kubelet_of(node_report: report.Report) -> Kubelet:
    return report.kubelet_of(node_report, lambda _name: None)


def test_rte_writes_policy_and_scope_as_attributes() -> None:
    node_report = report.read(
        topology_of(
            ZONE,
            ZONE,
            topologyManagerPolicy="single-numa-node",
            topologyManagerScope="pod",
            nodeTopologyPodsFingerprint="pfp0v001ef46db3751d8e999",
            nodeTopologyPodsFingerprintMethod="with-exclusive-resources",
        )
    )
    assert (node_report.precision, node_report.problems, node_report.held) == ("counts", (), {})
    assert (node_report.name, node_report.version) == ("n1", "7")
    assert (node_report.fingerprint, node_report.fingerprint_method) == (
        "pfp0v001ef46db3751d8e999",
        "with-exclusive-resources",
    )
    assert (node_report.empty.settings.topology.policy, node_report.empty.settings.topology.scope) == (
        "single-numa-node",
        "pod",
    )


def test_nfd_writes_the_legacy_policy_no_method_and_negative_amounts() -> None:
    node_report = report.read(
        topology_of(
            {"cpu": ("8", "7", "-1"), "gpu": (2, 2, -1)},
            {"cpu": ("8", "8", "8")},
            policies=("SingleNUMANodePodLevel",),
            nodeTopologyPodsFingerprint="pfp0v001ef46db3751d8e999",
        )
    )
    assert node_report.problems == ()
    assert node_report.fingerprint_method == "all"
    assert (node_report.empty.settings.topology.policy, node_report.empty.settings.topology.scope) == (
        "single-numa-node",
        "pod",
    )
    kubelet = kubelet_of(node_report)
    assert free_cpus(kubelet) == [0, 8]
    assert not kubelet.devices.free("gpu")


def test_koordlet_writes_totals_so_only_totals_are_checked() -> None:
    node_report = report.read(
        topology_of(
            {**ZONE, "koordinator.sh/gpu-memory": ("80Gi", "80Gi", "80Gi")},
            {**ZONE, "koordinator.sh/gpu-memory": ("80Gi", "80Gi", "80Gi")},
            policies=("RestrictedContainerLevel",),
        )
    )
    assert node_report.problems == tuple(
        f"zone {zone}, koordinator.sh/gpu-memory: 85899345920, expected up to 4096 devices; only its sum is checked"
        for zone in ("node-0", "node-1")
    )
    kubelet = kubelet_of(node_report)
    assert free_cpus(kubelet) == [8, 8]
    limits = {"cpu": "1", "memory": "1Gi", "koordinator.sh/gpu-memory": "150Gi"}
    assert kubelet.admit(pod_of("a", limits)).admitted
    assert kubelet.admit(pod_of("b", limits)).reason == "OutOfkoordinator.sh/gpu-memory"


def test_the_fingerprint_may_be_an_annotation_and_damage_is_a_problem() -> None:
    def annotated(text: str) -> nrt.NodeResourceTopology:
        topology = topology_of(ZONE)
        shown = msgspec.structs.replace(topology.metadata, annotations={"topology.node.k8s.io/fingerprint": text})
        return msgspec.structs.replace(topology, metadata=shown)

    assert report.read(annotated("pfp0v001ef46db3751d8e999")).fingerprint == "pfp0v001ef46db3751d8e999"
    node_report = report.read(annotated("pfp0v002ef46db3751d8e999"))
    assert node_report.fingerprint == ""
    assert node_report.problems == (
        "pods fingerprint 'pfp0v002ef46db3751d8e999': expected version v001; the fingerprint is ignored",
    )


def test_zones_may_have_any_order_and_gaps_in_their_ids() -> None:
    topology = topology_of({"cpu": ("8", "8", "1")}, {"cpu": ("4", "4", "2")}, {"cpu": ("2", "2", "2")}, ids=(17, 0, 8))
    kubelet = kubelet_of(report.read(topology))
    assert kubelet.node_ids == (0, 8, 17)
    assert free_cpus(kubelet) == [2, 2, 1]


def test_zones_of_other_types_and_names_are_not_numa_nodes() -> None:
    topology = topology_of(ZONE)
    other_zones = (nrt.Zone("socket-0", "Socket"), nrt.Zone("numa0", "Node"), nrt.Zone("node-01", "Node"))
    node_report = report.read(msgspec.structs.replace(topology, zones=(*other_zones, *(topology.zones or ()))))
    assert node_report.empty.node_ids == (0,)
    assert node_report.problems == (
        "zone 'numa0': expected a name node-<id>; the zone is left out",
        "zone 'node-01': expected a name node-<id>; the zone is left out",
    )


@pytest.mark.parametrize(
    ("cpu", "free", "problem"),
    [
        (("1k", "1k", "1k"), 1000, None),
        ((8, 8, 8), 8, None),
        (("8", "7500m", "6999m"), 6, None),
        (("4", "8", "8"), 8, "'8' allocatable of '4', expected no more; allocatable is used as the capacity"),
        (("8", "6", "8"), 6, "'8' available of '6' allocatable, expected no more; counted as all of allocatable"),
        (("8", "-1", "-1"), 0, None),
        (("8", "8", "lots"), 0, "quantity 'lots'"),
        (("1G", "1G", "1G"), 2048, "1000000000000, expected up to 2048000 thousandths; counted as the limit"),
    ],
)
def test_odd_amounts_count_as_their_least_meaning(cpu: tuple[str, str, str], free: int, problem: str | None) -> None:
    node_report = report.read(topology_of({"cpu": cpu}))
    assert free_cpus(kubelet_of(node_report)) == [free]
    assert len(node_report.problems) == (problem is not None)
    assert problem is None or problem in node_report.problems[0]


def test_available_above_an_allocatable_of_0_is_a_single_problem_and_counts_as_0() -> None:
    """The kubelet model keeps its CPU manager: without it, no CPUs would be checked."""
    zone = {"cpu": ("8", "0", "8"), "memory": ("8Gi", "0", "8Gi")}
    node_report = report.read(topology_of(zone, zone, zone, topologyManagerPolicy="single-numa-node"))
    assert node_report.problems == (
        "zones: node-0 cpu '8', node-0 memory '8Gi', node-1 cpu '8', node-1 memory '8Gi' and 2 more available of an "
        "allocatable of 0: the report contradicts itself; counted as none, so no pod gets any",
    )
    kubelet = kubelet_of(node_report)
    assert free_cpus(kubelet) == [0, 0, 0]
    assert not kubelet.admit(pod_of("a", {"cpu": "1", "memory": "1Gi"})).admitted


@pytest.mark.parametrize(("listed", "reason"), [(("hugepages-2Mi",), ""), ((), "KubeletWouldPanic")])
def test_no_pages_of_a_size_that_only_the_node_lists(listed: tuple[str, ...], reason: str) -> None:
    """Exporters omit page sizes without pages. The kubelet admits a request for 0 pages of a size it knows."""
    topology = topology_of(ZONE, ZONE, topologyManagerPolicy="single-numa-node")
    amounts = {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "0"}
    for node_report in (report.read(topology, "", listed), report.of_node(report.read(topology), "", listed)):
        assert kubelet_of(node_report).admit(pod_of("a", amounts)).reason == reason
        assert not kubelet_of(node_report).admit(pod_of("a", amounts | {"hugepages-2Mi": "2Mi"})).admitted


def test_a_resource_missing_from_a_zone_counts_as_0() -> None:
    node_report = report.read(
        topology_of({**ZONE, "gpu": (1, 1, 1)}, {"cpu": ("8", "8", "8")}, topologyManagerPolicy="single-numa-node")
    )
    assert node_report.problems == ()
    kubelet = kubelet_of(node_report)
    first = kubelet.admit(pod_of("a", {"cpu": "8", "memory": "1Gi"}))
    assert first.placements["c0"].numa == (0,)
    assert not kubelet.admit(pod_of("b", {"cpu": "1", "memory": "1Gi"})).admitted


def test_a_policy_no_kubelet_has_is_unknown_and_named() -> None:
    node_report = report.read(topology_of(ZONE, topologyManagerPolicy="strict", cpuManagerPolicy="dynamic"))
    assert (node_report.policy, node_report.empty.settings.topology.policy) == ("unknown", "none")
    assert node_report.problems == (
        "attribute topologyManagerPolicy 'strict': expected one of none, best-effort, restricted, single-numa-node; "
        "the node's policy is unknown, only sums are checked",
        "attribute cpuManagerPolicy: 'dynamic', expected none or static; static is used",
    )


def test_the_deprecated_list_in_the_words_of_kep_119() -> None:
    node_report = report.read(topology_of(ZONE, policies=("SingleNumaNode",)))
    assert (node_report.policy, node_report.problems) == ("single-numa-node", ())


def test_an_unknown_word_of_the_deprecated_list_becomes_a_problem() -> None:
    node_report = report.read(topology_of(ZONE, policies=("SingleSocket",)))
    assert (node_report.policy, node_report.knows_policy) == ("unknown", False)
    assert node_report.problems == (
        "topologyPolicies 'SingleSocket': expected a policy such as SingleNUMANodeContainerLevel; "
        "the node's policy is unknown, only sums are checked",
    )


CPUS = {"cpu": ("8", "8", "8")}


@pytest.mark.parametrize(
    ("zones", "ids", "policy", "problems", "fits", "does_not_fit"),
    [
        pytest.param(
            [], None, "single-numa-node",
            ("zones: none of type Node named node-<id>, expected one per NUMA node; nothing is checked",),
            {"cpu": "1000", "memory": "1Pi", "gpu": 3}, None, id="none",
        ),
        # A kubelet with max-allowable-numa-nodes supports 12 nodes; most exporters do not publish the option.
        pytest.param(
            [ZONE] * 12, None, "single-numa-node", (),
            {"cpu": "8", "memory": "8Gi"}, {"cpu": "9", "memory": "8Gi"}, id="more than eight keep their policy",
        ),
        pytest.param(
            [ZONE] * 17, None, "single-numa-node",
            ("zones: 17, expected up to 16 with a policy; only sums are checked",),
            {"cpu": "136", "memory": "1Gi"}, {"cpu": "137", "memory": "1Gi"}, id="more than can be combined",
        ),
        pytest.param(
            [ZONE] * 7, (0, 63, 64, 65, 66, 67, 68), "best-effort",
            (
                "zones: node-64, node-65, node-66, node-67 and 1 more, expected ids below 64, as many bits as the "
                "kubelet's masks have: it panics when it aligns a pod on such a machine; left out",
            ),
            {"cpu": "16", "memory": "1Gi"}, {"cpu": "17", "memory": "1Gi"}, id="beyond the kubelet's masks",
        ),
        pytest.param(
            [CPUS] * 2, (0, 64), "none", (), {"cpu": "16", "memory": "1Gi"}, None, id="beyond masks that align nothing",
        ),
    ],
)  # fmt: skip
def test_numbers_and_ids_of_zones(
    zones: list[dict[str, tuple[str, str, str]]],
    ids: tuple[int, ...] | None,
    policy: str,
    problems: tuple[str, ...],
    fits: dict[str, str | int],
    does_not_fit: dict[str, str | int] | None,
) -> None:
    node_report = report.read(topology_of(*zones, ids=ids, topologyManagerPolicy=policy))
    assert node_report.problems == problems
    assert kubelet_of(node_report).admit(pod_of("a", fits)).admitted
    if does_not_fit is not None:
        assert not kubelet_of(node_report).admit(pod_of("a", does_not_fit)).admitted


def test_no_zone_that_a_kubelet_could_align_to() -> None:
    node_report = report.read(topology_of(ZONE, ids=(64,), topologyManagerPolicy="restricted"))
    assert len(node_report.problems) == 1
    assert not kubelet_of(node_report).admit(pod_of("a", {"cpu": "1", "memory": "1Gi"})).admitted


def test_hugepages_of_no_known_size_are_not_checked() -> None:
    node_report = report.read(topology_of({**ZONE, "hugepages-2048Ki": ("0", "0", "0")}))
    assert node_report.problems == (
        "zone node-0: 'hugepages-2048Ki', expected a size such as hugepages-2Mi; not checked",
    )
    assert kubelet_of(node_report).admit(pod_of("a", requests={"cpu": "1", "hugepages-2048Ki": "2Mi"})).admitted
