"""A node that kube-scheduler refuses for a reason that nobody else knows."""

from __future__ import annotations

from typing import Any

from placing import Placing

REFUSED: dict[str, Any] = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "not this one"}]
}
OF_SET = {"labels": {"app": "a"}}


def lose(placing: Placing, name: str, **fields: Any) -> None:
    """kube-scheduler refuses the node of a placed pod for half a minute; then the pod is deleted."""
    placing.put(name, **REFUSED, **fields)
    for _ in range(30):
        list(placing.decisions.lost())
        placing.clock.now += 1
    placing.delete(name)


def test_the_next_pod_of_its_controller_goes_elsewhere_and_other_pods_do_not() -> None:
    placing = Placing("8", "8")
    placing.put("a1", **OF_SET)
    (node,) = placing.place_all().values()
    lose(placing, "a1")
    placing.put("a2", **OF_SET)
    placing.put("b", "7", labels={"app": "b"})
    nodes = placing.place_all()
    assert nodes["b"] == node
    assert nodes["a2"] != node


def test_a_node_is_tried_again_after_ever_longer_times() -> None:
    placing = Placing("8")
    for pause in (300, 600, 1200):
        placing.put("a", **OF_SET)
        assert placing.place_all() == {"a": "n1"}
        lose(placing, "a")
        placing.put("a", **OF_SET)
        placing.clock.now += pause - 31
        list(placing.decisions.lost())
        assert placing.place_all() == {}
        placing.clock.now += 31
        list(placing.decisions.lost())
        assert placing.place_all() == {"a": "n1"}
        placing.delete("a")


def test_a_node_that_is_refused_for_a_known_reason_is_free_again_with_the_reason() -> None:
    placing = Placing("8")
    placing.put("a1", **OF_SET)
    placing.place_all()
    placing.node("n1", {"unschedulable": True})
    lose(placing, "a1")
    placing.put("a2", **OF_SET)
    assert placing.place_all() == {}
    placing.node("n1")
    assert placing.place_all() == {"a2": "n1"}


def test_pods_with_constraints_and_groups_stay_off_it_too() -> None:
    placing = Placing("8", "8")
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": OF_SET["labels"]}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for name in ("n1", "n2"):
        placing.node(name, labels={"kubernetes.io/hostname": name})
    placing.put("a1", affinity=apart, **OF_SET)
    (node,) = placing.place_all().values()
    lose(placing, "a1")
    placing.put("a2", affinity=apart, **OF_SET)
    assert set(placing.place_all().values()) == {"n1", "n2"} - {node}
    placing.put("a3", affinity=apart, **OF_SET)
    assert placing.place_all() == {}
