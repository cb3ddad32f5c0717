"""A report that differs from the kubelet's current state: the node keeps its known state and takes no pod unchecked."""

from __future__ import annotations

import msgspec

from scheduling import pod
from stories import table, tell
from topowise_scheduler.verdicts import kube_scheduler


def test_a_kubelet_that_restarts_gets_no_pod_with_exclusive_resources() -> None:
    service = tell("node; exact; exact unconfirmed=pods; fits 2 not n1")
    burstable = pod("b")
    burstable["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "100m"}}
    assert service.fits(burstable, "n1") == ["n1"]
    tell("exact; fits 2 n1", service)


def test_a_missing_device_plugin_refuses_pods_that_request_its_devices() -> None:
    service = tell("node; exact; exact unconfirmed=device:example.com/nic; fits 2 n1")
    for amount in "10":
        asks = pod("b", "2")
        limits = {"cpu": "2", "memory": "1Gi", "example.com/nic": amount}
        asks["spec"]["containers"][0]["resources"]["limits"] = limits
        assert service.fits(asks, "n1") == []


def test_an_explanation_names_a_deleted_object() -> None:
    service = tell("node; exact; lose")
    (shown,) = service.view.explanations(msgspec.convert(pod("d", "1"), kube_scheduler.Pod), ["n1"])
    assert "object-deleted" in shown.text


@table("""
the node goes on from what was known
    node; exact; bound a 4; lose; fits 4 not n1; fits 3 n1; bound c 3; fits 3 not n1; why object-deleted
the next report confirms it
    node; exact; lose; exact; unconfirmed 0
it is forgotten with its node
    node; exact; lose; gone; reported -; unconfirmed 0
a node that is gone already is forgotten at once
    node; exact; gone; reported n1; lose; reported -
numbers of another producer go on too
    node; counts 8 of=-; bound a 6; lose; fits 3 not n1
""")
def test_a_deleted_object_leaves_the_state_of_its_node(story: str) -> None:
    tell(story)


@table("""
it takes no pod to align before its exporter has reported it again
    node first; exact boot-id=first; fits 2 n1; node second; fits 2 not n1; why rebooted
    # A heartbeat, and an object that a client without the attribute writes again.
    node second; exact boot-id=first; fits 2 not n1; exact boot-id=second; fits 2 n1
a report that is ahead of its node waits for it
    node first; exact boot-id=second; fits 2 not n1; node second; fits 2 n1
a report without a boot ID is believed
    node first; exact; fits 2 n1; exact boot-id=other; node; fits 2 n1
a deleted object of the boot before closes the node too
    node first; exact boot-id=first; lose; node second; why object-deleted rebooted; fits 2 not n1; gone; unconfirmed 0
""")
def test_a_node_that_was_rebooted(story: str) -> None:
    tell(story)
