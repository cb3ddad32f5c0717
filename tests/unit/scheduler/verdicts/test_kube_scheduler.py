"""Why kube-scheduler refuses a node: the order of its plug-ins and the texts of their refusals."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduling import pod
from topowise import pods
from topowise.placement import PLACED_ON
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.verdicts import kube_scheduler
from topowise_scheduler.verdicts.kube_scheduler import Objection

NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
NVME = {"key": "disk", "operator": "In", "values": ["nvme"]}
ON_N1 = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
GPU = {"key": "gpu", "value": "only", "effect": "NoSchedule"}


def node(spec: dict[str, Any] | None = None, *, ready: str = "True", **labels: str) -> kube_scheduler.Node:
    named = {"kubernetes.io/hostname": "n1", **{key.replace("__", "/"): value for key, value in labels.items()}}
    status = {
        "allocatable": {"cpu": "8", "memory": "16Gi", "pods": "3"},
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}],
    }
    document = {"metadata": {"name": "n1", "labels": named}, "spec": spec or {}, "status": status}
    return Nodes().decode(json.dumps(document).encode())


def against(on: kube_scheduler.Node, used: dict[str, int] | None = None, **spec: Any) -> Objection | None:
    unscheduled = kube_scheduler.decode(json.dumps(pod("a", **spec)).encode())
    return kube_scheduler.refusal(on, unscheduled.spec, pods.needs(unscheduled), used or {"pods": 0})


def words(on: kube_scheduler.Node, **spec: Any) -> str:
    refusal = against(on, **spec)
    return refusal.words if refusal else ""


def text(on: kube_scheduler.Node, used: dict[str, int] | None = None, **spec: Any) -> str:
    refusal = against(on, used, **spec)
    assert refusal is not None
    return refusal.text


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    selector = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_a_node_with_enough_free_resources_is_not_refused() -> None:
    assert against(node()) is None


def test_a_cordoned_node_accepts_pods_that_tolerate_it() -> None:
    refusal = against(node({"unschedulable": True}))
    assert refusal == Objection(
        "cordon", "excluded", "node(s) were unschedulable", "node(s) were unschedulable: the node is cordoned"
    )
    assert not words(node({"unschedulable": True}), tolerations=[{"operator": "Exists"}])


@pytest.mark.parametrize(
    ("toleration", "is_enough"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "only"}, True),
        ({"key": "gpu", "operator": "", "value": "only", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "other"}, False),
        ({"key": "gpu", "operator": "Gt", "value": "only"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_taints(toleration: dict[str, Any], is_enough: bool) -> None:
    refusal = words(node({"taints": [GPU]}), tolerations=[toleration])
    assert refusal == ("" if is_enough else "node(s) had untolerated taint(s)")


def test_a_taint_is_named_and_a_preference_is_none() -> None:
    preferred = {"key": "old", "effect": "PreferNoSchedule"}
    assert against(node({"taints": [preferred]})) is None
    assert text(node({"taints": [preferred, GPU]})) == "node(s) had untolerated taint(s): gpu=only:NoSchedule"


@pytest.mark.parametrize("spec", [{}, {"taints": [NOT_READY]}, {"taints": [UNREACHABLE]}], ids=["none", "not", "un"])
@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_a_node_that_is_not_ready_is_named_as_such(ready: str, spec: dict[str, Any]) -> None:
    """Whether the node controller has tainted it yet or not."""
    refusal = against(node(spec, ready=ready))
    assert refusal is not None
    assert (refusal.verdict, refusal.words) == ("excluded", "node(s) had untolerated taint(s)")
    assert refusal.text.endswith("the node is not ready")
    assert against(node(spec, ready=ready), tolerations=[{"operator": "Exists"}]) is None


def test_node_name_and_selector() -> None:
    assert words(node(), nodeName="n1") == ""
    assert words(node(), nodeName="n2") == "node(s) didn't match the requested node name"
    assert words(node(pool="a"), nodeSelector={"pool": "a", "kubernetes.io/hostname": "n1"}) == ""
    other, none = (text(on, nodeSelector={"pool": "b"}) for on in (node(pool="a"), node()))
    assert other == "node(s) didn't match Pod's node affinity/selector: the pod requires pool=b, the node has 'a'"
    assert none.endswith("the pod requires pool=b, the node has no such label")


@pytest.mark.parametrize(
    ("terms", "fits"),
    [
        ([], False),
        ([{}], False),
        ([{}, expression("pool", "In", "a")], True),
        ([expression("pool", "In", "a", "b")], True),
        ([expression("pool", "In", "b")], False),
        ([expression("pool", "In", "b"), expression("pool", "In", "a")], True),
        ([expression("pool", "NotIn", "a")], False),
        ([expression("other", "NotIn", "a")], True),
        ([expression("other", "In", "a")], False),
        ([expression("pool", "Exists")], True),
        ([expression("pool", "DoesNotExist")], False),
        ([expression("other", "DoesNotExist")], True),
        ([expression("size", "Gt", "15")], True),
        ([expression("size", "Gt", "16")], False),
        ([expression("size", "Lt", "17")], True),
        ([expression("pool", "Lt", "17")], False),
        ([expression("other", "Gt", "1")], False),
        ([expression("size", "Gt", "1", "2")], False),
        ([expression("size", "Gt", "-1")], True),
        ([expression("size", "Gt", "+15")], True),
        ([expression("size", "Gt", " 15")], False),
        ([expression("size", "Gt", "1_5")], False),
        ([expression("size", "Gt", "\u0661")], False),
        ([expression("size", "Lt", "9223372036854775807")], True),
        ([expression("size", "Lt", "9223372036854775808")], False),
        ([expression("size", "Equals", "16")], False),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}], True),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}], False),
        ([{"matchFields": [{"key": "metadata.uid", "operator": "Exists"}]}], False),
        ([{**expression("pool", "In", "a"), "matchFields": [{"key": "metadata.name", "operator": "In"}]}], False),
    ],
)
def test_required_node_affinity(terms: list[dict[str, Any]], fits: bool) -> None:
    refusal = words(node(pool="a", size="16"), affinity=required(*terms))
    assert refusal == ("" if fits else "node(s) didn't match Pod's node affinity/selector")


def test_a_label_that_go_does_not_read_as_an_integer_is_none() -> None:
    """Labels may have underscores."""
    assert words(node(size="1_6"), affinity=required(expression("size", "Gt", "1")))


def test_a_refusal_names_terms_that_no_alternative_matches() -> None:
    affinity = required(expression("pool", "In", "b", "c"), expression("size", "Gt", "8"))
    assert text(node(), affinity=affinity).endswith(": required: pool In [b, c] or size Gt [8]")


@pytest.mark.parametrize(
    ("used", "resources", "verdict", "text"),
    [
        ({"pods": 3}, {}, "not now", "Too many pods: 3 of 3 are in use"),
        ({"pods": 0, "cpu": 6001}, {}, "not now", "Insufficient cpu: asks for 2, 1999m of 8 are free"),
        ({"pods": 0}, {"cpu": "9"}, "never", "Insufficient cpu: asks for 9, 8 of 8 are free"),
        ({"pods": 0}, {"nvidia.com/gpu": "1"}, "never", "Insufficient nvidia.com/gpu: asks for 1, the node has none"),
        (
            {"pods": 0, "memory": 16 << 30},
            {"hugepages-1Gi": "1Gi"},
            "never",
            "Insufficient memory: asks for 1Gi, 0 of 16Gi are free; "
            "Insufficient hugepages-1Gi: asks for 1Gi, the node has none",
        ),
        ({"pods": 0, "memory": 17 << 30}, {}, "not now", "Insufficient memory: asks for 1Gi, 0 of 16Gi are free"),
    ],
)
def test_sums(used: dict[str, int], resources: dict[str, str], verdict: str, text: str) -> None:
    amounts = {"cpu": "2", "memory": "1Gi", **resources}
    containers = [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]
    refusal = against(node(), used, containers=containers)
    assert refusal is not None
    assert (refusal.verdict, refusal.text) == (verdict, text)


def test_what_is_asked_for_zero_times_is_not_asked_for() -> None:
    amounts = {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "0"}
    containers = [{"name": "c", "resources": {"requests": amounts, "limits": amounts}}]
    assert against(node(), {"pods": 2}, containers=containers) is None


def test_the_first_plug_in_that_refuses_is_quoted() -> None:
    spec = {"unschedulable": True, "taints": [GPU]}
    assert words(node(spec), nodeName="n2", nodeSelector={"pool": "a"}) == "node(s) were unschedulable"
    assert words(node({"taints": [GPU]}), nodeSelector={"pool": "a"}) == "node(s) had untolerated taint(s)"


def test_what_is_not_looked_at_is_named() -> None:
    container = {"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}
    term = {"topologyKey": "kubernetes.io/hostname"}
    spec: dict[str, Any] = {
        "containers": [container],
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        "topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}],
        "resourceClaims": [{"name": "gpu"}],
        "schedulingGates": [{"name": "quota"}],
    }
    unscheduled = kube_scheduler.decode(json.dumps({"metadata": {}, "spec": spec}).encode())
    assert kube_scheduler.unexamined(unscheduled.spec) == (
        "pod affinity", "topology spread", "volumes", "host ports", "resource claims", "scheduling gates"
    )  # fmt: skip


def test_preferences_and_local_volumes_keep_no_node_away() -> None:
    spec: dict[str, Any] = {
        "containers": [{"name": "c", "ports": [{"containerPort": 80}]}],
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
        "topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}],
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "c", "configMap": {"name": "c"}}],
    }
    unscheduled = kube_scheduler.decode(json.dumps({"metadata": {}, "spec": spec}).encode())
    assert kube_scheduler.unexamined(unscheduled.spec) == ()


@pytest.mark.parametrize(
    ("terms", "before"),
    [
        ([{"matchFields": [ON_N1]}], None),
        ([{"matchExpressions": [NVME], "matchFields": [ON_N1]}, {}], [{"matchExpressions": [NVME]}, {}]),
        # It named the node itself.
        ([{"matchFields": [ON_N1, ON_N1]}], [{"matchFields": [ON_N1]}]),
    ],
)
def test_a_placed_pod_is_asked_about_without_the_node_that_was_named_for_it(terms: Any, before: Any) -> None:
    def document(required: Any, **metadata: Any) -> kube_scheduler.Pod:
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        created = pod("a", affinity=affinity, **metadata)
        return kube_scheduler.decode(json.dumps(created).encode())

    placed = kube_scheduler.unbound(document({"nodeSelectorTerms": terms}, annotations={PLACED_ON: "n1"}))
    expected = document(before and {"nodeSelectorTerms": before})
    for node in ("n1", "n2", "n3"):
        on = kube_scheduler.Node(node, labels={"disk": "nvme"} if node != "n3" else {})
        assert kube_scheduler.is_selected(on, placed.spec) == kube_scheduler.is_selected(on, expected.spec)
