"""The column FRAG, its order and its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from topowise import nrt
from topowise.errors import SourceError
from topowise_scheduler.kubectl import objects
from topowise_scheduler.kubectl.doctor import own_pods
from topowise_scheduler.verdicts.refusals import PREFIX

from .conftest import GPU, Ask, Json, Save, counted, pod
from .test_doctor import FakeKubectl


def gpus(name: str, *free: str) -> Json:
    """A node with 16 free CPUs, 32 GiB of memory and these of 2 GPUs on each NUMA node."""
    document = counted(name, ("16", "16"), "single-numa-node")
    for zone, available in zip(document["zones"], free, strict=True):
        zone["resources"][1]["available"] = "32Gi"
        zone["resources"].append({"name": GPU, "capacity": "2", "allocatable": "2", "available": available})
    return document


def waiting(name: str, **amounts: str) -> Json:
    document = pod(name, **amounts)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"0/2: {PREFIX}none"}
    return {**document, "status": {"phase": "Pending", "conditions": [condition]}}


def losses(ask: Ask, *words: str) -> dict[str, Any]:
    return {row["node"]: row["fragmentation"] for row in json.loads(ask("nodes", *words, "-o", "json").text)}


def test_gpus_on_two_numa_nodes_are_fragmented(ask: Ask, saved: Save) -> None:
    file = saved(gpus("together", "0", "2"), gpus("halves", "1", "1"))
    assert losses(ask, "-f", file) == {"halves": 50, "together": 0}
    assert ask("nodes", "-f", file, "--sort-by", "fragmentation", "-o", "name").text == "node/halves\nnode/together\n"


def test_json_has_the_sizes_of_each_kind(ask: Ask, saved: Save) -> None:
    (row,) = json.loads(ask("nodes", "-f", saved(gpus("halves", "1", "1")), "-o", "json").text)
    assert row["largestAligned"][GPU] == {"now": "1", "together": "2"}
    assert row["largestAligned"]["cpu"] == {"now": "16", "together": "16"}
    assert row["copies"] == {}


def test_waiting_pods_decide_the_loss(ask: Ask, saved: Save) -> None:
    """The waiting pods fit as often as without fragmentation, on both nodes."""
    nodes = gpus("together", "0", "2"), gpus("halves", "1", "1")
    waits = waiting("ml/train", cpu="1", memory="1Gi", gpu="1")
    assert losses(ask, "-f", saved(*nodes, waits)) == {"halves": 0, "together": 0}
    wide = waiting("ml/wide", cpu="1", memory="1Gi", gpu="2")
    assert losses(ask, "-f", saved(*nodes, waits, wide)) == {"halves": 100, "together": 0}
    (row, _) = json.loads(ask("nodes", "-f", saved(*nodes, wide), "-o", "json").text)
    assert row["copies"] == {"ml/wide": {"now": 0, "together": 1}}
    # A pod that kube-scheduler has not tried does not wait for a NUMA node.
    assert losses(ask, "-f", saved(*nodes, pod("ml/new", cpu="1", memory="1Gi", gpu="1")))["halves"] == 50


def test_waiting_pods_are_read_from_the_cluster_if_that_is_permitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    kubectl = FakeKubectl(tmp_path)
    monkeypatch.setenv("KUBECTL", str(kubectl.program))
    kubectl.answer(nrt.PATH, {"items": [gpus("halves", "1", "1")]})
    kubectl.answer(own_pods.EXPORTERS_PATH, {"items": []})
    wide = waiting("ml/wide", cpu="1", memory="1Gi", gpu="2")
    kubectl.answer(objects.WAITING_PATH, {"items": [wide]})
    assert losses(ask) == {"halves": 100}
    kubectl.deny(objects.WAITING_PATH)
    assert losses(ask) == {"halves": 50}
    kubectl.answer(objects.WAITING_PATH, {"items": [wide]})
    kubectl.deny(nrt.PATH)
    with pytest.raises(SourceError, match="is forbidden"):
        ask("nodes")


def test_policy_none_loses_nothing(ask: Ask, saved: Save) -> None:
    assert losses(ask, "-f", saved(counted("none", ("5", "5"), "none"))) == {"none": 0}


def test_the_loss_is_coloured(ask: Ask, saved: Save) -> None:
    file = saved(gpus("together", "0", "2"), gpus("halves", "1", "1"))
    text = ask("nodes", "-f", file, is_colour=True).text
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert "\x1b[31m50%\x1b[0m" in rows["halves"]
    assert "\x1b[" not in rows["together"]
