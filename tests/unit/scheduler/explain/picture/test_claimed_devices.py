"""Devices of resource claims are drawn by number, in their zones."""

from __future__ import annotations

import pytest

from topowise import nrt
from topowise_scheduler.explain.picture import Picture, terminal, with_claimed
from topowise_scheduler.explain.picture.contents import Device, Zone

PICTURE = Picture("n1", "none", "container", "exact", (Zone(0, (), ()), Zone(4, (), ())))


def topology(*amounts: tuple[int, str, str, str]) -> nrt.NodeResourceTopology:
    """Devices of a driver as (NUMA node, capacity, allocatable, available)."""
    return nrt.new(
        "n1",
        tuple(
            nrt.Zone(f"node-{numa_id}", "Node", resources=(nrt.Resource("dra.topowise.io/gpu.nvidia.com", *three),))
            for numa_id, *three in amounts
        ),
        (),
    )


def test_allocated_free_and_tainted_devices_are_distinguished() -> None:
    drawn = with_claimed(PICTURE, topology((4, "4", "3", "1")))
    assert drawn.zones[0].devices == ()
    (gpus,) = drawn.zones[1].devices
    allocated, tainted = Device(None, is_held=True), Device(None, is_healthy=False)
    assert gpus.devices == (allocated, allocated, Device(None), tainted)
    assert "dra.topowise.io/gpu.nvidia.com" in terminal(drawn, width=100)


@pytest.mark.parametrize("count", ["0", "-1", "many", str(10**12)])
def test_an_invalid_number_of_devices_is_ignored(count: str) -> None:
    assert with_claimed(PICTURE, topology((0, count, count, count))) == PICTURE


def test_only_claimed_devices_are_added() -> None:
    zone = nrt.Zone("node-0", "Node", resources=(nrt.Resource("nvidia.com/gpu", "2", "2", "1"),))
    assert with_claimed(PICTURE, nrt.new("n1", (zone,), ())) == PICTURE
