"""Reading any object returns a report, and each unusable part becomes a problem of the report."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples import examples
from sandbox.exported import exported
from sandbox.judging import judge
from topowise import attributes, nrt, pods
from topowise.kubeletconfig import KubeletConfiguration, MemoryReservation
from topowise_scheduler import report
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, MemoryBlock, NumaNode, Placement
from topowise_scheduler.report import koordlet
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.engine import Engine

GI = 1 << 30
CONFIG = KubeletConfiguration(
    topologyManagerPolicy="single-numa-node",
    cpuManagerPolicy="static",
    memoryManagerPolicy="Static",
    reservedSystemCPUs="0",
    systemReserved={"memory": "1Gi"},
    reservedMemory=(MemoryReservation(0, {"memory": "1Gi"}),),
)
_REQUESTS: pods.Quantities = {"cpu": "2", "memory": "1Gi", "gpu": 1, "hugepages-2Mi": "2Mi"}
POD = pods.Pod(pods.Metadata("q", "default", "q"), pods.Spec((pods.Container("c", pods.Resources(limits=_REQUESTS)),)))
MACHINE = Machine(
    numa=tuple(
        NumaNode(at, 4 * GI, tuple(Core(at, (2 * core + 4 * at,)) for core in range(2)), {2048: 8}, (10, 20))
        for at in range(2)
    ),
    devices=(DevicePlugin("gpu", (Device("g0", (0,)), Device("g1", (1,)))),),
)


def whole() -> nrt.NodeResourceTopology:
    kubelet = Kubelet(MACHINE, CONFIG)
    placement = Placement("app", None, False, 0b100, (MemoryBlock("memory", (0,), GI),), {"gpu": ("g0",)})
    kubelet.hold("p", {"cpu": 1000}, {"c": placement})
    return exported(MACHINE, CONFIG, kubelet)


WHOLE = whole()
ON_TOP = [attribute.name for attribute in WHOLE.attributes or ()]
OF_ZONE = [attribute.name for attribute in (WHOLE.zones or ())[0].attributes or ()]
NEEDED = {
    attributes.CORES,
    attributes.HOLDINGS,
    attributes.KUBELET_CONFIGURATION,
    attributes.ZONE_CPUS,
    attributes.ZONE_CPUS_AVAILABLE,
}

# Text that resembles values of topowise attributes.
_LIKE_OURS = st.text("0123456789-,:;/[]{}\"'. nullaeE", max_size=30)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
).map(lambda value: msgspec.json.encode(_within_64_bits(value)).decode())
GARBAGE = st.text(max_size=40) | _LIKE_OURS | _JSON


def _within_64_bits(value: Any) -> Any:
    if isinstance(value, list):
        return [_within_64_bits(item) for item in value]
    if isinstance(value, dict):
        return {key: _within_64_bits(item) for key, item in value.items()}
    return value % (1 << 63) if isinstance(value, int) and not isinstance(value, bool) else value


def with_attribute(listed: tuple[nrt.Attribute, ...] | None, name: str, text: str | None) -> tuple[nrt.Attribute, ...]:
    remaining = [attribute for attribute in listed or () if attribute.name != name]
    return (*remaining, *([] if text is None else [nrt.Attribute(name, text)]))


def without_marks(read: report.Report) -> report.Report:
    return msgspec.structs.replace(read, marks=b"", zone_marks=b"")


READ = report.read_lazily(nrt.decode_lazily(msgspec.json.encode(WHOLE)))


def check(topology: nrt.NodeResourceTopology) -> report.Report:
    """Reads the object, which is exact or has a problem, and uses its kubelet model."""
    node_report = use(topology)
    assert (node_report.precision == "counts") <= bool(node_report.problems)
    return node_report


def use(topology: nrt.NodeResourceTopology) -> report.Report:
    """Reads the object, alone, after the full report and after itself with equal results; uses its kubelet model."""
    node_report = report.read(topology)
    apart = nrt.decode_lazily(msgspec.json.encode(topology))
    for before in (None, READ, report.read_lazily(apart)):
        anew = report.read_lazily(apart, before=before)
        assert without_marks(anew) == without_marks(node_report)
    assert node_report.name == "n1"
    assert all(line and line == " ".join(line.split("\n")) for line in node_report.problems)
    kubelet = report.kubelet_of(node_report, lambda _name: None)
    kubelet.admit(POD)
    for uid in list(kubelet.active):
        kubelet.remove(uid)
    kubelet.admit(POD)
    engine = Engine()
    engine.put("n1", kubelet)
    assert judge(engine, PodRequests(pods.needs(POD))).outcome.shape == (1,)
    return node_report


def test_the_whole_object_is_exact() -> None:
    assert check(WHOLE).precision == "exact"
    assert READ.zone_marks


def test_an_unchanged_zone_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = WHOLE.zones or ()
    resources = tuple([msgspec.structs.replace(resource, available="0") for resource in first.resources or ()])
    changed = msgspec.structs.replace(WHOLE, zones=(msgspec.structs.replace(first, resources=resources), second))
    expected = without_marks(report.read(changed))
    apart = nrt.decode_lazily(msgspec.json.encode(changed))
    decoded: list[str] = []
    decode = nrt.LazyZone.whole

    def whole(zone: nrt.LazyZone) -> nrt.Zone:
        decoded.append(zone.name)
        return decode(zone)

    monkeypatch.setattr(nrt.LazyZone, "whole", whole)
    node_report = report.read_lazily(apart, before=READ)
    assert without_marks(node_report) == expected
    assert decoded == ["node-0"]
    assert node_report.empty is READ.empty


@pytest.mark.parametrize("keep", [0, 1], ids=["first", "second"])
def test_a_removed_or_changed_zone_changes_the_node(keep: int) -> None:
    zones = WHOLE.zones or ()
    use(msgspec.structs.replace(WHOLE, zones=(zones[keep],)))
    use(msgspec.structs.replace(WHOLE, zones=zones[::-1]))
    renamed_zone = msgspec.structs.replace(zones[keep], name="node-7")
    use(msgspec.structs.replace(WHOLE, zones=(zones[1 - keep], renamed_zone)))
    use(msgspec.structs.replace(WHOLE, zones=(zones[keep], msgspec.structs.replace(zones[1], type="Socket"))))


@settings(max_examples=examples(), deadline=None)
@given(st.sampled_from(ON_TOP), GARBAGE | st.none())
@example(attributes.CORES, "0:0:0-1048576")
@example(attributes.CORES, "0:0:0,2,4,6;0:0:0")
@example(attributes.CORES, "-1:-1:0,2,4,6")
@example(attributes.HOLDINGS, '[["a","b",[["c","1000000",[],{"gpu":["zz"],"new":["x"]}]]]]')
@example(attributes.HOLDINGS, '[["a","b",[["c","",[["hugepages-1Gi","0",5]],{}]]]]')
@example(attributes.KUBELET_CONFIGURATION, '{"cpuManagerPolicy":"static","reservedSystemCPUs":"1000000"}')
@example(attributes.KUBELET_CONFIGURATION, '{"evictionHard":{"memory.available":"1e400%"}}')
@example(attributes.DEVICES, '{"gpu":{"999999":["g0"],"0":["g0"]}}')
def test_garbage_in_a_top_level_attribute_becomes_a_problem(name: str, text: str | None) -> None:
    node_report = check(msgspec.structs.replace(WHOLE, attributes=with_attribute(WHOLE.attributes, name, text)))
    if text is None and name in NEEDED:
        assert node_report.precision == "counts"


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from(OF_ZONE), GARBAGE | st.none())
@example(attributes.ZONE_CPUS, "")
@example(attributes.ZONE_CPUS, "0-7")
@example(attributes.ZONE_CPUS_AVAILABLE, "0-100000")
@example(attributes.MEMORY_CELLS, "1")
@example(attributes.MEMORY_CELLS, "7")
@example(attributes.MEMORY_ASSIGNMENTS, "-1")
def test_garbage_in_a_zone_attribute_becomes_a_problem(name: str, text: str | None) -> None:
    first, *other_zones = WHOLE.zones or ()
    first = msgspec.structs.replace(first, attributes=with_attribute(first.attributes, name, text))
    node_report = check(msgspec.structs.replace(WHOLE, zones=(first, *other_zones)))
    if text is None and name in NEEDED:
        assert node_report.precision == "counts"


@settings(max_examples=examples(30), deadline=None)
@given(
    st.sampled_from(["cpu", "memory", "hugepages-2Mi", "gpu"]),
    st.sampled_from(["capacity", "allocatable", "available"]),
    st.text(max_size=20) | st.integers(-(1 << 63), 1 << 63) | st.integers(-10, 10).map(str),
    st.booleans(),
)
def test_garbage_in_an_amount_becomes_a_problem(name: str, which: str, amount: str | int, from_exporter: bool) -> None:
    first, *other_zones = WHOLE.zones or ()
    resources = tuple(
        msgspec.structs.replace(resource, **{which: amount}) if resource.name == name else resource
        for resource in first.resources or ()
    )
    topology = msgspec.structs.replace(WHOLE, zones=(msgspec.structs.replace(first, resources=resources), *other_zones))
    if from_exporter:
        check(topology)
    else:
        topology = msgspec.structs.replace(topology, attributes=())
        kubelet = report.kubelet_of(report.read(topology), lambda _name: None)
        kubelet.admit(POD)
        assert kubelet.node_ids == (0, 1)


@pytest.mark.parametrize("from_exporter", [True, False])
@pytest.mark.parametrize("amount", ["1e30", "-1e30", "8191Pi", 1 << 62])
@pytest.mark.parametrize("name", ["cpu", "memory", "hugepages-2Mi"])
def test_an_impossible_amount_does_not_end_the_service(name: str, amount: str | int, from_exporter: bool) -> None:
    zones = tuple(
        msgspec.structs.replace(
            zone,
            resources=tuple(
                nrt.Resource(resource.name, amount, amount, amount) if resource.name == name else resource
                for resource in zone.resources or ()
            ),
        )
        for zone in WHOLE.zones or ()
    )
    node_report = use(msgspec.structs.replace(WHOLE, zones=zones, attributes=WHOLE.attributes if from_exporter else ()))
    assert node_report.precision == "counts"


@pytest.mark.parametrize("config", ['{"systemReserved":{"memory":"1e30"}}', '{"maxPods":-9223372036854775808}'])
def test_impossible_reservations_do_not_end_the_service(config: str) -> None:
    named = with_attribute(WHOLE.attributes, attributes.KUBELET_CONFIGURATION, config)
    check(msgspec.structs.replace(WHOLE, attributes=named))


def test_an_impossible_sum_of_zones_does_not_end_the_service() -> None:
    most = nrt.Resource("memory", "1e30", "1e30", "1e30")
    zones = tuple(nrt.Zone(f"node-{at}", "Node", resources=(most,)) for at in range(2000))
    node_report = report.read(nrt.NodeResourceTopology(metadata=nrt.Metadata("n1"), zones=zones))
    Engine().put("n1", report.kubelet_of(node_report, lambda _name: None))


@pytest.mark.parametrize("cost", [-1, 1 << 63, 1 << 40])
@pytest.mark.parametrize("from_exporter", [True, False])
def test_an_impossible_distance_is_ignored(cost: int, from_exporter: bool) -> None:
    first, *other_zones = WHOLE.zones or ()
    costs = (nrt.Cost("node-0", 10), nrt.Cost("node-1", cost))
    topology = msgspec.structs.replace(WHOLE, zones=(msgspec.structs.replace(first, costs=costs), *other_zones))
    node_report = use(topology if from_exporter else msgspec.structs.replace(topology, attributes=()))
    assert node_report.empty.topology_manager.distances is None


def test_only_the_first_of_thousands_of_problems_are_listed() -> None:
    zones = tuple(nrt.Zone(f"{'z' * 5000}{at}", "Node") for at in range(200))
    node_report = report.read(nrt.NodeResourceTopology(metadata=nrt.Metadata("n1"), zones=zones))
    assert len(node_report.problems) < 20
    assert node_report.problems[-1].startswith("and 18")
    assert max(map(len, node_report.problems)) <= 500


@pytest.mark.parametrize("annotation", [koordlet.CPU_MANAGER_POLICY, koordlet.CPU_TOPOLOGY])
def test_a_deeply_nested_koordlet_annotation_becomes_a_problem(annotation: str) -> None:
    annotations = {koordlet.CPU_MANAGER_POLICY: '{"policy":"static","reservedCPUs":"0"}', koordlet.CPU_TOPOLOGY: "{}"}
    annotations[annotation] = '{"x":' * 3000 + "1" + "}" * 3000
    node_report = report.read(nrt.NodeResourceTopology(metadata=nrt.Metadata("n1", annotations=annotations)))
    assert any(koordlet.CPU_TOPOLOGY in problem for problem in node_report.problems)


@settings(max_examples=examples(), deadline=None)
@given(st.lists(st.builds(nrt.Zone, st.text(max_size=8) | st.just("node-3"), st.just("Node")), max_size=4))
def test_a_zone_of_any_name_is_read_or_becomes_a_problem(zones: list[nrt.Zone]) -> None:
    node_report = report.read(nrt.NodeResourceTopology(metadata=nrt.Metadata("n1"), zones=tuple(zones)))
    named = sum(nrt.zone_id(zone.name) is None for zone in zones)
    assert len(node_report.problems) >= named
    report.kubelet_of(node_report, lambda _name: None)


@pytest.mark.parametrize("damaged", [None, attributes.HOLDINGS])
def test_reports_of_both_precisions_have_admitting_pods_and_unconfirmed_parts(damaged: str | None) -> None:
    doubts = (
        nrt.Attribute(attributes.ADMITTING, "default/q,team-a/p"),
        nrt.Attribute(attributes.UNCONFIRMED, "pods,a-word-of-later"),
    )
    listed = tuple(attribute for attribute in WHOLE.attributes or () if attribute.name != damaged)
    node_report = report.read(msgspec.structs.replace(WHOLE, attributes=(*listed, *doubts)))
    assert node_report.precision == ("counts" if damaged else "exact")
    assert node_report.admitting == {("default", "q"), ("team-a", "p")}
    assert node_report.unconfirmed == ("a-word-of-later", "pods")
    assert report.read(WHOLE).admitting == frozenset()
    assert report.read(WHOLE).unconfirmed == ()
