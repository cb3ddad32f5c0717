"""Groups that the configuration declares: what their files say, and errors that name the entry."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from scheduling import Service, counts, exact, kubelet, pod
from topowise import nrt
from topowise.errors import ConfigError
from topowise_scheduler.configuration import NodeGroup, NodeTaint
from topowise_scheduler.overlay.scale_up import node_groups
from topowise_scheduler.overlay.scale_up.node_groups import Profile, profile_of, profiles_of
from topowise_scheduler.verdicts.kube_scheduler import Pod

KEYS = ("pool",)
HEAD = b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
KUBELET = (
    HEAD
    + b"""
topologyManagerPolicy: single-numa-node
cpuManagerPolicy: static
reservedSystemCPUs: "0"
"""
)
MACHINE: dict[str, Any] = {
    "nodes": [{"id": node, "memory_bytes": 16 << 30, "cpus": list(range(4 * node, 4 * node + 4))} for node in (0, 1)],
    "cpus": {"topology": {str(cpu): {"socket": cpu // 4, "threads": [cpu]} for cpu in range(8)}},
}


def entry(**fields: Any) -> NodeGroup:
    return NodeGroup(**{"labels": {"pool": "gpu", "zone": "a"}, "file": "node.json", **fields})


def refusal(profile: Profile, cpu: str, **fields: Any) -> str:
    return node_groups.refusal(Service().trial, profile, Service().put(pod("p", cpu, **fields)))


def saved(topology: nrt.NodeResourceTopology | None = None) -> bytes:
    """The object of a node as `kubectl get -o json` writes it."""
    document = json.loads(msgspec.json.encode(topology or exact(kubelet(), name="n1")))
    return json.dumps({"kind": "NodeResourceTopology", **document}).encode()


@pytest.mark.parametrize("text", [saved(), b"# saved on a Monday\n" + saved()], ids=["JSON", "YAML"])
def test_a_saved_object_is_the_empty_node(text: bytes) -> None:
    profile = profile_of(entry(allocatable={"pods": "110"}), {"node.json": text}, KEYS)
    assert profile.group == (("pool", "gpu"),)
    assert profile.empty.like == ""
    assert not refusal(profile, "4")
    assert refusal(profile, "5") == "its kubelet cannot align the pod"


@pytest.mark.parametrize("version", ["", "v1.36.2"])
def test_a_machine_with_the_configuration_of_its_kubelet_is_the_empty_node(version: str) -> None:
    files = {"node.json": json.dumps(MACHINE).encode(), "kubelet.yaml": KUBELET}
    declared = entry(kubelet_config="kubelet.yaml", kubelet_version=version, allocatable={"pods": "110"})
    profile = profile_of(declared, files, KEYS)
    assert not refusal(profile, "4")
    assert refusal(profile, "5") == "its kubelet cannot align the pod"


def test_taints_labels_and_daemon_pods_count() -> None:
    files = {"node.json": json.dumps(MACHINE).encode(), "kubelet.yaml": KUBELET}
    declared = entry(
        kubelet_config="kubelet.yaml",
        taints=(NodeTaint(key="gpu", value="yes"),),
        allocatable={"pods": "2"},
        used={"cpu": "3", "memory": "1Gi", "pods": "1"},
    )
    profile = profile_of(declared, files, KEYS)
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    assert constrained(profile, "4", tolerations=tolerations, nodeSelector={"zone": "a"}) == ""
    assert "untolerated taint" in constrained(profile, "2")
    assert "zone" in constrained(profile, "2", tolerations=tolerations, nodeSelector={"zone": "b"})
    assert constrained(profile, "3500m", tolerations=tolerations) == ""
    assert "Insufficient cpu" in constrained(profile, "4500m", tolerations=tolerations)


def constrained(profile: Profile, cpu: str, **spec: Any) -> str:
    document = pod("p", cpu)
    document["spec"].update(spec)
    decoded = msgspec.json.decode(msgspec.json.encode(document), type=Pod)
    cluster = Service().trial
    return node_groups.refusal(cluster, profile, cluster.record(decoded))


@pytest.mark.parametrize(
    ("fields", "files", "problem"),
    [
        ({"labels": {"zone": "a"}}, {}, "labels has none of groupLabels"),
        ({}, {"node.json": b"{"}, "node.json"),
        ({}, {"node.json": b"[" * 100_000}, "node.json"),
        ({}, {"node.json": b'{"kind": "NodeResourceTopology"}'}, "NodeResourceTopology"),
        ({}, {"node.json": b'{"kind": "NodeResourceTopology", "metadata": {"name": "n"}}'}, "expected a NodeResource"),
        ({}, {"node.json": b'{"nodes": 5}'}, "topowise-exporter machine"),
        ({}, {"node.json": b"<topology version='2.0'/>"}, "topowise-exporter machine"),
        ({}, {"node.json": json.dumps(MACHINE).encode()}, "expected kubeletConfig"),
        (
            {"kubelet_config": "k"},
            {"node.json": json.dumps(MACHINE).encode(), "k": HEAD + b"cpuManagerPolicy: 5"},
            "cpuManager",
        ),
        (
            {"kubelet_config": "k"},
            {"node.json": json.dumps(MACHINE).encode(), "k": HEAD + b"cpuManagerPolicy: static"},
            "reserv",
        ),
        ({"allocatable": {"cpu": "many"}}, {"node.json": saved()}, "many"),
    ],
)
def test_an_entry_that_cannot_be_used_is_one_line_with_its_file(
    fields: dict[str, Any], files: dict[str, bytes], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        profile_of(entry(**fields), files, KEYS)
    assert str(raised.value).startswith("scaleUp.declaredGroups, node.json: ")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_amounts_of_another_exporter_will_do() -> None:
    text = saved(counts("n1", ("1", "0"), allocatable="4"))
    profile = profile_of(entry(allocatable={"memory": "64Gi", "pods": "9"}), {"node.json": text}, KEYS)
    assert not refusal(profile, "4")
    assert refusal(profile, "5")


def test_a_group_is_declared_once() -> None:
    with pytest.raises(ConfigError, match="an entry before declares"):
        profiles_of([entry(), entry(labels={"pool": "gpu"})], {"node.json": saved()}, KEYS)
