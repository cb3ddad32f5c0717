"""`simulate --restart` and doctor foresee the pods that a restarted kubelet refuses, and kubelets that do not start."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandbox.exported import exported
from topowise import attributes, nrt, pods
from topowise.errors import SourceError
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.restart import restart
from topowise_scheduler.report import kubelet_of, read, replay, restart_forecast

from .conftest import TWO, Ask, Json, Save, configuration, node, pod, report

RECORDED = Path(__file__).parents[1] / "kubelet" / "recorded" / "restarts.jsonl.xz"
FULL = [pod(f"db/large-{number}", "metal-a", cpu="24", memory="4Gi", started=900 - number) for number in range(2)]


def _nodes(answer: Any) -> dict[str, Json]:
    return {item["node"]: item for item in json.loads(answer.text)["nodes"]}


def test_a_restart_keeps_the_pods_of_healthy_nodes(ask: Ask, saved: Save) -> None:
    answer = ask("simulate", "--restart", "--nodes-file", saved(), "-o", "json")
    assert answer.status == 0, answer.text
    outcomes = {name: (item["outcome"], item["admitted"]) for name, item in _nodes(answer).items()}
    assert outcomes == {
        "metal-a": ("admits all pods", 3),
        "metal-b": ("admits all pods", 2),
        "metal-c": ("admits all pods", 7),
    }
    assert "note: 1 node skipped: only an exact report describes the state of a kubelet" in answer.notes


@pytest.mark.parametrize("pods_of", [("-f", "pods.yaml"), ("web-1",)])
def test_a_restart_places_no_pods(ask: Ask, saved: Save, pods_of: tuple[str, ...]) -> None:
    with pytest.raises(SourceError, match="a restart places no pods, expected nodes from --nodes-file FILE"):
        ask("simulate", "--restart", *pods_of, "--nodes-file", saved())


def _whole_cores(saved: Save, also: Sequence[Json] = (), *, phase: str = "Running") -> str:
    """A node with full-pcpus-only, whose free cores are fewer than the CPUs of each of its two pods."""
    config = configuration(TWO, cpuManagerPolicyOptions={"full-pcpus-only": "true"})
    there = [{**item, "status": {**item["status"], "phase": phase}} for item in FULL]
    return saved(report("metal-a", TWO, config, FULL), node("metal-a"), *there, *also, name="whole.json")


def test_full_pcpus_only_refuses_pods_that_run(ask: Ask, saved: Save) -> None:
    file = _whole_cores(saved)
    answer = ask("simulate", "--restart", "--nodes-file", file, "-o", "json")
    metal_a = _nodes(answer)["metal-a"]
    assert answer.status == 1
    assert [(item["pod"], item["reason"]) for item in metal_a["refused"]] == [
        ("db/large-0", "SMTAlignmentError"),
        ("db/large-1", "SMTAlignmentError"),
    ]
    text = ask("simulate", "--restart", "--nodes-file", file).text
    assert "metal-a refuses pods" in text
    assert "drain the node before its kubelet restarts" in text


@pytest.mark.parametrize(("version", "is_read"), [("v1.36.2", True), ("v1.37.1", False), ("v1.38.0", False)])
def test_a_forecast_names_changes_that_were_not_read(ask: Ask, saved: Save, version: str, is_read: bool) -> None:
    """Later kubelets may keep these pods: the code of kubernetes#129079 was not available."""
    config = configuration(TWO, cpuManagerPolicyOptions={"full-pcpus-only": "true"})
    metal_a = node("metal-a")
    metal_a["status"]["nodeInfo"] = {"kubeletVersion": version}
    also = [pod(f"db/large-{number}", "metal-a", cpu="24", memory="4Gi") for number in range(2)]
    file = saved(report("metal-a", TWO, config, also), metal_a, *also, name="later.json")
    answer = ask("simulate", "--restart", "--nodes-file", file, "-o", "json")
    (restarted,) = _nodes(answer).values()
    assert len(restarted["refused"]) == 2
    findings = [item for item in json.loads(ask("doctor", "-f", file, "-o", "json").text) if item["check"] == "restart"]
    texts = [restarted["remark"], "".join(answer.notes), *(item["why"] for item in findings)]
    assert len(texts) >= 3
    assert ["kubernetes#129079" in text for text in texts] == [not is_read] * len(texts)


@pytest.mark.parametrize("phase", ["Running", "Pending"])
def test_doctor_warns_of_running_pods_only(ask: Ask, saved: Save, phase: str) -> None:
    findings = json.loads(ask("doctor", "-f", _whole_cores(saved, phase=phase), "-o", "json").text)
    values = [item["value"] for item in findings if item["check"] == "restart"]
    assert values == (
        ["a restart of the kubelet would end 2 running pods with SMTAlignmentError: db/large-0, db/large-1"]
        if phase == "Running"
        else []
    )


END = (
    "warning: node metal-a: a restart of the kubelet would end 2 running pods with SMTAlignmentError: db/large-0, "
    "db/large-1; drain the node before the kubelet restarts; kubectl topowise simulate --restart shows each pod"
)


@pytest.mark.parametrize(
    ("words", "is_named"),
    [
        (["large-0", "-n", "db"], True),
        (["--node", "metal-a"], True),
        (["--node", "metal-a", "--node", "metal-b"], False),
        ([], False),
    ],
)
def test_explain_warns_of_a_restart_on_the_named_node(ask: Ask, saved: Save, words: list[str], is_named: bool) -> None:
    config = configuration(TWO, cpuManagerPolicyOptions={"full-pcpus-only": "true"})
    also = [pod(f"db/more-{number}", "metal-b", cpu="24", memory="4Gi") for number in range(2)]
    file = _whole_cores(saved, [report("metal-b", TWO, config, also), node("metal-b"), *also])
    waiting = saved(pod("db/next", "", cpu="1", memory="1Gi"), name="next.json")
    pod_words = [] if "large-0" in words else ["-f", waiting]
    notes = ask("explain", *words, *pod_words, "--nodes-file", file).notes
    assert [note for note in notes if "restart" in note] == ([END] if is_named else [])


def test_explain_names_a_state_file_that_the_kubelet_refuses(ask: Ask, saved: Save) -> None:
    refused = msgspec.json.encode({"cpu_manager_state": "current set of available CPUs differs"}).decode()
    item = report("metal-a", TWO, configuration(TWO), [FULL[0]])
    item["attributes"] = [*item["attributes"], {"name": attributes.REFUSED_STATE_FILES, "value": refused}]
    file = saved(item, node("metal-a"), FULL[0], name="refused.json")
    (note,) = [note for note in ask("explain", "large-0", "-n", "db", "--nodes-file", file).notes if "start" in note]
    assert note.startswith("error: node metal-a: kubelet will not start again with its cpu_manager_state: current set")


@pytest.mark.parametrize("version", ["v1.33.6+0d2b5f1", "v1.33.6"])
def test_a_kubelet_that_refuses_its_own_file_is_named_without_the_exporter(ask: Ask, saved: Save, version: str) -> None:
    """Kubelets of OpenShift expect the reserved CPUs in a file that lacks them under strict-cpu-reservation."""
    config = configuration(TWO, cpuManagerPolicyOptions={"strict-cpu-reservation": "true"})
    metal_a = node("metal-a")
    metal_a["status"]["nodeInfo"] = {"kubeletVersion": version}
    file = saved(report("metal-a", TWO, config, [FULL[0]]), metal_a, FULL[0], name="strict.json")
    says = "the kubelet would not start again: cpu_manager_state: current set of available CPUs"
    findings = [item for item in json.loads(ask("doctor", "-f", file, "-o", "json").text) if item["check"] == "restart"]
    notes = [note for note in ask("explain", "large-0", "-n", "db", "--nodes-file", file).notes if "start" in note]
    if "+" in version:
        assert [item["value"][: len(says)] for item in findings] == [says]
        assert findings[0]["mend"].startswith("drain the node, stop the kubelet, delete cpu_manager_state")
        assert [note.partition(says)[0] for note in notes] == ["warning: node metal-a: "]
    else:
        assert (findings, notes) == ([], [])


def test_another_policy_refuses_pods_that_it_would_not_align(ask: Ask, saved: Save) -> None:
    config = configuration(TWO, topologyManagerPolicy="best-effort", memoryManagerPolicy="None")
    wide = pod("db/wide", "metal-a", cpu="40", memory="4Gi")
    file = saved(report("metal-a", TWO, config, [wide]), node("metal-a"), wide, name="wide.json")
    words = ("simulate", "--nodes-file", file, "-o", "json")
    assert _nodes(ask(*words, "--restart"))["metal-a"]["refused"] == []
    (refused,) = _nodes(ask(*words, "--policy", "single-numa-node"))["metal-a"]["refused"]
    assert (refused["pod"], refused["reason"]) == ("db/wide", "TopologyAffinityError")
    assert _nodes(ask(*words, "--policy", "restricted", "--scope", "pod"))["metal-a"]["refused"] == []


def test_a_version_that_does_not_know_an_option_does_not_start(ask: Ask, saved: Save) -> None:
    config = configuration(TWO, cpuManagerPolicyOptions={"strict-cpu-reservation": "true"})
    file = saved(report("metal-a", TWO, config, [FULL[0]]), node("metal-a"), FULL[0], name="strict.json")
    words = ("simulate", "--nodes-file", file, "-o", "json", "--kubelet-version")
    metal_a = _nodes(ask(*words, "v1.30.0"))["metal-a"]
    assert metal_a["outcome"] == "does not start"
    assert metal_a["error"] == ('new static policy error: unknown CPU Manager Policy option: "strict-cpu-reservation"')
    assert _nodes(ask(*words, "v1.36.0"))["metal-a"]["outcome"] == "admits all pods"


def test_a_text_that_is_no_version_is_named(ask: Ask, saved: Save) -> None:
    (note, *_) = ask("simulate", "--kubelet-version", "newest", "--nodes-file", saved()).notes
    assert note.startswith("warning: kubelet version 'newest' is not a release, expected a version such as v1.33.5")


def test_the_forecast_of_a_report_equals_the_restart_of_the_kubelet() -> None:
    pairs = []
    for line in lzma.decompress(RECORDED.read_bytes()).splitlines():
        scenario = replay.read_scenario(line)
        result = json.loads(line)["result"]
        if scenario.config.predicates and "panic" not in result:
            pairs.append(_refused_of(scenario))
    truth, forecast = (set().union(*(pair[side] for pair in pairs)) for side in (0, 1))
    assert len(truth) >= 15
    # A report lacks the memory of init containers, and the devices that they have left.
    assert len(truth & forecast) >= 0.9 * len(truth)
    assert len(forecast - truth) <= 0.1 * len(truth)


def _refused_of(scenario: replay.Scenario) -> tuple[set[str], set[str]]:
    """The pods that the kubelet refuses at a restart at the end of the scenario, and the forecast."""
    life = replay.Replay(scenario)
    assigned: dict[str, pods.Pod] = {}
    for event in scenario.events:
        if event.op == "restart":
            continue
        life.apply(event)
        if event.pod is not None:
            assigned[event.uid] = event.pod
    life.settle()
    kubelet = life.kubelet
    running = pods.Status(phase="Running")
    there = [msgspec.structs.replace(assigned[uid], status=running) for uid in kubelet.active]
    for uid in kubelet.active:
        kubelet.start(uid)
    views = [kubelet.view_of(item) for item in there]
    names = {
        view.uid: [container.name for container in view.containers if container.declared != "init"] for view in views
    }
    true = restart(kubelet, kubelet.emptied(), views, names)
    foreseen = _foresee(scenario, kubelet, there)
    if true.problem is not None or foreseen is None or foreseen.error:
        return set(), set()
    return (
        {f"{scenario.id} {item.uid}" for item in true.refused},
        {f"{scenario.id} {item.pod.rpartition('/')[2]}" for item in foreseen.refused},
    )


def _foresee(scenario: replay.Scenario, kubelet: Kubelet, there: list[pods.Pod]) -> restart_forecast.NodeRestart | None:
    names = {item.metadata.uid: (item.metadata.namespace, item.metadata.name) for item in there}
    topology = exported(scenario.machine, scenario.config, kubelet, names.__getitem__)
    seen = read(msgspec.convert(json.loads(msgspec.json.encode(topology)), nrt.NodeResourceTopology), "v1.36.2")
    by_name = {name: (uid, dict[str, int]()) for uid, name in names.items()}
    return restart_forecast.foresee(seen, kubelet_of(seen, by_name.get), there)
