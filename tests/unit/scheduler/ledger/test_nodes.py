"""The Node objects of the cluster, of which few fields are kept."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from topowise_scheduler.ledger.nodes import Nodes


def document(name: str, **changed: Any) -> bytes:
    """Returns a Node object as large as in clouds."""
    labels = {f"example.com/label-{at}": f"value-{at}" for at in range(20)}
    return json.dumps(
        {
            "metadata": {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}, "uid": name},
            "spec": changed.get("spec", {"podCIDR": "10.0.0.0/24"}),
            "status": {
                "allocatable": {"cpu": "63", "memory": "120Gi", "pods": "110", **changed.get("allocatable", {})},
                "conditions": [{"type": "Ready", "status": "True"}],
                "images": [{"names": [f"image-{at}"]} for at in range(50)],
            },
        }
    ).encode()


def test_a_node_is_asked_for_what_it_lists() -> None:
    nodes = Nodes()
    nodes.apply("ADDED", nodes.decode(document("n1", allocatable={"example.com/gpu": "8"})))
    asked = [nodes.allocatable("example.com/gpu", "n1"), nodes.allocatable("x.io/nic", "n1")]
    assert [*asked, nodes.allocatable("example.com/gpu", "n2")] == [8, None, None]


def test_nodes_of_one_pool_share_what_is_the_same() -> None:
    nodes = Nodes()
    first, second = nodes.decode(document("n1")), nodes.decode(document("n2"))
    assert first.allocatable is second.allocatable
    assert first.labels is second.labels
    assert first.taints is second.taints
    assert (first.label("kubernetes.io/hostname"), second.label("kubernetes.io/hostname")) == ("n1", "n2")
    assert first.label("example.com/label-3") == "value-3"
    assert first.label("example.com/label-99") is None


@pytest.mark.nightly
def test_a_node_takes_a_few_hundred_bytes() -> None:
    nodes = Nodes()
    nodes.apply("ADDED", nodes.decode(document("first")))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for at in range(2000):
            nodes.apply("ADDED", nodes.decode(document(f"node-{at:05}")))
        assert (tracemalloc.get_traced_memory()[0] - before) / 2000 < 500
    finally:
        tracemalloc.stop()


def test_what_is_shared_is_bounded() -> None:
    nodes = Nodes()
    for at in range(6000):
        nodes.decode(json.dumps({"metadata": {"name": "n", "labels": {"id": f"{at:0>3000}"}}}).encode())
    assert len(nodes._labels) < 5500


def test_an_amount_that_cannot_be_read_is_none() -> None:
    node = Nodes().decode(document("n1", allocatable={"cpu": "many", "example.com/odd": None}))
    assert "cpu" not in node.allocatable
    assert node.allocatable["memory"] == 120 << 30


def test_nodes_come_change_and_go() -> None:
    nodes = Nodes()
    nodes.apply("ADDED", nodes.decode(document("n1")))
    nodes.apply("MODIFIED", nodes.decode(document("n1", spec={"unschedulable": True})))
    node = nodes.get("n1")
    assert node is not None
    assert node.is_cordoned
    nodes.apply("DELETED", node)
    nodes.apply("DELETED", node)
    assert (len(nodes), list(nodes), nodes.get("n1")) == (0, [], None)
