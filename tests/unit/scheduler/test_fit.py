"""Verdicts for single-numa-node from counts, their zones, and their constant reasons."""

from typing import Any

import msgspec
import pytest

from topowise import nrt, pods
from topowise_scheduler import explain
from topowise_scheduler.engine import fit, node, score, verdict
from topowise_scheduler.engine.node import NodeTopology
from topowise_scheduler.engine.verdict import Outcome
from topowise_scheduler.strategies import least_allocated

GIB = 1 << 30


def read(
    *zones: dict[str, tuple[str, str]], scope: str = "container", policy: str = "single-numa-node", **more: str
) -> NodeTopology:
    """A node whose zones map a resource to (allocatable, available)."""
    named = {"topologyManagerPolicy": policy, "topologyManagerScope": scope, **more}
    document = {
        "metadata": {"name": "n"},
        "attributes": [{"name": name, "value": value} for name, value in named.items()],
        "zones": [
            {
                "name": f"node-{at}",
                "type": "Node",
                "resources": [
                    {"name": name, "capacity": whole, "allocatable": whole, "available": free}
                    for name, (whole, free) in zone.items()
                ],
            }
            for at, zone in enumerate(zones)
        ],
    }
    topology, problems = node.read(nrt.decode(msgspec.json.encode(document)))
    assert not problems
    return topology


def needs(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> pods.Needs:
    def spell(at: int, amounts: dict[str, Any]) -> dict[str, Any]:
        always = amounts.pop("sidecar", False)
        resources = {"limits": amounts, "requests": amounts}
        return {"name": f"c{at}", "resources": resources, **({"restartPolicy": "Always"} if always else {})}

    spec = {
        "containers": [spell(at, dict(one)) for at, one in enumerate(containers)],
        "initContainers": [spell(10 + at, dict(one)) for at, one in enumerate(init)],
    }
    return pods.needs(pods.decode(msgspec.json.encode({"metadata": {"name": "p"}, "spec": spec})))


TWO = ({"cpu": ("8", "2"), "memory": ("16Gi", "16Gi")}, {"cpu": ("8", "6"), "memory": ("16Gi", "4Gi")})


def test_the_lowest_zone_that_has_everything_is_taken() -> None:
    told = fit.judge(read(*TWO), needs({"cpu": "2", "memory": "4Gi"}))
    assert told.outcome is Outcome.FITS
    assert [(one.container, one.zone) for one in told.placements] == [("c0", 0)]


def test_cpus_on_one_node_and_memory_on_another_do_not_make_a_fit() -> None:
    told = fit.judge(read(*TWO), needs({"cpu": "4", "memory": "8Gi"}))
    assert told.outcome is Outcome.UNSCHEDULABLE
    assert (told.reason, told.lacking) == (verdict.NO_ZONE_FOR_CONTAINER, "c0")


def test_what_no_empty_zone_can_hold_cannot_be_helped_by_eviction() -> None:
    told = fit.judge(read(*TWO), needs({"cpu": "9", "memory": "1Gi"}))
    assert told.outcome is Outcome.UNRESOLVABLE
    assert told.reason == verdict.ZONES_TOO_SMALL_FOR_CONTAINER


def test_containers_are_placed_one_after_the_other() -> None:
    told = fit.judge(read(*TWO), needs({"cpu": "2", "memory": "1Gi"}, {"cpu": "6", "memory": "1Gi"}))
    assert [one.zone for one in told.placements] == [0, 1]
    again = fit.judge(
        read(*TWO), needs({"cpu": "2", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"}, {"cpu": "5", "memory": "1Gi"})
    )
    assert (again.outcome, again.lacking) == (Outcome.UNSCHEDULABLE, "c2")


def test_pod_scope_wants_one_zone_for_the_sum() -> None:
    asked = needs({"cpu": "4", "memory": "1Gi"}, {"cpu": "3", "memory": "1Gi"})
    assert fit.judge(read(*TWO, scope="pod"), asked).reason == verdict.NO_ZONE_FOR_POD
    assert fit.judge(read({"cpu": ("8", "7"), "memory": ("16Gi", "2Gi")}, scope="pod"), asked).fits


def test_an_init_container_gives_back_what_a_sidecar_keeps() -> None:
    zone = {"cpu": ("4", "4"), "memory": ("8Gi", "8Gi")}
    app = {"cpu": "3", "memory": "1Gi"}
    assert fit.judge(read(zone), needs(app, init=({"cpu": "4", "memory": "1Gi"},))).fits
    kept = fit.judge(read(zone), needs(app, init=({"cpu": "2", "memory": "1Gi", "sidecar": True},)))
    assert kept.outcome is not Outcome.FITS


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (pods.Needs((), {}, "BestEffort"), "nothing asked"),
        (pods.Needs((pods.ContainerNeeds("c", "app", {"cpu": 90000}, {}),), {"cpu": 90000}, "Burstable"), "burstable"),
    ],
)
def test_who_is_not_aligned_is_never_kept_away(asked: pods.Needs, why: str) -> None:
    assert fit.judge(read(*TWO), asked) is verdict.FITS_ANYWHERE, why


def test_fractional_cpus_of_a_guaranteed_pod_are_shared_but_its_memory_is_aligned() -> None:
    told = fit.judge(read(*TWO), needs({"cpu": "7500m", "memory": "16Gi"}))
    assert [(one.zone, dict(one.amounts)) for one in told.placements] == [(0, {"memory": 16 * GIB})]


def test_devices_of_a_burstable_pod_are_aligned_if_some_zone_lists_them() -> None:
    container = pods.ContainerNeeds("c", "app", {"gpu": 1, "fpga": 1}, {"gpu": 1, "fpga": 1})
    asked = pods.Needs((container,), {"gpu": 1, "fpga": 1}, "Burstable")
    assert fit.judge(read({"gpu": ("2", "0")}, {"gpu": ("2", "1")}), asked).placements[0].zone == 1
    assert fit.judge(read({"gpu": ("2", "0")}), asked).outcome is Outcome.UNSCHEDULABLE


@pytest.mark.parametrize(
    "more",
    [{"topowise.io/derived-from-sysfs": "cpu,memory"}, {"cpuManagerPolicy": "none", "memoryManagerPolicy": "None"}],
)
def test_a_manager_that_is_off_aligns_nothing(more: dict[str, str]) -> None:
    assert fit.judge(read(*TWO, **more), needs({"cpu": "8", "memory": "16Gi"})) is verdict.FITS_ANYWHERE


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted"])
def test_other_policies_are_left_to_the_kubelet(policy: str) -> None:
    assert fit.judge(read(*TWO, policy=policy), needs({"cpu": "8", "memory": "16Gi"})).fits


def test_least_allocated_prefers_the_emptier_zone() -> None:
    full, empty = (
        read({"cpu": ("8", "4"), "memory": ("8Gi", "4Gi")}),
        read({"cpu": ("8", "8"), "memory": ("8Gi", "8Gi")}),
    )
    asked = needs({"cpu": "2", "memory": "2Gi"})
    weights = {"cpu": 1, "memory": 1}
    scores = [least_allocated.score(one, fit.judge(one, asked), weights) for one in (full, empty)]
    assert scores == [2500, 7500]
    assert score.spread(scores) == [0, 10]


def test_weights_decide_which_resource_counts() -> None:
    one = read({"cpu": ("8", "8"), "memory": ("8Gi", "8Gi")})
    told = fit.judge(one, needs({"cpu": "8", "memory": "2Gi"}))
    assert least_allocated.score(one, told, {"cpu": 1}) == 0
    assert least_allocated.score(one, told, {"memory": 3}) == 7500
    assert least_allocated.score(one, told, {}) == 0


@pytest.mark.parametrize(
    ("raw", "wire"),
    [
        ([], []),
        ([0], [0]),
        ([10_000, 10_000], [10, 10]),
        ([5000, 5001], [0, 10]),
        ([0, 4999, 5000, 10_000], [0, 5, 5, 10]),
    ],
)
def test_scores_are_spread_over_the_whole_range(raw: list[int], wire: list[int]) -> None:
    assert score.spread(raw) == wire


def test_words_name_the_lack_that_comes_closest_first() -> None:
    one = read(*TWO)
    asked = needs({"cpu": "4", "memory": "8Gi"})
    said = explain.in_words("n", one, asked, fit.judge(one, asked))
    assert said == (
        "container c0 needs cpu 4, memory 8Gi on one NUMA node; free now: node 0 has cpu 2, node 1 has memory 4Gi"
    )


def test_words_for_a_node_that_is_too_small_say_that_it_is_so_even_empty() -> None:
    one = read(*TWO)
    asked = needs({"cpu": "9", "memory": "1Gi"})
    said = explain.in_words("n", one, asked, fit.judge(one, asked))
    assert said.endswith("even empty, node 0 has cpu 8, node 1 has cpu 8")


def test_words_name_two_zones_and_count_the_others() -> None:
    one = read(*({"cpu": ("8", str(free))} for free in (1, 2, 3, 0)))
    asked = needs({"cpu": "4", "memory": "1Gi"})
    said = explain.in_words("n", one, asked, fit.judge(one, asked))
    assert said.endswith("free now: node 0 has cpu 1, node 1 has cpu 2, 2 more lack as much")


def test_an_amount_that_cannot_be_read_counts_as_none_and_is_named() -> None:
    document = b"""{"metadata": {"name": "n"}, "zones": [{"name": "node-0", "type": "Node", "resources": [
        {"name": "cpu", "capacity": "8", "allocatable": "8", "available": "-1"},
        {"name": "memory", "capacity": "1Gi", "allocatable": "oops", "available": "1Gi"}]}]}"""
    topology, problems = node.read(nrt.decode(document))
    assert dict(topology.zones[0].available) == {"cpu": 0, "memory": 0}
    assert len(problems) == 1
    assert "memory" in problems[0]
    assert "oops" in problems[0]
