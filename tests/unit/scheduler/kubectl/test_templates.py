"""Objects of any kind with a pod template: found by the schema, with the number of pods that their fields state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from topowise.errors import SourceError
from topowise_scheduler.kubectl.manifests import templates

from .conftest import Ask, Save

CPUS = {"cpu": "2", "memory": "4Gi"}
POD: dict[str, Any] = {"spec": {"containers": [{"name": "app", "resources": {"limits": CPUS}}]}}


def of(kind: str, api_version: str = "example.com/v1", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "work"}, "spec": spec}


JOB = {"spec": {"parallelism": 4, "completions": 3, "template": POD}}
OBJECTS = {
    "DaemonSet": (of("DaemonSet", "apps/v1", template=POD), [("", 1)]),
    "CronJob": (of("CronJob", "batch/v1", jobTemplate=JOB), [("job", 3)]),
    "PyTorchJob": (
        of("PyTorchJob", pytorchReplicaSpecs={"Master": {"template": POD}, "Worker": {"replicas": 3, "template": POD}}),
        [("master", 1), ("worker", 3)],
    ),
    "RayCluster": (
        of(
            "RayCluster",
            headGroupSpec={"template": POD},
            workerGroupSpecs=[{"groupName": "gpu", "replicas": 2, "template": POD}, {"template": POD}],
        ),
        [("headgroupspec", 1), ("gpu", 2), ("workergroupspecs", 1)],
    ),
    "LeaderWorkerSet": (
        of(
            "LeaderWorkerSet",
            replicas=2,
            leaderWorkerTemplate={"size": 4, "leaderTemplate": POD, "workerTemplate": POD},
        ),
        [("leader", 2), ("worker", 6)],
    ),
    "LeaderWorkerSet without a leader": (
        of("LeaderWorkerSet", replicas=2, leaderWorkerTemplate={"size": 4, "workerTemplate": POD}),
        [("worker", 8)],
    ),
    "JobSet": (
        of("JobSet", replicatedJobs=[{"name": "train", "replicas": 2, "template": JOB}]),
        [("train", 6)],
    ),
    "Workload of Kueue": (of("Workload", podSets=[{"name": "main", "count": 5, "template": POD}]), [("main", 5)]),
    "VolcanoJob": (of("Job", tasks=[{"name": "ps", "replicas": 2, "template": POD}]), [("ps", 2)]),
    "a template that a controller has seen": ({**of("Rollout", replicas=1), "status": {"template": POD}}, []),
    "MachineDeployment": (of("MachineDeployment", replicas=3, template={"spec": {"version": "v1.36.0"}}), []),
    "Deployment without containers": (of("Deployment", "apps/v1", template={"spec": {}}), [("", 1)]),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_pod_templates_of_any_kind(name: str) -> None:
    document, expected = OBJECTS[name]
    assert [(template.role, template.pods) for template in templates(document, "file")] == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"replicas": -1}, "spec.replicas is -1, expected a number of pods from 0 to 10000"),
        ({"replicas": "3"}, "spec.replicas is '3', expected a number of pods from 0 to 10000"),
        ({"replicas": True}, "spec.replicas is True, expected"),
        ({"replicas": 9999, "count": 9999}, "asks for 99980001 pods, expected at most 10000"),
    ],
)
def test_an_impossible_number_of_pods_is_a_single_line(spec: dict[str, Any], expected: str) -> None:
    with pytest.raises(SourceError, match=expected):
        templates(of("Deployment", "apps/v1", template=POD, **spec), "file")


def written(tmp_path: Path, *documents: Any) -> str:
    (tmp_path / "work.yaml").write_text(yaml.safe_dump_all(documents))
    return str(tmp_path / "work.yaml")


def test_each_template_of_an_object_is_placed(ask: Ask, saved: Save, tmp_path: Path) -> None:
    file = written(tmp_path, OBJECTS["PyTorchJob"][0])
    shown = json.loads(ask("simulate", "-f", file, "--nodes-file", saved(), "-o", "json").text)
    assert [pod["pod"] for pod in shown["pods"]] == [
        "default/work-master-0",
        "default/work-worker-0",
        "default/work-worker-1",
        "default/work-worker-2",
    ]
    assert shown["refused"] == 0
    items = json.loads(Path(saved()).read_text())["items"]
    words = ("--nodes-file", saved(*items, OBJECTS["PyTorchJob"][0], name="with-job.json"), "-o", "name")
    for name in ("pytorchjob/work", "pytorchjobs.kubeflow.org/work", "PyTorchJob/work"):
        assert ask("explain", name, *words).text == ask("explain", "-f", file, *words[:2], *words[2:]).text


def test_a_daemon_set_has_a_pod_on_each_node_that_is_not_excluded(ask: Ask, saved: Save, tmp_path: Path) -> None:
    metal = {"spec": {**POD["spec"], "nodeSelector": {"pool": "metal"}}}
    file = written(tmp_path, of("DaemonSet", "apps/v1", template=metal))
    shown = json.loads(ask("simulate", "-f", file, "--nodes-file", saved(), "-o", "json").text)
    assert [pod["node"] for pod in shown["pods"]] == ["metal-a", "metal-b"]
    # Its pods tolerate cordoned nodes.
    everywhere = written(tmp_path, of("DaemonSet", "apps/v1", template=POD))
    rows = json.loads(ask("explain", "-f", everywhere, "--nodes-file", saved(), "-o", "json").text)
    assert {row["verdict"] for row in rows} == {"fits", "not reported"}
    shown = json.loads(ask("simulate", "-f", everywhere, "--nodes-file", saved(), "-o", "json").text)
    assert [pod["node"] for pod in shown["pods"]] == ["edge-1", "metal-a", "metal-b", "metal-c", "plain", "resting"]
