"""Every bound of a report, on each of the ways to read an object: exact, counts, koordlet's, and v1alpha1."""

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


def old(*zones: Json) -> Json:
    """As Koordinator's and RTE's old definition has it: without attributes on top."""
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "metadata": {"name": "n1", "resourceVersion": "1"},
        "topologyPolicies": ["SingleNUMANodeContainerLevel"],
        "zones": list(zones),
    }


def of_koordlet(*zones: Json) -> Json:
    document = old(*zones)
    document["metadata"]["annotations"] = {
        koordlet.CPU_TOPOLOGY: '{"detail":[]}',
        koordlet.CPU_MANAGER_POLICY: '{"policy":"static"}',
    }
    return document


COUNTS: dict[str, Callable[..., Json]] = {"counts": counts, "v1alpha1": old, "koordlet": of_koordlet}


def ours(**changed: str) -> Json:
    """What our exporter writes, with other texts of some attributes."""
    document: Json = msgspec.json.decode(msgspec.json.encode(exact(kubelet())))
    named = {one["name"]: one["value"] for one in document["attributes"]}
    named |= {getattr(attributes, name): text for name, text in changed.items()}
    document["attributes"] = [{"name": name, "value": text} for name, text in named.items()]
    return document


def read(document: Json) -> Report:
    """As the daemon reads it."""
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
    found = read(COUNTS[kind](*zones))
    assert found.over_budget.startswith(why)
    assert found.problems == (found.over_budget,)
    assert (found.name, found.version) == ("n1", "1")
    assert not found.empty.devices.tables
    assert not found.occupants


@pytest.mark.parametrize("kind", COUNTS)
def test_a_report_of_counts_at_the_bounds_is_used(kind: str) -> None:
    found = read(COUNTS[kind](zone(0, *names(budget.MAX_NAMES - 1))))
    assert not found.over_budget
    assert len(found.empty.devices.tables) == budget.MAX_NAMES - 1


def test_attributes_are_bounded_on_top_and_of_all_zones_together() -> None:
    many = [{"name": f"a{number}", "value": ""} for number in range(2000)]
    zones = [{**zone(number), "attributes": many} for number in (0, 1)]
    assert not read(counts(*zones)).over_budget
    found = read(counts(*zones, attributes=[*SINGLE, *many]))
    assert found.over_budget.startswith("attributes: 6001 on top and of all zones, expected at most 4096")


def test_bytes_are_bounded_whatever_they_are_of() -> None:
    document = counts(zone(0))
    document["metadata"]["annotations"] = {"a": "x" * budget.MAX_BYTES}
    size = len(msgspec.json.encode(document))
    found = read(document)
    assert found.over_budget.startswith(f"object: {size} bytes, expected at most {budget.MAX_BYTES}")
    assert (found.name, found.version) == ("n1", "1")
    document["metadata"]["annotations"] = {"a": "x" * (budget.MAX_BYTES - 1000)}
    assert not read(document).over_budget


def test_what_is_read_without_its_bytes_is_bounded_too() -> None:
    topology = nrt.decode(msgspec.json.encode(counts(zone(0, *names(200)))))
    assert report.read(topology).over_budget
    assert report.read(nrt.decode(msgspec.json.encode(counts(zone(0)))), size=budget.MAX_BYTES + 1).over_budget


def held(pods_of: int, containers: int) -> str:
    each = [[f"c{number}", "1", [], {}] for number in range(containers)]
    return msgspec.json.encode([["ns", f"p{number}", each] for number in range(pods_of)]).decode()


@pytest.mark.parametrize(
    ("attribute", "text", "why"),
    [
        ("DEVICES", {name: {"0": ["d"]} for name in names(129)}, "129 devices of 129 resources, expected up to 8192"),
        ("DEVICES", {"x" * 318: {"0": ["d"]}}, "names of up to 317 characters"),
        ("DEVICES", {"a/b": {"0": [f"d{at}" for at in range(8193)]}}, "8193 devices of 1 resources, expected up to"),
        ("HOLDINGS", held(1025, 1), "1025 pods, expected up to 1024"),
        ("HOLDINGS", held(1, 257), "257 containers of a pod, expected up to 256"),
        ("HOLDINGS", held(65, 32), "2080 containers, expected up to 2048"),
    ],
)
def test_an_exact_report_with_too_much_of_a_part_is_one_of_counts(attribute: str, text: object, why: str) -> None:
    found = read(ours(**{attribute: text if isinstance(text, str) else msgspec.json.encode(text).decode()}))
    assert (found.precision, found.over_budget) == ("counts", "")
    assert any(why in problem and "the node is predicted from counts" in problem for problem in found.problems)


def test_sizes_of_pages_and_reservations_of_an_exact_report_are_bounded() -> None:
    document = ours()
    document["zones"][0]["resources"] += [
        {"name": f"hugepages-{number}Ki", "capacity": "0", "allocatable": "0", "available": "0"}
        for number in range(3, 37, 2)
    ]
    found = read(document)
    assert (found.precision, found.over_budget) == ("counts", "")
    assert any("sizes of hugepages: 17, expected up to 16" in problem for problem in found.problems)

    configuration = {
        "memoryManagerPolicy": "Static",
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Mi"}} for _ in range(65)],
    }
    found = read(ours(KUBELET_CONFIGURATION=msgspec.json.encode(configuration).decode()))
    assert any("entries of reservedMemory: 65, expected up to 64" in problem for problem in found.problems)


def test_an_exact_report_at_the_bounds_stays_exact() -> None:
    devices = {name: {"0": [f"{name}-{at}" for at in range(64)]} for name in names(128)}
    found = read(ours(DEVICES=msgspec.json.encode(devices).decode(), HOLDINGS=held(1024, 2)))
    assert found.precision == "exact"
    assert len(found.empty.devices.tables) == 128
    assert len(found.held) == 1024


def test_resources_that_no_node_advertises_are_exact_within_the_bounds() -> None:
    """A device plug-in may register before the status of its Node says so, and a report may come before its Node."""
    found = read(counts(zone(0, "example.com/nic")))
    node = report.kubelet_of(found, lambda _: None)
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
