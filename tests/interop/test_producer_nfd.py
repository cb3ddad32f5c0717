"""Lives of a node that nfd-topology-updater reports."""

from __future__ import annotations

import pytest

from lives import WRITERS, Json, Life, guaranteed


@pytest.mark.parametrize("name", ["nfd", "nfd-without-fingerprint"])
def test_a_pod_whose_devices_are_not_allocated_yet_stays_booked(name: str) -> None:
    """NFD reads at every change of a kubelet state file; the CPU manager writes its file before device allocation."""
    life = Life(WRITERS[name])
    life.report()
    pod = guaranteed("a", "4", "2Gi", 2)
    life.bind(pod)
    free_gpus = [_gpu(zone) for zone in life.seen()["zones"]]
    life.admit(pod)
    document = life.seen()
    for zone in document["zones"]:
        gpu = next(row for row in free_gpus if row["zone"] == zone["name"])
        resources = [resource for resource in zone["resources"] if resource["name"] != "example.com/gpu"]
        zone["resources"] = [*resources, gpu["resource"]]
    life.deliver(document)
    assert not life.fits(guaranteed("x", "1", "1Gi", 2)) or life.free[1] < 8
    assert not life.fits(guaranteed("x", "1", "1Gi", 3))
    life.report()
    assert life.free == [3, 8]
    assert life.fits(guaranteed("x", "1", "1Gi", 2))


def _gpu(zone: Json) -> Json:
    return {
        "zone": zone["name"],
        "resource": next(resource for resource in zone["resources"] if resource["name"] == "example.com/gpu"),
    }


def test_negative_amounts_are_none_and_come_back() -> None:
    """An allocated device that becomes unhealthy is no longer allocatable, and still counts as used."""
    life = Life(WRITERS["nfd"])
    pod = guaranteed("a", "4", "2Gi", 2)
    life.bind({**pod, "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}})
    life.admit(pod)
    life.wait(3)
    document = life.seen()
    for zone in document["zones"]:
        for resource in zone["resources"]:
            if zone["name"] == "node-0" and resource["name"] == "example.com/gpu":
                resource.update(capacity="1", allocatable="1", available="-1")
    life.deliver(document)
    assert life.free == [3, 8]
    assert life.fits(guaranteed("x", "1", "1Gi", 2))
    life.bind(guaranteed("y", "1", "1Gi", 2))
    assert not life.fits(guaranteed("x", "1", "1Gi", 1))


def test_without_a_fingerprint_an_earlier_report_is_not_taken_for_a_later_report() -> None:
    """Pods of equal size: a pod has ended and a pod has started, and the amounts may be of either moment."""
    life = Life(WRITERS["nfd-without-fingerprint"])
    first, second = guaranteed("a", "4"), guaranteed("b", "4")
    life.bind(first)
    life.admit(first)
    life.report()
    old = life.seen()
    life.end("a")
    life.bind(second)
    life.deliver(old)
    assert sum(life.free) <= 11
    life.release("a")
    life.admit(second)
    life.report()
    life.wait(121)
    assert life.free == life.truly_free


def test_without_a_fingerprint_a_pod_that_ended_first_on_its_kubelet_leaves_no_trace() -> None:
    life = Life(WRITERS["nfd-without-fingerprint"])
    for name, cpu in (("a", "4"), ("b", "3")):
        life.bind(guaranteed(name, cpu))
        life.admit(guaranteed(name, cpu))
    life.report()
    assert life.free == life.truly_free
    life.release("a")
    life.report()
    life.end("a")
    assert life.free == life.truly_free
