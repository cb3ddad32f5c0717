"""Pods with device affinity (topowise.io/device-affinity), as kube-scheduler's HTTP requests show them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from scheduling import WAITS, Service, call, place_together, pod
from switched import GPU, NIC, hardware, hold, published
from topowise import nrt
from topowise.attributes import PCI
from topowise.errors import ConfigError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime import config
from topowise_scheduler.configuration import SchedulerConfiguration
from topowise_scheduler.controllers.alignment import AlignmentPreemption
from topowise_scheduler.explain.refusal_texts import TEXTS, not_together
from topowise_scheduler.kubectl import arguments
from topowise_scheduler.kubectl.console import Console
from topowise_scheduler.kubectl.doctor import command
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.rows import node_states
from topowise_scheduler.options.device_affinity.affinity_terms import ANNOTATION
from topowise_scheduler.options.device_affinity.gate import DeviceAffinityOption
from topowise_scheduler.options.device_affinity.outcomes import Settings
from topowise_scheduler.options.device_affinity.preferred_allocation import Rule
from topowise_scheduler.overlay import defrag
from topowise_scheduler.overlay.defrag.scene import Cluster
from topowise_scheduler.serve import metrics
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.extender.callers import Callers
from topowise_scheduler.verdicts.kube_scheduler import Pod
from topowise_scheduler.verdicts.refusals import Refusal
from volcano import RELEASING, Volcano

REQUIRE = {ANNOTATION: f"require {GPU},{NIC}: pcie-switch"}
PREFER = {ANNOTATION: f"prefer {GPU},{NIC}: pcie-switch"}
CONFIGURATION = KubeletConfiguration(topologyManagerPolicy="single-numa-node", cpuManagerPolicy="none")
# The NUMA node of each device. "g" are GPUs, "n" NICs.
DEVICES = {"g0": 0, "g1": 0, "g2": 1, "g3": 1, "n0": 0, "n1": 0, "n2": 1, "n3": 1}
# The root port of each device, by node.
ONE_SWITCH = DEVICES
TWO_SWITCHES = {name: int(name[1]) for name in DEVICES}
APART = {name: zone + 2 * (name[0] == "n") for name, zone in DEVICES.items()}


def empty() -> Kubelet:
    return Kubelet(hardware(DEVICES), CONFIGURATION)


def node(
    name: str,
    ports: Mapping[str, int],
    kubelet: Kubelet | None = None,
    version: str = "1",
    config: KubeletConfiguration = CONFIGURATION,
) -> nrt.NodeResourceTopology:
    """Returns what the exporter publishes of a node. Without `ports` it has no PCI attributes."""
    return published(kubelet or Kubelet(hardware(DEVICES), config), config, DEVICES, ports, name, version)


def wanting(name: str, annotations: Mapping[str, str], gpus: int = 1, nics: int = 1, **fields: Any) -> dict[str, Any]:
    document = pod(name, annotations=dict(annotations), **fields)
    for amounts in document["spec"]["containers"][0]["resources"].values():
        amounts |= {GPU: str(gpus), NIC: str(nics)}
    return document


ALL = {"one-switch": ONE_SWITCH, "two-switches": TWO_SWITCHES, "apart": APART, "silent": {}}


def service(nodes: Mapping[str, Mapping[str, int]] = ALL, **options: Any) -> Service:
    started = Service(**options)
    for name, ports in nodes.items():
        started.report(node(name, ports))
    return started


def post(service: Service, verb: str, document: dict[str, Any], *names: str) -> Any:
    """Returns the answer of POST /<verb>, after the verb's follow-up work."""
    app = http.Application(service.served(), http.Metrics(CollectorRegistry()), 1 << 20, Callers(()))
    body = msgspec.json.encode({"Pod": document, "Nodes": None, "NodeNames": names})
    return json.loads(call(app, f"/v1/{verb}", body)[1])


def scores(service: Service, document: dict[str, Any], *names: str) -> dict[str, int]:
    return {score["Host"]: score["Score"] for score in post(service, "prioritize", document, *names)}


def test_require_lets_pass_where_it_is_sure() -> None:
    answer = post(service(), "filter", wanting("p", REQUIRE), *ALL)
    assert answer["NodeNames"] == ["one-switch"]
    assert answer["FailedAndUnresolvableNodes"] == {
        "two-switches": TEXTS[Refusal.NOT_SURELY_NEAR],
        "apart": TEXTS[Refusal.NOT_NEAR],
        "silent": TEXTS[Refusal.PLACES_UNKNOWN],
    }


def test_require_can_be_content_with_what_is_possible() -> None:
    running = service(affinity=Settings(admits="possible"))
    answer = post(running, "filter", wanting("p", REQUIRE), *ALL)
    assert answer["NodeNames"] == ["one-switch", "two-switches"]
    assert scores(running, wanting("p", REQUIRE), "one-switch", "two-switches") == {"one-switch": 10, "two-switches": 0}


def test_a_node_without_a_report_is_not_sure() -> None:
    assert post(Service(), "filter", wanting("p", REQUIRE), "n1")["FailedAndUnresolvableNodes"] == {
        "n1": TEXTS[Refusal.PLACES_UNKNOWN]
    }


def test_prefer_refuses_nothing_and_scores_what_is_sure_above_what_is_possible() -> None:
    running = service()
    assert post(running, "filter", wanting("p", PREFER), *ALL)["NodeNames"] == list(ALL)
    by_node = scores(running, wanting("p", PREFER), *ALL)
    assert by_node["one-switch"] > by_node["two-switches"] > by_node["apart"] == by_node["silent"]


def test_an_aligned_node_comes_before_near_devices() -> None:
    """The GPUs of a NUMA node and the NICs of the other are allocated: free devices share a switch, not a NUMA node."""
    config = msgspec.structs.replace(CONFIGURATION, topologyManagerPolicy="best-effort")
    split = hold(Kubelet(hardware(DEVICES), config), "uid-a", 0, gpus=("g0", "g1"), nics=("n2", "n3"))
    running = Service()
    running.report(node("split", dict.fromkeys(DEVICES, 1), split, config=config))
    running.report(node("apart", APART, config=config))
    by_node = scores(running, wanting("p", PREFER), "split", "apart")
    assert by_node["apart"] > by_node["split"]
    assert [term.outcome for name in ("split", "apart") for term in affinity(running, name)] == ["sure", "impossible"]


def affinity(service: Service, name: str, annotations: Mapping[str, str] = PREFER) -> Any:
    document = msgspec.convert(wanting("p", annotations), Pod)
    return service.view.explanations(document, [name])[0].device_affinity


def test_pods_without_the_annotation_are_answered_as_ever() -> None:
    running = service()
    record = running.records.decode(msgspec.json.encode(wanting("p", {"other": "x"})))
    assert record.demands.of_options == ()
    assert post(running, "filter", wanting("p", {"other": "x"}), *ALL)["NodeNames"] == list(ALL)
    assert not running.ledger.gates.option(DeviceAffinityOption)._judged._values


def test_judgements_of_a_node_are_cached_until_it_changes() -> None:
    running = service({"n1": ONE_SWITCH})
    question = running.question(wanting("p", REQUIRE), "n1")
    first = running.ledger.gates.option(DeviceAffinityOption).of(question.record, "n1")
    assert running.ledger.gates.option(DeviceAffinityOption).of(question.record, "n1") is first
    running.report(node("n1", APART, version="2"))
    again = running.ledger.gates.option(DeviceAffinityOption).of(question.record, "n1")
    assert (first.outcomes, again.outcomes) == (("sure",), ("impossible",))


def test_judgements_of_shapes_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_states, "_MOST_BYTES", 20_000)
    running = service({"n1": ONE_SWITCH})

    def judged(number: int) -> Any:
        document = wanting("p", REQUIRE)
        document["spec"]["containers"][0]["resources"]["limits"]["memory"] = str(number)
        record = running.question(document, "n1").record
        return running.ledger.gates.option(DeviceAffinityOption).of(record, "n1")

    first = judged(1)
    assert judged(1) is first
    for number in range(2, 60):
        judged(number)
        assert running.ledger.gates.option(DeviceAffinityOption)._judged._values.bytes <= 20_000
    assert judged(59) is judged(59)
    assert judged(1) is not first


@pytest.mark.parametrize(("rule", "outcome"), [("any", "possible"), ("lowest-ids", "sure")])
def test_a_plugin_whose_rule_is_known_narrows_the_choice(rule: Rule, outcome: str) -> None:
    """The devices with the lowest ids of both resources share a switch."""
    running = service({"n1": TWO_SWITCHES}, affinity=Settings({GPU: rule, NIC: rule}))
    assert [term.outcome for term in affinity(running, "n1")] == [outcome]


def test_rules_of_plugins_are_configured() -> None:
    head = b"apiVersion: topowise.io/v1alpha1\nkind: SchedulerConfiguration\n"
    text = b"deviceAffinity: {required: possible, plugins: [{resource: nvidia.com/gpu, rule: nvidia}]}\n"
    assert config.parse(SchedulerConfiguration, head + text).device_affinity.settings == Settings(
        {GPU: "nvidia"}, "possible"
    )
    assert config.parse(SchedulerConfiguration, head).device_affinity.settings == Settings()
    with pytest.raises(ConfigError, match=r"deviceAffinity\.plugins"):
        config.parse(SchedulerConfiguration, head + text.replace(b"rule: nvidia", b"rule: amd"))


BAD = {
    "nvidia.com/gpu": "entries as 'require nvidia.com/gpu,rdma/hca: pcie-switch'",
    "require nvidia.com/gpu: pcie": "one of pcie-switch, pcie-root-port, pcie-root at its end",
    "require nvidia.com/gpu,rdma/other: pcie-root": "'rdma/other': expected a resource of which a container of the pod",
    "must nvidia.com/gpu: pcie-root": "entries as",
    ";": "1 to 8 entries",
    "cpu,memory: pcie-root": "entries as",
}


@pytest.mark.parametrize("text", BAD)
def test_an_invalid_annotation_is_a_clear_error(text: str) -> None:
    running = service({"n1": ONE_SWITCH})
    error = post(running, "filter", wanting("p", {ANNOTATION: text}), "n1")["Error"]
    assert error.startswith(f"annotation {ANNOTATION} '")
    assert BAD[text] in error
    assert error.endswith("the pod is not placed until it is corrected")
    assert post(running, "prioritize", wanting("p", {ANNOTATION: text}), "n1") == []
    # A pod that runs already is evaluated by its actual devices.
    assert running.put(wanting("there", {ANNOTATION: text}, node="n1")).demands.of_options == ()


def test_a_damaged_attribute_is_reported_and_costs_only_the_pci_paths() -> None:
    running = Service()
    whole = node("n1", ONE_SWITCH)
    broken = tuple(
        nrt.Attribute(attribute.name, "[[") if attribute.name == PCI else attribute for attribute in whole.attributes
    )
    running.report(msgspec.structs.replace(whole, attributes=broken))
    state = running.ledger.node_states.of("n1")
    assert state is not None and state.report is not None
    assert state.report.precision == "exact"
    [problem] = state.report.problems
    assert problem.startswith(f"attribute {PCI}: places '[['")
    assert problem.endswith("; the PCI paths of its devices are unknown")
    assert post(running, "filter", wanting("p", {}), "n1")["NodeNames"] == ["n1"]
    assert post(running, "filter", wanting("p", REQUIRE), "n1")["NodeNames"] == []


def test_an_unconfirmed_pod_may_have_other_devices_than_predicted() -> None:
    """The pod is predicted on g0 and n0 but may have g1 and n1, so the free devices are not known."""
    running = service({"one": ONE_SWITCH, "two": {**TWO_SWITCHES, "g2": 9, "g3": 9, "n2": 10, "n3": 10}})
    for name in ("one", "two"):
        running.put(wanting(f"first-{name}", {}, node=name))
    assert [term.outcome for term in affinity(running, "one")] == ["sure"]
    assert [term.outcome for term in affinity(running, "two")] == ["possible"]
    truth = hold(empty(), "uid-first-two", 0, gpus=("g0",), nics=("n0",))
    running.report(node("two", {**TWO_SWITCHES, "g2": 9, "g3": 9, "n2": 10, "n3": 10}, truth, "2"))
    assert [term.outcome for term in affinity(running, "two")] == ["sure"]


def test_a_bind_asks_again_if_the_node_has_changed() -> None:
    running = service({"n1": ONE_SWITCH})
    record = running.records.decode(msgspec.json.encode(wanting("p", REQUIRE)))
    assert record.needs is not None
    running.report(node("n1", TWO_SWITCHES, version="2"))
    assert running.ledger.reservations.assume(record, record.needs, "n1") is Refusal.NOT_SURELY_NEAR
    running.report(node("n1", ONE_SWITCH, version="3"))
    assert running.ledger.reservations.assume(record, record.needs, "n1") is None


@pytest.mark.parametrize(
    ("ports", "devices", "outcome"),
    [
        (TWO_SWITCHES, ("g0", "n0"), "met"),
        (TWO_SWITCHES, ("g0", "n1"), "not_met"),
        ({}, ("g0", "n0"), "unknown"),
    ],
)
def test_the_pods_devices_are_compared_with_its_affinity_and_counted(
    ports: Mapping[str, int], devices: tuple[str, str], outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    running = service({"n1": ports})
    running.put(wanting("p", PREFER, node="n1"))
    truth = hold(empty(), "uid-p", 0, gpus=devices[:1], nics=devices[1:])
    for version in ("2", "3"):
        running.report(node("n1", ports, truth, version))
    registry = metrics.registry(running.ledger, running.answers)
    name = "topowise_scheduler_device_affinity_total"
    assert {key: registry.get_sample_value(name, {"outcome": key}) for key in ("met", "not_met", "unknown")} == {
        "met": 0,
        "not_met": 0,
        "unknown": 0,
        outcome: 1,
    }
    assert ("Devices of a pod lie farther apart than it wishes" in caplog.text) is (outcome == "not_met")


def test_explain_says_what_it_is_and_why() -> None:
    running = service()
    terms = {name: affinity(running, name)[0] for name in ALL}
    assert {name: term.outcome for name, term in terms.items()} == {
        "one-switch": "sure",
        "two-switches": "possible",
        "apart": "impossible",
        "silent": "unknown",
    }
    assert str(terms["one-switch"]) == (
        "device affinity prefer nvidia.com/gpu,rdma/hca: pcie-switch is sure: every choice of the kubelet meets it"
    )
    assert terms["two-switches"].why == (
        "it depends on the devices that the kubelet takes: nvidia.com/gpu g0 and rdma/hca n1 are PHB apart"
    )
    assert terms["apart"].why == "no choice of the kubelet meets it: nvidia.com/gpu g0 and rdma/hca n0 are PHB apart"
    assert terms["silent"].why == "no report has the PCI paths of the node's devices"


def test_no_pod_is_evicted_where_the_devices_would_not_be_near() -> None:
    """All GPUs are allocated. An eviction frees a GPU at a switch with NICs on only one of the two nodes."""
    for ports, expected in ((ONE_SWITCH, {"n1"}), (APART, set[str]())):
        running = Service()
        full = empty()
        for number, gpu in enumerate(("g0", "g1", "g2", "g3")):
            hold(full, f"uid-v{number}", DEVICES[gpu], gpus=(gpu,))
        running.report(node("n1", ports, full))
        for number in range(4):
            running.put(wanting(f"v{number}", {}, nics=0, node="n1", priority=0), is_news=False)
        args = {
            "Pod": wanting("p", REQUIRE, priority=1000),
            "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "uid-v0"}], "NumPDBViolations": 0}},
        }
        reply = asyncio.run(running.verbs().preempt(msgspec.json.encode(args)))
        assert set(json.loads(reply.body)["NodeNameToMetaVictims"]) == expected


def a_gpu_taken_on_each_numa_node(ports: Mapping[str, int]) -> tuple[Service, list[dict[str, Any]]]:
    """Two GPUs are free in sum. They share a NUMA node only if the pod of lower priority is evicted."""
    running, full, there = Service(), empty(), []
    for number, gpu in enumerate(("g0", "g2")):
        hold(full, f"uid-v{number}", number, gpus=(gpu,))
    running.report(node("n1", ports, full))
    running.put_node("n1", allocatable={"cpu": "8", "memory": "64Gi", "pods": "110", GPU: "4", NIC: "4"})
    for number in range(2):
        there.append(wanting(f"v{number}", {}, nics=0, node="n1", priority=0))
        running.put(there[-1], is_news=False)
    return running, there


NEAR_ONCE_EVICTED = pytest.mark.parametrize(("ports", "is_near"), [(ONE_SWITCH, True), (APART, False)])


@NEAR_ONCE_EVICTED
def test_the_preemptor_evicts_no_pod_where_the_devices_would_not_be_near(
    ports: Mapping[str, int], *, is_near: bool
) -> None:
    running, _ = a_gpu_taken_on_each_numa_node(ports)
    alignment = AlignmentPreemption(running.trial, Budgets())
    waits = msgspec.convert(wanting("p", REQUIRE, gpus=2, priority=1000, conditions=WAITS), Pod)
    assert (asyncio.run(alignment.choose(waits, 10, ())) is not None) is is_near
    assert alignment.still_needs(waits, "n1", (), ("uid-v0",)) is is_near
    running.ledger.gates.quarantine.put(running.trial.record(waits).shape, "n1", running.clock())
    assert not alignment.still_needs(waits, "n1", (), ("uid-v0",)), "its kubelet has just refused such a pod"


@NEAR_ONCE_EVICTED
def test_nothing_is_evicted_for_volcano_where_the_devices_would_not_be_near(
    ports: Mapping[str, int], *, is_near: bool
) -> None:
    running, there = a_gpu_taken_on_each_numa_node(ports)
    volcano, document = Volcano(running), wanting("p", REQUIRE, gpus=2, priority=1000)
    assert volcano.evictable(document, "n1", *there)[0] == (1 if is_near else -1)
    volcano.deallocate(there[0], "n1", RELEASING)
    assert volcano.fits(document, "n1") is is_near


@NEAR_ONCE_EVICTED
def test_no_pod_is_moved_where_the_devices_would_not_be_near(ports: Mapping[str, int], *, is_near: bool) -> None:
    running, there = a_gpu_taken_on_each_numa_node(ports)
    running.report(node("n2", ONE_SWITCH))
    running.put_node("n2", allocatable={"cpu": "8", "memory": "64Gi", "pods": "110", GPU: "1"})
    for document in there:
        document["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "controller": True}]
    listed = [msgspec.convert(document, Pod) for document in there]
    movers, _ = defrag.sort([(record, running.records.record(record)) for record in listed], Budgets(), 0)
    preemptor = msgspec.convert(wanting("p", REQUIRE, gpus=2), Pod)
    plan = defrag.plan(running.trial, preemptor, 1, movers, 2)
    assert bool(plan.steps) is is_near


def test_pods_that_differ_by_their_affinity_alone_have_separate_homes() -> None:
    running = service({"silent": {}})
    cluster = Cluster(running.trial, msgspec.convert(wanting("p", {}), Pod))
    movers = [msgspec.convert(wanting("mover", affinity), Pod) for affinity in ({}, REQUIRE)]
    assert [list(cluster.classes.of(mover, running.records.record(mover)).possible) for mover in movers] == [
        ["silent"],
        [],
    ]


def test_as_many_fit_as_surely_get_near_devices() -> None:
    """A NUMA node has one switch, the other has a switch for each GPU. The choice of GPU is not predictable."""

    def room(ports: Mapping[str, int], annotations: Mapping[str, str]) -> tuple[int, str]:
        pod = msgspec.convert(wanting("p", annotations, cpu="0"), Pod)
        [found] = service({"n1": ports}).view.rooms(pod, ["n1"])
        return found.count, found.limit

    def at_once(ports: Mapping[str, int], count: int) -> tuple[int, str]:
        running = service({"n1": ports})
        running.put_node("n1", allocatable={"cpu": "8", "memory": "64Gi", "pods": "110", GPU: "4", NIC: "4"})
        pods = [msgspec.convert(wanting(f"p{at}", REQUIRE, cpu="0"), Pod) for at in range(count)]
        fitting = place_together(running.trial, pods, ["n1"])
        return len(fitting.placements), not_together(fitting.refused, fitting.refusing)

    nics_on_one_switch = {**TWO_SWITCHES, "g0": 1, "n0": 1, "n1": 1, "g1": 1}
    assert room(ONE_SWITCH, REQUIRE)[0] == room(ONE_SWITCH, {})[0] == 4
    assert room(nics_on_one_switch, REQUIRE) == (2, TEXTS[Refusal.NOT_SURELY_NEAR])
    assert at_once(ONE_SWITCH, 4) == (4, "")
    assert at_once(nics_on_one_switch, 3) == (2, f"0/1 nodes: 1 {TEXTS[Refusal.NOT_SURELY_NEAR]}")


@pytest.mark.parametrize(("nic", "is_met"), [("n0", True), ("n1", False)])
def test_doctor_names_pods_whose_affinity_is_not_met(nic: str, is_met: bool, tmp_path: Path) -> None:
    truth = hold(empty(), "uid-p", 0, gpus=("g0",), nics=(nic,))
    topology = msgspec.to_builtins(node("n1", TWO_SWITCHES, truth))
    running = wanting("p", PREFER, node="n1", phase="Running", startTime="2026-05-28T20:26:40Z")
    items = [
        {**topology, "apiVersion": nrt.API_VERSION, "kind": nrt.KIND},
        {**running, "apiVersion": "v1", "kind": "Pod"},
    ]
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    options = arguments.parser("0").parse_args(["doctor", "-f", str(file), "-o", "json"])
    findings = json.loads(command.run(options, Console(None, 100, now=1_780_000_000.0)).text)
    values = {finding["thing"]: finding["value"] for finding in findings if "device affinity" in finding["value"]}
    why = "prefer nvidia.com/gpu,rdma/hca: pcie-switch is not met: nvidia.com/gpu g0 and rdma/hca n1 are PHB apart"
    assert values == ({} if is_met else {"pod default/p": f"device affinity {why}"})
