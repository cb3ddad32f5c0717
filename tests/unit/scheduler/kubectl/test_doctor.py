"""Each finding of the doctor, on saved objects and on a cluster through a fake kubectl."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from refusal_words import refusals
from sandbox.exported import exported
from topowise import nrt
from topowise.placement import GATE
from topowise_scheduler.kubectl.console import go_seconds
from topowise_scheduler.kubectl.doctor import claims, devices, kube_scheduler, own_pods
from topowise_scheduler.kubelet import (
    Core,
    Device,
    DevicePlugin,
    Kubelet,
    KubeletConfiguration,
    Machine,
    MemoryReservation,
    NumaNode,
)

from .conftest import Ask, Json, Save

NOW = 1_780_000_000.0


def attributes(document: Json) -> dict[str, str]:
    return {item["name"]: item["value"] for item in document["attributes"]}


def with_attributes(document: Json, **changed: str | None) -> Json:
    """A copy with attributes changed, or removed for None; a name may begin with "topowise_io_"."""
    named: dict[str, str | None] = {**attributes(document)}
    named.update(
        {name.replace("topowise_io_", "topowise.io/").replace("_", "-"): text for name, text in changed.items()}
    )
    listed = [{"name": name, "value": text} for name, text in named.items() if text is not None]
    return {**document, "attributes": listed}


def configured(document: Json, **fields: Any) -> Json:
    """A copy with a changed kubelet configuration and unchanged zones."""
    config = json.loads(attributes(document)["topowise.io/kubelet-configuration"])
    return with_attributes(document, topowise_io_kubelet_configuration=json.dumps({**config, **fields}))


@pytest.fixture
def objects(saved: Save) -> dict[str, Json]:
    """The saved objects by "kind name"."""
    items = json.loads(Path(saved()).read_text())["items"]
    return {f"{item['kind']} {item['metadata']['name']}": item for item in items}


@pytest.fixture
def examine(ask: Ask, saved: Save) -> Callable[..., list[str]]:
    """The doctor's findings on objects: "severity thing: value"."""

    def look(*items: Json) -> list[str]:
        findings = json.loads(ask("doctor", "-f", saved(*items, name="some.json"), "-o", "json").text)
        return [f"{item['severity']} {item['thing']}: {item['value']}" for item in findings]

    return look


REPORT = "NodeResourceTopology metal-a"


def test_a_healthy_node_has_nothing(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    running = [item for item in objects.values() if item.get("spec", {}).get("nodeName") == "metal-a"]
    assert examine(objects[REPORT], objects["Node metal-a"], *running) == []


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        (
            {"cpuManagerPolicy": "none"},
            "warning node metal-a: topologyManagerPolicy single-numa-node with cpuManagerPolicy none",
        ),
        (
            {"memoryManagerPolicy": "None"},
            "warning node metal-a: topologyManagerPolicy single-numa-node with memoryManagerPolicy None",
        ),
        (
            {"topologyManagerPolicy": "best-effort"},
            "warning node metal-a: topologyManagerPolicy best-effort with memoryManagerPolicy Static",
        ),
        ({"topologyManagerPolicy": "none"}, "note node metal-a: topologyManagerPolicy none with a static CPU manager"),
        (
            {"topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "12"}},
            "warning node metal-a: 2 NUMA nodes, max-allowable-numa-nodes 12",
        ),
        (
            {
                "topologyManagerPolicyOptions": {"prefer-most-allocated-numa-node": "true"},
                "featureGates": {"TopologyManagerPolicyAlphaOptions": True},
            },
            "note node metal-a: in use though alpha: prefer-most-allocated-numa-node, "
            "TopologyManagerPolicyAlphaOptions",
        ),
        (
            {"topologyManagerPolicyOptions": {"numa-allocation-strategy": "most-allocated"}},
            "note node metal-a: in use though alpha: numa-allocation-strategy",
        ),
    ],
    ids=lambda item: next(iter(item)) if isinstance(item, dict) else "",
)  # fmt: skip
def test_settings_that_surprise(
    fields: Json, finding: str, objects: dict[str, Json], examine: Callable[..., list[str]]
) -> None:
    assert finding in examine(configured(objects[REPORT], **fields))


@pytest.mark.parametrize("most", ["\u00b2", "9" * 5000, "many"])
def test_a_limit_that_is_no_number_is_ignored(
    most: str, objects: dict[str, Json], examine: Callable[..., list[str]]
) -> None:
    options = {"topologyManagerPolicyOptions": {"max-allowable-numa-nodes": most}}
    assert not [line for line in examine(configured(objects[REPORT], **options)) if "2 NUMA nodes" in line]


def test_the_closest_nodes_without_distances(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    document = configured(
        objects[REPORT],
        topologyManagerPolicy="restricted",
        topologyManagerPolicyOptions={"prefer-closest-numa-nodes": "true"},
    )
    assert not [line for line in examine(document) if "no distances reported" in line]
    document["zones"] = [{**zone, "costs": []} for zone in document["zones"]]
    assert "warning node metal-a: prefer-closest-numa-nodes, and no distances reported" in examine(document)


def test_a_single_numa_node_and_a_policy(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    document = {**objects[REPORT], "zones": objects[REPORT]["zones"][:1]}
    assert "note node metal-a: topologyManagerPolicy single-numa-node and one NUMA node" in examine(document)


def test_policies_of_other_exporters_are_read_from_attributes(
    objects: dict[str, Json], examine: Callable[..., list[str]]
) -> None:
    document = objects["NodeResourceTopology edge-1"]
    assert examine(document) == ["note node edge-1: known by counts alone"]
    named = with_attributes(document, cpuManagerPolicy="None", memoryManagerPolicy="None")
    assert examine(named) == [
        "warning node edge-1: topologyManagerPolicy restricted with cpuManagerPolicy none",
        "warning node edge-1: topologyManagerPolicy restricted with memoryManagerPolicy None",
        "note node edge-1: known by counts alone",
    ]


def test_two_writers(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    document = json.loads(json.dumps(objects[REPORT]))
    (entry,) = document["metadata"]["managedFields"]
    document["metadata"]["managedFields"] += [
        {**entry, "manager": "nfd-master"},
        {**entry, "manager": "kubectl-label", "fieldsV1": {"f:metadata": {}}},
    ]
    assert "error NodeResourceTopology metal-a: 2 writers: nfd-master, topowise-exporter" in examine(document)


def test_a_report_above_its_bounds(
    objects: dict[str, Json], examine: Callable[..., list[str]], ask: Ask, saved: Save
) -> None:
    document = json.loads(json.dumps(objects[REPORT]))
    document["metadata"]["annotations"] = {"a": "x" * (600 << 10)}
    (line,) = [line for line in examine(document) if "not used" in line]
    assert line.startswith("error node metal-a: report that is not used: object: ")
    assert "bytes, expected at most 524288; the report is not used" in line
    there = saved(document, objects["Node metal-a"], name="large.json")
    explained = ask("explain", "--nodes-file", there, "-f", str(Path(__file__).with_name("manifests.yaml")))
    assert "of its newest report nothing is used: object: " in explained.text


def test_nodes_without_reports_and_reports_without_nodes(
    objects: dict[str, Json], examine: Callable[..., list[str]]
) -> None:
    plain, resting = objects["Node plain"], json.loads(json.dumps(objects["Node resting"]))
    master = json.loads(json.dumps(plain))
    master["metadata"]["name"] = "master"
    master["spec"]["taints"] = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
    resting["status"]["conditions"][0]["status"] = "False"
    assert examine(objects[REPORT], plain, master, resting) == [
        "warning node plain: ready, without a NodeResourceTopology",
        "warning NodeResourceTopology metal-a: of a node that is not there",
    ]
    assert examine(plain) == ["error cluster: without a NodeResourceTopology"]


def test_a_recreated_node(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    document = json.loads(json.dumps(objects[REPORT]))
    owner = {"apiVersion": "v1", "kind": "Node", "name": "metal-a", "uid": "another"}
    document["metadata"]["ownerReferences"] = [owner]
    assert examine(document, objects["Node metal-a"]) == [
        "error node metal-a: with the report of an earlier node of this name"
    ]


def test_a_report_of_other_pods(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    finding = ["error node metal-b: report with other pods than on the node"]
    report, late = objects["NodeResourceTopology metal-b"], json.loads(json.dumps(objects["Pod late"]))
    later = json.loads(json.dumps(objects["Pod late"]))
    later["metadata"].update(name="later", creationTimestamp="2026-05-28T20:26:40Z")
    later["spec"]["nodeName"] = "elsewhere"
    rest = (objects["Node metal-b"], objects["Pod postgres-0"], later)
    assert examine(report, late, *rest) == finding
    assert examine(report, *rest) == []
    assert examine(report, objects["Node metal-b"], objects["Pod router"], later) == finding
    # The exporter has not seen a pod that started a moment ago.
    late["status"]["startTime"] = "2026-05-28T20:26:40Z"
    assert examine(report, late, *rest) == []


def test_kinds_of_nodes_that_differ(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    second = configured(objects["NodeResourceTopology metal-b"], topologyManagerScope="pod")
    nodes = [objects["Node metal-a"], objects["Node metal-b"]]
    running = [objects["Pod postgres-0"], objects["Pod router"], objects["Pod trainer"], objects["Pod frontend-7d9c"]]
    value = "different topologyManagerScope: container on metal-a; pod on metal-b"
    everything = (objects[REPORT], second, *nodes, *running)
    assert f"warning node pool 2 NUMA nodes of 32 CPUs, 64Gi: {value}" in examine(*everything)
    for item, kind in zip(nodes, ("large", "small"), strict=True):
        item["metadata"]["labels"]["node.kubernetes.io/instance-type"] = kind
    assert not [line for line in examine(*everything) if "pool" in line]


def test_pods_that_kubelets_refused_lately(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    def failed(name: str, reason: str, started: str) -> Json:
        document = json.loads(json.dumps(objects["Pod router"]))
        document["metadata"].update(name=name, uid=name)
        document["status"] = {"phase": "Failed", "reason": reason, "startTime": started}
        return dict(document)

    lines = examine(
        objects[REPORT],
        *(item for item in objects.values() if item.get("spec", {}).get("nodeName") == "metal-a"),
        failed("one", "TopologyAffinityError", "2026-05-28T20:00:00Z"),
        failed("two", "TopologyAffinityError", "2026-05-28T19:00:00Z"),
        failed("old", "TopologyAffinityError", "2026-05-26T19:00:00Z"),
        failed("evicted", "Evicted", "2026-05-28T19:00:00Z"),
        failed("three", "OutOfcpu", "2026-05-28T19:00:00Z"),
    )
    assert lines == [
        "warning node metal-a: refused 1 pod with OutOfcpu within a day: telco/three",
        "warning node metal-a: refused 2 pods with TopologyAffinityError within a day: telco/one, telco/two",
    ]


def test_pods_that_wait_and_pods_that_never_run(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    waiting = json.loads(json.dumps(objects["Pod late"]))
    del waiting["spec"]["nodeName"]
    message = f"0/3 nodes are available: 3 {refusals.NOT_NOW}."
    waiting["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}],
    }
    amounts = {"cpu": "3", "memory": "1Gi"}
    waiting["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    report = configured(objects[REPORT], cpuManagerPolicyOptions={"full-pcpus-only": "true"})
    lines = examine(report, waiting)
    assert "warning pod ml/late: waits, cause never: no node could take the pod even if it were empty" in lines
    (odd,) = [line for line in lines if "whole cores" in line]
    assert "1 pending pod with a number of CPUs that is no multiple of 2: ml/late" in odd


@pytest.mark.parametrize(
    ("gates", "cpus", "line"),
    [
        # A node would take it, and nobody has placed it for a minute.
        ([GATE], "1", "warning pod ml/late: waits, cause retry: a node takes the pod now, and nobody has tried it yet"),
        ([GATE], "99", "warning pod ml/late: waits, cause never: no node could take the pod even if it were empty"),
        (
            [GATE, "example.com/last"],
            "1",
            "note pod ml/late: waits, cause gated: other controllers have not removed their scheduling gates yet",
        ),
        (["example.com/last"], "1", ""),
    ],
)
def test_pods_whose_gate_nobody_opens(
    objects: dict[str, Json], examine: Callable[..., list[str]], gates: list[str], cpus: str, line: str
) -> None:
    waiting = json.loads(json.dumps(objects["Pod late"]))
    del waiting["spec"]["nodeName"]
    waiting["spec"]["schedulingGates"] = [{"name": name} for name in gates]
    waiting["status"] = {"phase": "Pending"}
    amounts = {"cpu": cpus, "memory": "1Gi"}
    waiting["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    said = [found for found in examine(objects[REPORT], waiting) if "ml/late: waits" in found]
    assert said == [line] * bool(line)


def test_unreadable_parts_of_a_report(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    lines = examine(with_attributes(objects[REPORT], topowise_io_holdings="[["))
    assert any(line.startswith("warning node metal-a: report with what cannot be used: ") for line in lines)
    assert "note node metal-a: known by counts alone" in lines


EXTENDER: Json = {
    "urlPrefix": "http://127.0.0.1:8080",
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "preemptVerb": "preempt",
    "weight": 5,
    "nodeCacheCapable": True,
    "httpTimeout": "2s",
}


def scheduler(**changed: Any) -> list[str]:
    """Findings on a valid configuration with changes to the configuration or its extender."""
    top = {
        name: changed.pop(name)
        for name in list(changed)
        if name in ("percentageOfNodesToScore", "profiles", "extenders")
    }
    config = {"percentageOfNodesToScore": 100, "extenders": [{**EXTENDER, **changed}], **top}
    return [f"{item.severity}: {item.value}" for item in kube_scheduler.check(config)]


def test_a_good_configuration_of_kube_scheduler() -> None:
    assert scheduler() == []
    tls = {"caFile": "/ca", "certFile": "/c", "keyFile": "/k"}
    assert scheduler(urlPrefix="https://topowise:8443", tlsConfig=tls) == ["note: not on loopback"]
    profiles = [{"schedulerName": "numa", "percentageOfNodesToScore": 100}]
    assert scheduler(percentageOfNodesToScore=None, profiles=profiles) == []


@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        ({"nodeCacheCapable": False}, "error: nodeCacheCapable False, expected true"),
        ({"nodeCacheCapable": None}, "error: nodeCacheCapable None, expected true"),
        ({"filterVerb": ""}, "error: no filterVerb"),
        ({"prioritizeVerb": ""}, "warning: no prioritizeVerb"),
        ({"preemptVerb": ""}, "warning: no preemptVerb"),
        ({"weight": 0}, "error: weight 0, expected a number above 0"),
        ({"weight": 1}, "warning: weight 1, expected 2 to 50"),
        ({"weight": 500}, "warning: weight 500, expected 2 to 50"),
        ({"httpTimeout": None}, "note: httpTimeout not set: 5s"),
        ({"httpTimeout": "30s"}, "warning: httpTimeout 30s, expected 100ms to 5s"),
        ({"httpTimeout": "5ms"}, "warning: httpTimeout 5ms, expected 100ms to 5s"),
        ({"ignorable": True}, "warning: ignorable"),
        ({"urlPrefix": "https://127.0.0.1:8443", "enableHTTPS": True}, "error: https without a CA"),
        ({"urlPrefix": "http://topowise:8080"}, "warning: asked over the network without TLS"),
        (
            {"urlPrefix": "http://[::1:8080"},
            "error: urlPrefix is no address, expected http or https, a host and a port",
        ),
        ({"tlsConfig": {"insecure": True, "caFile": "/ca"}}, "error: tlsConfig.insecure with a CA"),
        ({"managedResources": [{"name": "cpu"}]}, "error: managedResources cpu"),
        ({"managedResources": [{"name": "nvidia.com/gpu"}]}, "warning: managedResources nvidia.com/gpu"),
        ({"percentageOfNodesToScore": None}, "warning: percentageOfNodesToScore not set, expected 100"),
        ({"percentageOfNodesToScore": 50}, "warning: percentageOfNodesToScore 50, expected 100"),
        ({"extenders": []}, "error: no extender"),
        (
            {"extenders": [{**EXTENDER, "bindVerb": "bind"}, {**EXTENDER, "bindVerb": "bind"}]},
            "error: 2 extenders with a bindVerb",
        ),
        (
            {
                "profiles": [
                    {
                        "schedulerName": "x",
                        "plugins": {"filter": {"enabled": [{"name": "NodeResourceTopologyMatch"}]}},
                    }
                ]
            },
            "warning: NodeResourceTopologyMatch in profile 'x'",
        ),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_configurations_of_kube_scheduler(changed: Json, finding: str) -> None:
    assert finding in scheduler(**changed)


def test_durations_of_go() -> None:
    assert go_seconds("1m30s") == 90
    assert go_seconds("100ms") == pytest.approx(0.1)
    assert [go_seconds(text) for text in ("0s", "", "2", 2, None, "soon")] == [None] * 6


# Through kubectl


class FakeKubectl:
    """A program that answers `get --raw PATH` from a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "answers"
        self.folder.mkdir()
        self.program = folder / "kubectl"
        self.program.write_text(
            "#!/bin/sh\n"
            f'file="{self.folder}/$(printf %s "$3" | tr "/?" "__")"\n'
            '[ -f "$file" ] && exec cat "$file"\n'
            '[ -f "$file.denied" ] && echo "Error from server (Forbidden): $3 is forbidden: User u cannot list" >&2\n'
            '[ -f "$file.denied" ] && exit 1\n'
            'echo "Error from server (NotFound): the server could not find the requested resource" >&2\n'
            "exit 1\n"
        )
        self.program.chmod(0o755)

    def answer(self, path: str, body: Any) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self._file(path).write_text(text)

    def deny(self, path: str) -> None:
        file = self._file(path)
        file.rename(f"{file}.denied")

    def _file(self, path: str) -> Path:
        return self.folder / path.translate(str.maketrans("/?", "__"))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objects: dict[str, Json]) -> FakeKubectl:
    """A healthy cluster of metal-a."""
    kubectl = FakeKubectl(tmp_path)
    monkeypatch.setenv("KUBECTL", str(kubectl.program))
    running = [item for item in objects.values() if item.get("spec", {}).get("nodeName") == "metal-a"]
    kubectl.answer("/apis/topology.node.k8s.io", {"versions": [{"version": "v1alpha1"}, {"version": "v1alpha2"}]})
    kubectl.answer("/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies", {"items": [objects[REPORT]]})
    kubectl.answer("/api/v1/nodes", {"items": [objects["Node metal-a"]]})
    kubectl.answer("/api/v1/pods", {"items": running})
    kubectl.answer(own_pods.EXPORTERS_PATH, {"items": [EXPORTER]})
    kubectl.answer(METRICS, metrics(NOW - 1))
    return kubectl


EXPORTER: Json = {
    "metadata": {"name": "topowise-exporter-x", "namespace": "kube-system"},
    "spec": {
        "nodeName": "metal-a",
        "containers": [{"name": "exporter", "ports": [{"name": "metrics", "containerPort": 9153}]}],
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}
METRICS = "/api/v1/namespaces/kube-system/pods/topowise-exporter-x:9153/proxy/metrics"


def metrics(looked: float, source: str = "configz") -> str:
    return (
        "# HELP topowise_exporter_last_sync_timestamp_seconds When the node was last seen.\n"
        f"topowise_exporter_last_sync_timestamp_seconds {looked!r}\n"
        f"topowise_exporter_last_publish_timestamp_seconds {looked!r}\n"
        f'topowise_exporter_kubelet_config_source{{source="{source}"}} 1.0\n'
    )


def test_a_healthy_cluster(fake: FakeKubectl, ask: Ask) -> None:
    answer = ask("doctor")
    assert answer.status == 0
    assert answer.text.startswith("Looked at 1 report, 1 node, 3 pods: no problem found.\n")


def test_the_definition(fake: FakeKubectl, ask: Ask) -> None:
    fake.answer("/apis/topology.node.k8s.io", {"versions": [{"version": "v1alpha1"}]})
    answer = ask("doctor")
    assert "error    API group topology.node.k8s.io: serves v1alpha1, expected v1alpha2" in answer.text
    for file in fake.folder.glob("_apis*"):
        file.unlink()
    answer = ask("doctor")
    assert "error    API group topology.node.k8s.io: is not served" in answer.text
    assert answer.status == 1


def test_exporters_that_are_silent_or_guess(fake: FakeKubectl, ask: Ask) -> None:
    fake.answer(METRICS, metrics(NOW - 300, "defaults"))
    text = " ".join(ask("doctor").text.split())
    assert "error exporter kube-system/topowise-exporter-x: on metal-a has not read its node for 5m" in text
    assert "on metal-a has not got its object to the API server for 5m" in text
    assert "on metal-a does not know its kubelet's configuration" in text


@pytest.mark.parametrize("value", ["1.2.3", "1e", "e5", "-", "-1e999", "1e99999"])
def test_metrics_that_are_no_numbers_are_ignored(fake: FakeKubectl, ask: Ask, value: str) -> None:
    fake.answer(METRICS, f"topowise_exporter_last_sync_timestamp_seconds {value}\n")
    assert ask("doctor").text.startswith("Looked at 1 report, 1 node, 3 pods: no problem found.\n")


def test_unreachable_and_unready_exporters(fake: FakeKubectl, ask: Ask) -> None:
    fake.answer(own_pods.EXPORTERS_PATH, {"items": [{**EXPORTER, "metadata": {"name": "other", "namespace": "x"}}]})
    answer = ask("doctor")
    assert "note     exporters: not all can be asked for their metrics:" in answer.text
    assert answer.status == 0
    waiting = {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}], "phase": "Running"}
    fake.answer(own_pods.EXPORTERS_PATH, {"items": [{**EXPORTER, "status": waiting}]})
    answer = ask("doctor")
    assert "on metal-a is not ready: CrashLoopBackOff" in " ".join(answer.text.split())
    assert answer.status == 1


def test_a_report_that_does_not_match_is_checked_twice(fake: FakeKubectl, ask: Ask, objects: dict[str, Json]) -> None:
    running = [objects["Pod router"]]
    again = "/api/v1/pods?fieldSelector=status.phase!%3DSucceeded,status.phase!%3DFailed"
    fake.answer("/api/v1/pods", {"items": running})
    fake.answer(again, {"items": running})
    assert "report with other pods than on the node" in ask("doctor", "--patience", "0").text
    fake.answer(again, {"items": [*running, objects["Pod trainer"]]})
    assert ask("doctor", "--patience", "0").status == 0


def test_a_dead_exporter_on_a_node_with_frequent_new_pods(
    fake: FakeKubectl, ask: Ask, objects: dict[str, Json]
) -> None:
    """The fingerprint never matches on such a node, but a live exporter would have written a later report."""

    def pod(name: str, seconds: float, started: bool = True, cpu: str = "1") -> Json:
        item = json.loads(json.dumps(objects["Pod router"]))
        item["metadata"] |= {"name": name, "uid": name}
        amounts = {"cpu": cpu, "memory": "1Gi"}
        item["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
        time = datetime.fromtimestamp(NOW - seconds, UTC).isoformat()
        item["status"] = {"phase": "Running", "startTime": time} if started else {"phase": "Pending"}
        return item

    # The report was written 200 s ago.
    young = pod("young", 5)
    again = "/api/v1/pods?fieldSelector=status.phase!%3DSucceeded,status.phase!%3DFailed"
    for more, is_found in (
        ([pod("since", 120)], True),
        ([pod("just-then", 170)], False),
        ([pod("before", 250)], False),
        ([pod("not-taken-on", 120, started=False)], False),
        ([pod("unreadable", 120, cpu="much")], False),
        ([], False),
    ):
        for path in ("/api/v1/pods", again):
            fake.answer(path, {"items": [young, *more]})
        text = ask("doctor", "--patience", "0").text
        assert ("node metal-a: report with other pods than on the node" in text) is is_found, more


def test_a_reported_node_whose_exporter_is_gone(fake: FakeKubectl, ask: Ask) -> None:
    elsewhere = {**EXPORTER, "spec": {**EXPORTER["spec"], "nodeName": "metal-b"}}
    fake.answer(own_pods.EXPORTERS_PATH, {"items": [elsewhere]})
    assert "error    node metal-a: reported by topowise-exporter, which has no pod there" in ask("doctor").text
    # Other installations have no such pods at all.
    fake.answer(own_pods.EXPORTERS_PATH, {"items": []})
    assert ask("doctor").status == 0


def test_the_schedulers_own_pods(fake: FakeKubectl, ask: Ask) -> None:
    fake.answer(own_pods.SCHEDULERS_PATH, {"items": []})
    answer = ask("doctor")
    assert "note     topowise-scheduler: no pod has the labels of the chart's" in answer.text
    assert answer.status == 0
    ended = {"reason": "OOMKilled", "finishedAt": datetime.fromtimestamp(NOW - 600, UTC).isoformat()}
    container = {"name": "scheduler", "restartCount": 1, "lastState": {"terminated": ended}}
    pod = {**EXPORTER, "metadata": {"name": "topowise-scheduler-x", "namespace": "topowise-system"}}
    pod["status"] = {**EXPORTER["status"], "containerStatuses": [container]}
    fake.answer(own_pods.SCHEDULERS_PATH, {"items": [pod]})
    answer = ask("doctor")
    said = " ".join(answer.text.split())
    assert "warning topowise-scheduler topowise-system/topowise-scheduler-x: container scheduler ended 10m ago" in said
    assert "raise its memory limit" in said
    assert answer.status == 1
    pod["status"] = {"phase": "Pending"}
    fake.answer(own_pods.SCHEDULERS_PATH, {"items": [pod]})
    assert (
        "error topowise-scheduler topowise-system/topowise-scheduler-x: on metal-a is not ready: Pending"
        in " ".join(ask("doctor").text.split())
    )


def test_pods_that_no_scheduler_handles(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    def pod(name: str, seconds: int = 300, conditions: list[Json] | None = None, **spec: Any) -> Json:
        item = json.loads(json.dumps(objects["Pod router"]))
        created = datetime.fromtimestamp(NOW - seconds, UTC).isoformat()
        item["metadata"] |= {"name": name, "uid": name, "creationTimestamp": created}
        item["spec"] = {"containers": item["spec"]["containers"], "schedulerName": "topowise", **spec}
        item["status"] = {"phase": "Pending", "conditions": conditions or []}
        return item

    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/5 nodes"}
    running = [item for item in objects.values() if item.get("spec", {}).get("nodeName") == "metal-a"]
    healthy = [objects[REPORT], objects["Node metal-a"], *running]
    now = pod("now", 0, [waits])
    served = [pod("refused", conditions=[waits]), pod("gated", schedulingGates=[{"name": "g"}]), pod("young", 30)]
    assert not [line for line in examine(*healthy, now, *served) if "not looked at" in line]
    unserved = [pod("first", 600), *(pod(f"other-{number}") for number in range(3))]
    finding = "error scheduler topowise: has not looked at 4 pods, the first for 10m: "
    lines = [line for line in examine(*healthy, now, *served, *unserved) if "not looked at" in line]
    assert lines == [f"{finding}telco/first, telco/other-2, telco/other-1 ..."]


def test_a_forbidden_resource_does_not_end_the_doctor(
    fake: FakeKubectl, ask: Ask, capfd: pytest.CaptureFixture[str]
) -> None:
    from topowise_scheduler.kubectl.__main__ import main

    fake.deny("/api/v1/nodes")
    answer = ask("doctor")
    assert "warning  nodes: may not be read:" in answer.text
    assert "Looked at 1 report, no nodes, 3 pods: 1 warning." in answer.text
    assert answer.status == 1
    fake.deny("/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies")
    text = ask("doctor").text
    assert "warning  noderesourcetopologies: may not be read:" in text
    assert "without a NodeResourceTopology" not in text
    fake.deny("/api/v1/pods")
    assert main(["doctor"]) == 2
    assert "is forbidden" in capfd.readouterr().err
    # Other commands need the report.
    assert main(["nodes"]) == 2


def test_claims_are_read_where_topowise_allocates_or_pods_have_claims(
    fake: FakeKubectl, ask: Ask, objects: dict[str, Json]
) -> None:
    settings = {"data": {"scheduler.yaml": "resourceClaims: {enabled: true, drivers: [gpu.example.com]}"}}
    fake.answer(devices.CONFIGURATIONS, {"items": [settings]})
    for path in (claims.SLICES, claims.CLAIMS, devices.CLASSES):
        fake.answer(path, {"items": []})
    assert "warning  driver gpu.example.com: is in resourceClaims.drivers" in ask("doctor").text
    fake.deny(devices.CLASSES)
    assert "warning  deviceclasses: may not be read:" in ask("doctor").text
    fake.deny(devices.CONFIGURATIONS)
    assert ask("doctor").status == 0, "nothing is known of devices, and no pod has a claim"
    claiming = json.loads(json.dumps(objects["Pod router"]))
    claiming["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "a"}]
    others = [objects["Pod trainer"], objects["Pod frontend-7d9c"]]
    fake.answer("/api/v1/pods", {"items": [*others, claiming]})
    assert "warning  configmaps: may not be read:" in ask("doctor", "--patience", "0").text


def test_without_a_cluster_the_doctor_fails(fake: FakeKubectl, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    from topowise_scheduler.kubectl.__main__ import main

    fake.program.write_text("#!/bin/sh\necho 'The connection to the server was refused' >&2; exit 1\n")
    assert main(["doctor"]) == 2
    assert capfd.readouterr().err.endswith("The connection to the server was refused\n")
    monkeypatch.setenv("KUBECTL", "/no/such/kubectl")
    assert main(["nodes"]) == 2
    assert "cannot be run (No such file or directory); install kubectl" in capfd.readouterr().err


def test_the_number_of_listed_names_is_bounded(examine: Callable[..., list[str]], objects: dict[str, Json]) -> None:
    nodes = []
    for number in range(12):
        item = json.loads(json.dumps(objects["Node plain"]))
        item["metadata"]["name"] = f"n{number:02}"
        nodes.append(item)
    (line,) = [item for item in examine(objects[REPORT], objects["Node metal-a"], *nodes) if "ready" in item]
    assert line.startswith("warning nodes n00, n01, n02, n03, n04, n05, n06, n07 and 4 more: ")


def test_a_scheduler_file_without_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"kind": "ConfigMap"}))
    with pytest.raises(Exception, match="has no KubeSchedulerConfiguration"):
        kube_scheduler.read(str(file))


def test_options_that_hang_a_kubelet(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    options = {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"}
    document = configured(objects[REPORT], cpuManagerPolicyOptions=options)
    finding = "warning node metal-a: full-pcpus-only with distribute-cpus-across-numa"
    for version, hangs in (("v1.36.2", True), ("v1.37.1", True), ("v1.38.0", False)):
        node = json.loads(json.dumps(objects["Node metal-a"]))
        node.setdefault("status", {})["nodeInfo"] = {"kubeletVersion": version}
        assert (finding in examine(document, node)) == hangs


def test_a_machine_whose_cpus_two_pods_may_get(ask: Ask, saved: Save) -> None:
    cores = (Core(0, (0, 4)), Core(0, (1, 5)), Core(0, (2, 6)), Core(0, (3,)))
    config = KubeletConfiguration(cpuManagerPolicy="static", reservedSystemCPUs="3", evictionHard={})
    for of_node, warns in ((cores, True), (cores[:3], False)):
        machine = Machine(numa=(NumaNode(0, 16 << 30, of_node),))
        on = msgspec.structs.replace(config, reservedSystemCPUs="3" if warns else "0")
        topology = exported(machine, on, Kubelet(machine, on))
        document = msgspec.to_builtins(msgspec.structs.replace(topology, metadata=nrt.Metadata("n1")))
        file = saved(document, name=f"{warns}.json")
        finding = "cpuManagerPolicy static on a machine whose cores or sockets have different numbers of CPUs"
        found = [item for item in json.loads(ask("doctor", "-f", file, "-o", "json").text) if item["value"] == finding]
        assert [item["severity"] for item in found] == ["warning"] * warns


@pytest.mark.parametrize(("version", "takes"), [("v1.36.2", "less than a second"), ("v1.35.6", "8 hours")])
def test_a_machine_with_34_numa_nodes(version: str, takes: str, ask: Ask, saved: Save) -> None:
    """Two NUMA nodes with CPUs and GPUs, and 32 of GPU memory; kubelets up to 1.35 enumerate all masks."""
    numa = tuple(
        NumaNode(number, (480 << 30) * (number < 2), tuple(Core(number, (72 * number + core,)) for core in range(72)))
        if number < 2
        else NumaNode(number, 0)
        for number in range(34)
    )
    gpus = DevicePlugin("nvidia.com/gpu", tuple(Device(f"gpu{number}", (number // 2,)) for number in range(4)))
    config = KubeletConfiguration(
        topologyManagerPolicy="restricted",
        topologyManagerPolicyOptions={"max-allowable-numa-nodes": "64"},
        cpuManagerPolicy="static",
        reservedSystemCPUs="0,72",
        evictionHard={},
    )
    machine = Machine(numa=numa, devices=(gpus,))
    topology = exported(machine, config, Kubelet(machine, config))
    document = msgspec.to_builtins(
        msgspec.structs.replace(topology, metadata=nrt.Metadata("grace", resourceVersion="1"))
    )
    node = {"kind": "Node", "metadata": {"name": "grace"}, "status": {"nodeInfo": {"kubeletVersion": version}}}
    text = ask("doctor", "-f", saved(document, node, name="some.json"), "-o", "json").text
    (finding,) = [item for item in json.loads(text) if item["value"].startswith("34 NUMA nodes")]
    assert f"; here about {takes} for a pod" in finding["why"]


def _two(second: NumaNode, **fields: Any) -> Json:
    """The report of a machine with a usual NUMA node 0 and the NUMA node `second`."""
    first = NumaNode(0, 1 << 33, (Core(0, (0, 1)), Core(0, (2, 3))), {2048: 512}, (10, 20))
    config = KubeletConfiguration(
        **{
            "topologyManagerPolicy": "restricted",
            "cpuManagerPolicy": "static",
            "reservedSystemCPUs": "0",
            "memoryManagerPolicy": "Static",
            "systemReserved": {"memory": "1Gi"},
            "reservedMemory": (MemoryReservation(0, {"memory": "1Gi"}),),
            "evictionHard": {},
            **fields,
        }
    )
    machine = Machine(numa=(first, second))
    topology = exported(machine, config, Kubelet(machine, config))
    return dict(
        msgspec.to_builtins(msgspec.structs.replace(topology, metadata=nrt.Metadata("odd", resourceVersion="1")))
    )


def test_machines_on_which_a_kubelet_panics(ask: Ask, saved: Save) -> None:
    cores, pages, closest = (Core(1, (4, 5)), Core(1, (6, 7))), {2048: 512}, {"prefer-closest-numa-nodes": "true"}
    gap, lacking = NumaNode(2, 1 << 33, cores, pages, (20, 10)), NumaNode(1, 0, cores, {}, (20, 10))
    with_gap = "error", "prefer-closest-numa-nodes with NUMA ids 0, 2", "remove prefer-closest-numa-nodes from"
    no_pages = (
        "warning",
        "memoryManagerPolicy Static and no hugepages-2Mi on NUMA node 1",
        "keep pods with hugepages-2Mi off the node",
    )
    for second, options, finding in (
        (gap, closest, with_gap),
        (gap, {}, None),
        (msgspec.structs.replace(gap, id=1), closest, None),
        (lacking, {}, no_pages),
        (lacking, closest, no_pages),
    ):
        document = _two(second, topologyManagerPolicyOptions=options)
        findings = json.loads(ask("doctor", "-f", saved(document, name="some.json"), "-o", "json").text)
        panics = [item for item in findings if "panics" in item["why"]]
        assert [(item["severity"], item["thing"], item["value"]) for item in panics] == (
            [(finding[0], "node odd", finding[1])] if finding else []
        )
        assert all(item["mend"].startswith(finding[2]) for item in panics if finding)


def test_a_kubelet_of_an_unproven_version(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    node = json.loads(json.dumps(objects["Node metal-a"]))
    node.setdefault("status", {})["nodeInfo"] = {"kubeletVersion": "v1.39.0"}
    finding = "kubelet 1.39 is newer than the proven versions (1.28 to 1.36); predicted as 1.38"
    assert f"warning node metal-a: {finding}" in examine(objects[REPORT], node)
    both = with_attributes(objects[REPORT], topowise_io_kubelet_version="v1.36.2")
    (line,) = [line for line in examine(both, node) if "kubelet-version" in line]
    assert "'v1.36.2', the Node says 'v1.39.0'; predicted as the newer version, 1.38" in line


def test_a_kubelet_that_will_not_start_again(objects: dict[str, Json], examine: Callable[..., list[str]]) -> None:
    why = json.dumps({"memory_manager_state": "the expected machine state is different from the real one"})
    document = with_attributes(objects[REPORT], topowise_io_refused_state_files=why)
    assert (
        "error node metal-a: kubelet will not start again with its memory_manager_state: "
        "the expected machine state is different from the real one"
    ) in examine(document)


def exporter(node: str, ready: str) -> Json:
    labels = {"app.kubernetes.io/part-of": "topowise", "app.kubernetes.io/component": "exporter"}
    return {
        "kind": "Pod",
        "metadata": {"name": f"exporter-{node}", "namespace": "topowise-system", "uid": f"e-{node}", "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "exporter"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }


def test_nodes_marks_the_nodes_without_a_ready_exporter(objects: dict[str, Json], ask: Ask, saved: Save) -> None:
    reports = []
    for name in ("metal-a", "metal-c", "edge-1"):
        document = json.loads(json.dumps(objects[f"NodeResourceTopology {name}"]))
        manager = "nfd-master" if name == "edge-1" else "topowise-exporter"
        document["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": {"f:zones": {}}}]
        reports.append(document)

    def causes(*pods: Json) -> dict[str, list[str]]:
        rows = json.loads(ask("nodes", "-f", saved(*reports, *pods), "-o", "json").text)
        return {row["node"]: row["unconfirmed"] for row in rows if "exporter-down" in row["unconfirmed"]}

    assert causes(exporter("metal-a", "True"), exporter("metal-c", "True")) == {}
    # The exporter of metal-c is deleted; another exporter reports edge-1.
    assert list(causes(exporter("metal-a", "True"))) == ["metal-c"]
    assert list(causes(exporter("metal-a", "False"), exporter("metal-c", "True"))) == ["metal-a"]
    # Without any pod of an exporter it is unknown whether exporters run as pods.
    assert causes() == {}
