"""The kubelet version of a report, from its exporter and from its Node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sandbox.exported import exported
from scheduling import configuration, exact, kubelet, machine
from topowise import nrt
from topowise_scheduler import report
from topowise_scheduler.kubelet import Kubelet, Machine, NumaNode
from topowise_scheduler.kubelet.versions import version_of
from topowise_scheduler.report.reader import choose

from .conftest import pod_of, topology_of


def shown(topology: nrt.NodeResourceTopology, version: str) -> nrt.NodeResourceTopology:
    attribute = nrt.Attribute("topowise.io/kubelet-version", version)
    return msgspec.structs.replace(topology, attributes=(*(topology.attributes or ()), attribute))


@pytest.mark.parametrize(
    ("attribute", "node", "name", "certainty"),
    [
        ("", "", "1.36", "recorded"),
        ("", "v1.33.5+k3s1", "1.33", "recorded"),
        ("v1.34.1", "", "1.34", "recorded"),
        ("v1.34.1", "v1.34.9", "1.34", "recorded"),
        ("", "v1.39.0", "1.38", "assumed"),
        ("", "devel", "1.36", "assumed"),
    ],
)
def test_a_version_chooses_its_kubelet(attribute: str, node: str, name: str, certainty: str) -> None:
    choice = choose(attribute, node)
    assert (choice.kubelet.name, choice.kubelet.certainty, choice.problem) == (name, certainty, "")


@pytest.mark.parametrize(
    ("attribute", "node", "name", "certainty", "problem"),
    [
        (
            "v1.36.2",
            "v1.33.1",
            "1.36",
            "assumed",
            "'v1.36.2', the Node says 'v1.33.1'; predicted as the newer version, 1.36",
        ),
        (
            "v1.33.1",
            "v1.36.2",
            "1.36",
            "assumed",
            "'v1.33.1', the Node says 'v1.36.2'; predicted as the newer version, 1.36",
        ),
        (
            "new",
            "v1.33.1",
            "1.33",
            "recorded",
            "'new', expected a version such as v1.33.5; the Node's 'v1.33.1' is taken",
        ),
        ("new", "", "1.36", "assumed", "'new', expected a version such as v1.33.5; predicted as 1.36"),
    ],
)
def test_contradictory_versions_are_a_single_problem_and_unproven(
    attribute: str, node: str, name: str, certainty: str, problem: str
) -> None:
    choice = choose(attribute, node)
    assert (choice.kubelet.name, choice.kubelet.certainty) == (name, certainty)
    assert choice.problem == f"attribute topowise.io/kubelet-version: {problem}"


def test_a_report_decides_as_the_kubelet_of_its_node() -> None:
    for version in ("v1.28.15", "v1.33.1", "v1.36.2"):
        node_report = report.read(exact(kubelet()), version)
        assert (node_report.precision, node_report.problems) == ("exact", ())
        assert node_report.empty.settings.behaviour == version_of(version).behaviour
        assert node_report.exact_for == version_of(version).name
    assert report.read(exact(kubelet())).exact_for == ""


def test_counts_take_the_version_of_the_node() -> None:
    zone = {"cpu": ("8", "8", "8"), "memory": ("8Gi", "8Gi", "8Gi")}
    node_report = report.read(topology_of(zone, zone, topologyManagerPolicy="restricted"), "v1.31.2")
    settings = node_report.empty.settings
    assert (settings.behaviour, settings.pod_level_resources) == (version_of("v1.31.2").behaviour, False)


def test_a_later_version_reads_as_an_initial_version() -> None:
    for topology in (exact(kubelet()), shown(exact(kubelet()), "v1.36.2"), shown(exact(kubelet()), "?")):
        later = report.of_node(report.read(topology), "v1.33.1")
        first = report.read(topology, "v1.33.1")
        assert (later.kubelet, later.problems, later.exact_for) == (first.kubelet, first.problems, first.exact_for)
        assert later.empty.settings == first.empty.settings
        assert report.of_node(later, "v1.33.1") is later
        assert report.of_node(later, "").problems == report.read(topology).problems


def test_a_kubelet_that_would_not_start_so_does_not_cost_the_report() -> None:
    options: dict[str, Any] = {
        "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "true"},
        "featureGates": {"TopologyManagerPolicyBetaOptions": False},
    }
    config = configuration(**options)
    seen = report.read(exported(machine(), config, Kubelet(machine(), config)), "v1.33.1")
    assert seen.precision == "exact"
    node_report = report.of_node(seen, "v1.31.2")
    assert (node_report.precision, node_report.kubelet.name, node_report.certainty) == ("exact", "1.33", "assumed")
    assert node_report.problems == ("kubelet 1.31 would not start with what is reported; predicted as 1.33",)
    assert report.of_node(node_report, "v1.34.0").problems == ()


@pytest.mark.parametrize("gates", ['{"MemoryManager":"true"}', '["MemoryManager"]', '{"MemoryManager":{}}'])
def test_gates_of_a_wrong_type_cost_the_report_its_precision(gates: str) -> None:
    topology = exact(kubelet())
    changed = tuple(
        msgspec.structs.replace(attribute, value=f'{attribute.value[:-1]},"featureGates":{gates}}}')
        if attribute.name == "topowise.io/kubelet-configuration"
        else attribute
        for attribute in topology.attributes or ()
    )
    node_report = report.read(msgspec.structs.replace(topology, attributes=changed), "v1.33.1")
    assert (node_report.precision, node_report.kubelet.name) == ("counts", "1.33")
    (problem,) = node_report.problems
    assert "$.featureGates" in problem
    assert problem.endswith("; the node is predicted from counts")


def test_unknown_gates_of_a_running_kubelet_are_accepted() -> None:
    config = configuration(featureGates={"SomethingOfThe2040s": True, "MemoryManager": True})
    node_report = report.read(exported(machine(), config, Kubelet(machine(), config)), "v1.36.2")
    assert (node_report.precision, node_report.problems) == ("exact", ())


def test_empty_zones_do_not_count_against_the_policy() -> None:
    """34 NUMA nodes; 32 are GPU memory, which no manager allocates."""
    full = {"cpu": ("8", "8", "4"), "memory": ("8Gi", "8Gi", "8Gi")}
    zones = [{} for _ in range(32)]
    node_report = report.read(topology_of(*zones, full, full, topologyManagerPolicy="single-numa-node"), "v1.34.1")
    assert (node_report.problems, node_report.empty.settings.topology.policy) == ((), "single-numa-node")
    node = report.kubelet_of(node_report, lambda _name: None)
    assert node.fork().admit(pod_of("a", {"cpu": "4", "memory": "1Gi"})).placements["c0"].numa == (32,)
    assert not node.fork().admit(pod_of("a", {"cpu": "5", "memory": "1Gi"})).admitted


def test_a_device_near_a_node_that_was_left_out_brings_the_node_back() -> None:
    """Devices decide which NUMA nodes without CPUs and memory are modelled."""
    bare = tuple(NumaNode(number, 0, (), {}) for number in range(2, 34))
    base = machine()
    wide = Machine(numa=(*(msgspec.structs.replace(node, distances=None) for node in base.numa), *bare))
    options = {"max-allowable-numa-nodes": "64"}
    config = configuration(topologyManagerPolicyOptions=options)
    topology = exported(wide, config, Kubelet(wide, config))
    node_report = report.read(topology, "v1.34.1")
    assert node_report.precision == "exact"
    assert 33 not in node_report.empty.node_ids
    devices = nrt.Attribute("topowise.io/devices", '{"x.io/gpu":{"33":["gpu0"]}}')
    node_report = report.read(msgspec.structs.replace(topology, attributes=(*(topology.attributes or ()), devices)))
    assert node_report.precision == "exact"
    assert 33 in node_report.empty.node_ids
