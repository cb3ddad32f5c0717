"""The explanation of pods with a marker: the chosen NUMA node, and what the kubelet alone would do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduling import Service, exact, kubelet, pod
from steering_pods import marked, requiring
from topowise.steering import RESOURCE
from topowise_scheduler.explain.explanation import NodeExplanation
from topowise_scheduler.verdicts.kube_scheduler import Pod

AMOUNTS = {"cpu": "8", "memory": "64Gi", "pods": "110"}


def explained(document: dict[str, Any], *, markers: int | None = 8, **options: Any) -> NodeExplanation:
    """Returns the explanation of n1, whose NUMA node 0 has three CPUs free and NUMA node 1 four."""
    service = Service(markers=lambda name: markers)
    service.put_node("n1", allocatable={**AMOUNTS, **({} if markers is None else {RESOURCE: str(markers)})})
    service.report(exact(kubelet(**options), **options))
    (explanation,) = service.view.explanations(msgspec.json.decode(msgspec.json.encode(document), type=Pod), ["n1"])
    return explanation


def test_the_chosen_numa_node_is_named() -> None:
    explanation = explained(requiring("a", 1))
    assert explanation.verdict == "fits"
    assert "; steered to NUMA node 1 (the kubelet alone would take 0) by numa-node 1" in explanation.text
    assert explanation.steps[0].chosen == (1,)
    assert "steered" not in explained(pod("a")).text
    assert "steered" not in explained(marked("a")).text, "the kubelet takes the best NUMA node by itself"


def test_a_pod_that_the_kubelet_alone_would_spread_or_refuse() -> None:
    text = "; steered to NUMA node 1 (the kubelet alone would take no single NUMA node)"
    assert text in explained(requiring("a", 1, "2", "2")).text


def test_a_full_numa_node_may_become_free() -> None:
    explanation = explained(requiring("a", 0, "4"))
    assert explanation.verdict == "not now"
    assert explanation.text.endswith("; the pod requires numa-node 0")
    assert explanation.steps[0].chosen is None
    assert explained(requiring("a", 2)).verdict == "never"


@pytest.mark.parametrize(("markers", "verdict"), [(None, "fits"), (1, "fits"), (0, "never")])
def test_markers_count_only_where_the_node_lists_them(markers: int | None, verdict: str) -> None:
    """As kube-scheduler with `ignoredResources`, and kubelets."""
    assert explained(marked("a", "1"), markers=markers).verdict == verdict


def test_other_pods_on_a_numa_node_are_the_reason() -> None:
    service = Service(markers=lambda name: 8)
    service.put_node("n1", allocatable={**AMOUNTS, RESOURCE: "8"})
    node = kubelet()
    record = service.put(requiring("cache", 1, "2", node="n1", labels={"app": "cache"}), is_news=False)
    assert node.admit_view(msgspec.structs.replace(record, steered=1).view(node)).admitted
    service.report(exact(node))

    def text(terms: str, cpus: str = "2") -> str:
        document = marked("a", cpus, annotations={"topowise.io/numa-affinity": terms})
        asked = msgspec.json.decode(msgspec.json.encode(document), type=Pod)
        (explanation,) = service.view.explanations(asked, ["n1"])
        return f"{explanation.verdict}: {explanation.text}"

    steered = "steered to NUMA node 1 (the kubelet alone would take 0) by numa-affinity require same: app=cache"
    assert text("require same: app=cache").startswith("fits: ")
    assert steered in text("require same: app=cache")
    refused = text("require same: app=cache; prefer apart: pod/x", "3")
    assert refused.startswith("not now: ")
    assert refused.endswith("; the pod requires numa-affinity require same: app=cache")
    assert text("require same: pod/other").startswith("not now: NUMA: no pod on the node is beside which")
