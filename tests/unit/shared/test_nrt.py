"""NodeResourceTopology objects of every producer decode, and equal content is recognised."""

import msgspec
import pytest

from topowise import attributes, nrt
from topowise.errors import ParseError


def zone(name: str, cpu: str, costs: list[dict[str, object]] | None = None) -> dict[str, object]:
    resources = [{"name": "cpu", "capacity": "8", "allocatable": "8", "available": cpu}]
    return {"name": name, "type": "Node", "resources": resources, "costs": costs}


def topology(*zones: dict[str, object], **more: object) -> nrt.NodeResourceTopology:
    return nrt.decode(msgspec.json.encode({"metadata": {"name": "n"}, "zones": zones, **more}))


def test_zones_are_ordered_by_number_and_other_types_left_to_other_readers() -> None:
    read = topology(zone("node-10", "1"), zone("node-9", "1"), {"name": "socket-0", "type": "Socket"})
    assert [numa_id for numa_id, _ in nrt.numa_zones(read)] == [9, 10]


@pytest.mark.parametrize("name", ["node-", "node-01", "node--1", "node-a", "0", "Node-0", "node-١"])
def test_a_zone_name_that_is_not_canonical_has_no_id(name: str) -> None:
    assert nrt.zone_id(name) is None


def test_spelling_and_order_do_not_make_a_difference() -> None:
    first = topology(zone("node-0", "1000"), zone("node-1", "500m"))
    second = topology(zone("node-1", "0.5"), zone("node-0", "1k"))
    assert nrt.same_content(first, second)
    assert not nrt.same_content(first, topology(zone("node-0", "1000"), zone("node-1", "501m")))


def test_lists_that_go_writes_as_null_are_empty() -> None:
    read = nrt.decode(b'{"metadata":{"name":"n"},"zones":null,"attributes":null,"topologyPolicies":null}')
    assert nrt.numa_zones(read) == []


def test_new_sorts_zones_and_attributes() -> None:
    built = nrt.new(
        "n",
        [nrt.Zone("node-10", "Node"), nrt.Zone("node-2", "Node")],
        [nrt.Attribute("b", "1"), nrt.Attribute("a", "2")],
    )
    assert [item.name for item in built.zones or ()] == ["node-2", "node-10"]
    assert [attribute.name for attribute in built.attributes or ()] == ["a", "b"]


@pytest.mark.parametrize(
    ("values", "legacy", "expected"),
    [
        ({}, None, ("none", "container")),
        ({}, ["SingleNUMANodePodLevel"], ("single-numa-node", "pod")),
        ({}, ["RestrictedContainerLevel"], ("restricted", "container")),
        ({}, ["Surprise", "BestEffort"], ("best-effort", "container")),
        ({}, ["SingleNumaNode"], ("single-numa-node", "container")),
        ({}, ["single-numa-node"], ("single-numa-node", "container")),
        ({}, ["SingleNumaNodePodLevel"], ("single-numa-node", "pod")),
        ({}, ["restricted_pod_level"], ("restricted", "pod")),
        ({}, [""], ("none", "container")),
        ({"topologyManagerPolicy": "SingleNumaNode"}, None, ("single-numa-node", "container")),
        ({"topologyManagerPolicy": "BestEffortPodLevel"}, None, ("best-effort", "pod")),
        (
            {"topologyManagerPolicy": "BestEffortPodLevel", "topologyManagerScope": "Container"},
            None,
            ("best-effort", "container"),
        ),
        ({"topologyManagerPolicy": "restricted"}, ["SingleNUMANodePodLevel"], ("restricted", "pod")),
    ],
)
def test_policy_comes_from_attributes_then_from_the_deprecated_list(
    values: dict[str, str], legacy: list[str] | None, expected: tuple[str, str]
) -> None:
    assert attributes.policy_and_scope(values, legacy) == expected


@pytest.mark.parametrize(
    ("values", "legacy", "named"),
    [
        ({"topologyManagerPolicy": "single"}, None, "'single': expected .*single-numa-node"),
        ({"topologyManagerPolicy": ""}, ["Restricted"], "'': expected"),
        ({"topologyManagerScope": "socket"}, ["Restricted"], "'socket': expected one of container"),
        ({}, ["SingleSocket"], "topologyPolicies 'SingleSocket': expected a policy"),
        ({}, ["Strict", "Loose"], "'Strict, Loose'"),
    ],
)
def test_a_policy_no_kubelet_has_is_an_error(values: dict[str, str], legacy: list[str] | None, named: str) -> None:
    with pytest.raises(ParseError, match=named):
        attributes.policy_and_scope(values, legacy)


def test_option_names_follow_scheduler_plugins() -> None:
    assert attributes.option_name("prefer-closest-numa-nodes") == "topologyManagerOptionPreferClosestNumaNodes"
