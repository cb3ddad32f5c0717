"""Trials of one pod on several states, and of several pods on one state; no state changes."""

from __future__ import annotations

from kubelets import kubelet_of, machine_of, pod_of
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.pod import PodView
from topowise_scheduler.kubelet.trial import first_refusal, place_all

SIX = {"cpu": "6", "memory": "1Gi"}


def _view(node: Kubelet) -> PodView:
    return node.view_of(pod_of("p", SIX))


def _other(node: Kubelet) -> PodView:
    return node.view_of(pod_of("other", SIX))


def test_a_pod_that_one_of_the_states_refuses_is_refused() -> None:
    empty = kubelet_of(machine_of(4), topologyManagerPolicy="restricted")
    full = empty.fork()
    assert full.admit_view(_other(full)).admitted
    assert first_refusal((empty, full), _view) == "TopologyAffinityError"
    assert first_refusal((empty, empty.fork()), _view) is None
    assert ([*empty.active], [*full.active]) == ([], ["other"])


def test_several_pods_are_placed_together_or_not_at_all() -> None:
    one, two = (kubelet_of(machine_of(*cores), topologyManagerPolicy="restricted") for cores in ((4,), (4, 4)))
    assert place_all(one, [_view, _other]) is None
    placed = place_all(two, [_view, _other])
    assert placed is not None
    assert [*placed.active] == ["p", "other"]
    assert not two.active
