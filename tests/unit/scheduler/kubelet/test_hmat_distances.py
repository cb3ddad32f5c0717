"""Distances from measured speeds, only if the initiator's local memory has a measurement too."""

from __future__ import annotations

import pytest

from topowise_scheduler.kubelet import NumaNode
from topowise_scheduler.kubelet.topology_manager import hmat_distances

SLIT = ((10, 21, 40), (21, 10, 40), (40, 40, 10))
Speed = tuple[tuple[int, ...], int, int]


def nodes(*speeds: Speed) -> list[NumaNode]:
    return [
        NumaNode(at, 1, (), {}, SLIT[at], initiators, latency, bandwidth)
        for at, (initiators, latency, bandwidth) in enumerate(speeds)
    ]


@pytest.mark.parametrize(
    ("speeds", "to_the_third"),
    [
        ([((0,), 100, 0), ((1,), 100, 0), ((0, 1), 250, 0)], 25),
        ([((0,), 100, 0), ((1,), 100, 0), ((0, 1), 255, 0)], 26),
        ([((0,), 0, 400), ((1,), 0, 400), ((0, 1), 0, 100)], 40),
        ([((0,), 100, 400), ((1,), 100, 400), ((0, 1), 120, 100)], 12),
        ([((0,), 100, 0), ((1,), 100, 0), ((0, 1), 90, 0)], 10),
        ([((0,), 1, 0), ((1,), 1, 0), ((0, 1), 10**9, 0)], 255),
    ],
)
def test_a_measured_pair_is_ten_times_the_ratio(speeds: list[Speed], to_the_third: int) -> None:
    distances = hmat_distances(nodes(*speeds), SLIT)
    far = (to_the_third, to_the_third, 10)
    assert (distances or SLIT) == ((10, 21, far[0]), (21, 10, far[1]), far)


@pytest.mark.parametrize(
    "speeds",
    [
        [((), 0, 0)] * 3,
        [((0,), 100, 0), ((1,), 100, 0), ((0, 1), 0, 0)],
        [((), 0, 0), ((), 0, 0), ((0, 1), 250, 0)],
        [((1,), 100, 0), ((1,), 0, 0), ((0, 7), 250, 0)],
    ],
)
def test_unmeasured_distances_stay_as_in_the_slit(speeds: list[Speed]) -> None:
    assert hmat_distances(nodes(*speeds), SLIT) is None


def test_without_a_slit_unmeasured_nodes_are_remote() -> None:
    measured = [NumaNode(at, 1, initiators=(0,), read_latency=latency) for at, latency in ((0, 100), (3, 400))]
    assert hmat_distances([*measured, NumaNode(5, 1)], None) == ((10, 40, 20), (40, 10, 20), (20, 20, 10))


@pytest.mark.parametrize("initiators", [(), (0,)])
def test_without_measurements_and_without_a_slit_there_are_no_distances(initiators: tuple[int, ...]) -> None:
    unmeasured = [NumaNode(at, 1, initiators=initiators) for at in range(2)]
    distances = hmat_distances(unmeasured, None)
    assert distances == (((10, 20), (20, 10)) if initiators else None)
