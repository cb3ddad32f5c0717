"""Every bound of a report, for each format of an object: exact, counts, koordlet and v1alpha1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduling import exact, kubelet
from topowise import attributes, nrt, pods
from topowise_scheduler import report
from topowise_scheduler.report import budget, koordlet
from topowise_scheduler.report.nrt_report import Report

Json = dict[str, Any]
SINGLE = [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]


def zone(number: int, *names: str) -> Json:
    amounts = dict.fromkeys(("capacity", "allocatable", "available"), "4")
    return {
        "name": f"node-{number}",
        "type": "Node",
        "resources": [{"name": name, **amounts} for name in ("cpu", *names)],
    }


def counts(*zones: Json, **fields: Any) -> Json:
    return {"metadata": {"name": "n1", "resourceVersion": "1"}, "attributes": SINGLE, "zones": list(zones), **fields}


def v1alpha1(*zones: Json) -> Json:
    """An object of the old definition of Koordinator and RTE, which has no top-level attributes."""
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "metadata": {"name": "n1", "resourceVersion": "1"},
        "topologyPolicies": ["SingleNUMANodeContainerLevel"],
        "zones": list(zones),
    }


def of_koordlet(*zones: Json) -> Json:
    document = v1alpha1(*zones)
    document["metadata"]["annotations"] = {
        koordlet.CPU_TOPOLOGY: '{"detail":[]}',
        koordlet.CPU_MANAGER_POLICY: '{"policy":"static"}',
    }
    return document


COUNTS: dict[str, Callable[..., Json]] = {"counts": counts, "v1alpha1": v1alpha1, "koordlet": of_koordlet}


def exporter_document(**changed: str) -> Json:
    """An object of topowise's exporter, with changed values of some attributes."""
    document: Json = msgspec.json.decode(msgspec.json.encode(exact(kubelet())))
    named = {attribute["name"]: attribute["value"] for attribute in document["attributes"]}
    named |= {getattr(attributes, name): text for name, text in changed.items()}
    document["attributes"] = [{"name": name, "value": text} for name, text in named.items()]
    return document


def read(document: Json) -> Report:
    """Reads an object the way the scheduler service does."""
    return report.read_bytes(msgspec.json.encode(document), lambda _: ("", (), None))


def names(count: int) -> list[str]:
    return [f"example.com/r{number}" for number in range(count)]


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize(
    ("zones", "why"),
    [
        ([zone(0, *names(budget.MAX_NAMES))], "resources: 129 names, expected at most 128"),
        (
            [zone(0, *names(70)), zone(1, *(f"example.com/other{number}" for number in range(70)))],
            "resources: 141 names, expected at most 128",
        ),
        ([zone(0, "x" * 318)], "resources: 318 characters in a name, expected at most 317"),
        ([zone(number, *names(31)) for number in range(33)], "zones: 1056 resources in all, expected at most 1024"),
        ([zone(number) for number in range(257)], "zones: 257, expected at most 256"),
    ],
)
def test_a_report_of_counts_above_a_bound_is_not_used(kind: str, zones: list[Json], why: str) -> None:
    node_report = read(COUNTS[kind](*zones))
    assert node_report.over_budget.startswith(why)
    assert node_report.problems == (node_report.over_budget,)
    assert (node_report.name, node_report.version) == ("n1", "1")
    assert not node_report.empty.devices.tables
    assert not node_report.placeholders


@pytest.mark.parametrize("kind", COUNTS)
def test_a_report_of_counts_at_the_bounds_is_used(kind: str) -> None:
    node_report = read(COUNTS[kind](zone(0, *names(budget.MAX_NAMES - 1))))
    assert not node_report.over_budget
    assert len(node_report.empty.devices.tables) == budget.MAX_NAMES - 1


def test_attributes_are_bounded_on_top_and_of_all_zones_together() -> None:
    many = [{"name": f"a{number}", "value": ""} for number in range(2000)]
    zones = [{**zone(number), "attributes": many} for number in (0, 1)]
    assert not read(counts(*zones)).over_budget
    node_report = read(counts(*zones, attributes=[*SINGLE, *many]))
    assert node_report.over_budget.startswith("attributes: 6001 on top and of all zones, expected at most 4096")


def test_the_size_of_an_object_is_bounded() -> None:
    document = counts(zone(0))
    document["metadata"]["annotations"] = {"a": "x" * budget.MAX_BYTES}
    size = len(msgspec.json.encode(document))
    node_report = read(document)
    assert node_report.over_budget.startswith(f"object: {size} bytes, expected at most {budget.MAX_BYTES}")
    assert (node_report.name, node_report.version) == ("n1", "1")
    document["metadata"]["annotations"] = {"a": "x" * (budget.MAX_BYTES - 1000)}
    assert not read(document).over_budget


def test_a_decoded_object_is_bounded_too() -> None:
    topology = nrt.decode(msgspec.json.encode(counts(zone(0, *names(200)))))
    assert report.read(topology).over_budget
    assert report.read(nrt.decode(msgspec.json.encode(counts(zone(0)))), size=budget.MAX_BYTES + 1).over_budget


def holdings_text(pods_of: int, containers: int) -> str:
    each = [[f"c{number}", "1", [], {}] for number in range(containers)]
    return msgspec.json.encode([["ns", f"p{number}", each] for number in range(pods_of)]).decode()


@pytest.mark.parametrize(
    ("attribute", "text", "why"),
    [
        ("DEVICES", {name: {"0": ["d"]} for name in names(129)}, "129 devices of 129 resources, expected up to 8192"),
        ("DEVICES", {"x" * 318: {"0": ["d"]}}, "names of up to 317 characters"),
        ("DEVICES", {"a/b": {"0": [f"d{at}" for at in range(8193)]}}, "8193 devices of 1 resources, expected up to"),
        ("HOLDINGS", holdings_text(1025, 1), "1025 pods, expected up to 1024"),
        ("HOLDINGS", holdings_text(1, 257), "257 containers of a pod, expected up to 256"),
        ("HOLDINGS", holdings_text(65, 32), "2080 containers, expected up to 2048"),
    ],
)
def test_an_exact_report_above_a_bound_becomes_a_report_of_counts(attribute: str, text: object, why: str) -> None:
    node_report = read(
        exporter_document(**{attribute: text if isinstance(text, str) else msgspec.json.encode(text).decode()})
    )
    assert (node_report.precision, node_report.over_budget) == ("counts", "")
    assert any(why in problem and "the node is predicted from counts" in problem for problem in node_report.problems)


def test_sizes_of_pages_and_reservations_of_an_exact_report_are_bounded() -> None:
    document = exporter_document()
    document["zones"][0]["resources"] += [
        {"name": f"hugepages-{number}Ki", "capacity": "0", "allocatable": "0", "available": "0"}
        for number in range(3, 37, 2)
    ]
    node_report = read(document)
    assert (node_report.precision, node_report.over_budget) == ("counts", "")
    assert any("sizes of hugepages: 17, expected up to 16" in problem for problem in node_report.problems)

    configuration = {
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Mi"}} for _ in range(65)],
    }
    node_report = read(exporter_document(KUBELET_CONFIGURATION=msgspec.json.encode(configuration).decode()))
    assert any("entries of reservedMemory: 65, expected up to 64" in problem for problem in node_report.problems)


def test_an_exact_report_at_the_bounds_stays_exact() -> None:
    devices = {name: {"0": [f"{name}-{at}" for at in range(64)]} for name in names(128)}
    node_report = read(
        exporter_document(DEVICES=msgspec.json.encode(devices).decode(), HOLDINGS=holdings_text(1024, 2))
    )
    assert node_report.precision == "exact"
    assert len(node_report.empty.devices.tables) == 128
    assert len(node_report.held) == 1024


def test_resources_that_no_node_advertises_are_exact_within_the_bounds() -> None:
    """A device plugin may register before the Node status lists its resource; a report may precede its Node."""
    node_report = read(counts(zone(0, "example.com/nic")))
    node = report.kubelet_of(node_report, lambda _: None)
    limits = {"cpu": "1", "memory": "1Gi", "example.com/nic": "5"}
    container = pods.Container("c", pods.Resources(limits=limits))
    pod = pods.Pod(metadata=pods.Metadata("p", uid="p"), spec=pods.Spec(containers=(container,)))
    assert not node.admit(pod).admitted
    limits["example.com/nic"] = "4"
    assert node.admit(pod).admitted


@pytest.mark.parametrize("documents", [[counts(zone(0, *names(200))), counts(zone(0))]])
def test_whether_a_report_is_used_does_not_depend_on_the_report_before(documents: list[Json]) -> None:
    large, small = documents
    before = read(small)
    again = report.read_bytes(msgspec.json.encode(large), lambda _: ("", (), before))
    assert again.over_budget == read(large).over_budget != ""
