"""Preferences of known device plugins, compared with the plugins' algorithms in every order of devices."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

import pytest

from topowise import pci
from topowise.attributes.pci_devices import Located
from topowise.pci import Place
from topowise_scheduler.options.device_affinity.preferred_allocation import Rule, answers

PATHS = (
    "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0",
    "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0",
    "pci0000:00/0000:00:02.0",
    "pci0000:40/0000:40:01.0",
    "pci0000:80/0000:80:01.0",
)
POINTS = {"PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}


def located(paths: Sequence[str]) -> dict[str, Located]:
    """Locations of GPUs by UUID."""
    return {
        f"GPU-{at}": Located(
            f"0000:{at + 1:02x}:00.0", Place(tuple(path.split("/")), int(path.startswith("pci0000:8")))
        )
        for at, path in enumerate(paths)
    }


def groups(ordered: Sequence[str], size: int) -> Iterator[list[tuple[str, ...]]]:
    """Divisions in the order of best effort: the first remaining device with each combination of the rest.
    Holes (None) come after all devices, all in the same set."""
    holes = -len(ordered) % size

    def walk(left: list[str | None]) -> Iterator[list[tuple[str, ...]]]:
        if len(left) == size:
            yield [tuple(member for member in left if member is not None)]
            return
        for partners in combinations(range(1, len(left)), size - 1):
            members = [left[0], *(left[at] for at in partners)]
            if members.count(None) in (0, holes):
                rest = [member for at, member in enumerate(left) if at and at not in partners]
                yield from ([tuple(member for member in members if member is not None), *more] for more in walk(rest))

    yield from walk([*ordered, *([None] * holes)])


def best_effort(ordered: Sequence[str], size: int, at: dict[str, Located]) -> tuple[str, ...]:
    """The set that best effort takes of devices in this order."""

    def worth(members: Sequence[str]) -> int:
        return sum(POINTS[pci.distance(at[a].place, at[b].place) or "SYS"] for a, b in combinations(members, 2))

    best = max(groups(ordered, size), key=lambda division: sum(map(worth, division)))
    return max(best, key=worth)


@pytest.mark.parametrize("seed", range(12))
def test_preferred_gpus_equal_best_effort_in_any_order(seed: int) -> None:
    rng = random.Random(seed)
    places = located([rng.choice(PATHS) for _ in range(rng.choice([4, 5, 5, 6]))])
    size = rng.randint(2, len(places) - 1) if len(places) < 6 else rng.choice([2, 3])
    taken = {frozenset(best_effort(order, size, places)) for order in permutations(places)}
    preferred = answers("nvidia", list(places), size, list(places), places)
    # Best effort panics if the set with the most points has holes; a panic is no answer.
    assert preferred == {devices for devices in taken if len(devices) == size}


def test_pairs_at_a_switch_are_taken_together() -> None:
    places = located([PATHS[0], PATHS[2], PATHS[0], PATHS[2]])
    expected = {frozenset(("GPU-0", "GPU-2")), frozenset(("GPU-1", "GPU-3"))}
    assert answers("nvidia", list(places), 2, list(places), places) == expected


@pytest.mark.parametrize(
    ("count", "unknown"),
    [
        # All single devices have equal points.
        (1, ""),
        (2, "GPU-1"),
        # All devices are taken, so there is no choice.
        (4, ""),
    ],
)
def test_any_device_may_be_taken_where_the_rule_does_not_decide(count: int, unknown: str) -> None:
    places = located([PATHS[0], PATHS[2], PATHS[0], PATHS[2]])
    ids = list(places)
    places.pop(unknown, None)
    assert answers("nvidia", ids, count, ids, places) is None


def test_too_many_divisions_are_not_enumerated() -> None:
    places = located([PATHS[0]] * 16)
    assert answers("nvidia", list(places), 2, list(places), places) is None


def one_by_one(free: list[str], count: int, known: list[str], *, packs: bool, rng: random.Random) -> frozenset[str]:
    """Replicas of the GPU with the fewest (or most) allocated replicas; the first among equals."""

    total = Counter(replica.split("::")[0] for replica in known)
    left, taken = list(free), []
    for _ in range(count):
        rng.shuffle(left)
        replicas = Counter(replica.split("::")[0] for replica in left)
        out = {gpu: total[gpu] - number for gpu, number in replicas.items()}
        load = (max if packs else min)(out.values())
        chosen = next(replica for replica in left if out[replica.split("::")[0]] == load)
        left.remove(chosen)
        taken.append(chosen)
    return frozenset(taken)


def by_gpu(ids: frozenset[str]) -> frozenset[tuple[str, int]]:
    return frozenset(Counter(replica.split("::")[0] for replica in ids).items())


@pytest.mark.parametrize("rule", ["nvidia", "nvidia-packed"])
@pytest.mark.parametrize("seed", range(10))
def test_replicas_of_shared_gpus_are_taken_in_sequence(rule: Rule, seed: int) -> None:
    rng = random.Random(seed)
    known = [f"GPU-{gpu}::{replica}" for gpu in range(3) for replica in range(rng.randint(2, 4))]
    free = [replica for replica in known if rng.random() < 0.7]
    count = rng.randint(1, max(1, len(free) - 1))
    taken = {by_gpu(one_by_one(free, count, known, packs=rule == "nvidia-packed", rng=rng)) for _ in range(300)}
    preferred = answers(rule, free, count, known, {})
    assert preferred is not None and {by_gpu(replica) for replica in preferred} == taken


def test_mig_devices_may_be_any() -> None:
    known = [f"MIG-{at}" for at in range(3)]
    assert answers("nvidia", known, 1, known, {}) == {frozenset((device,)) for device in known}


def test_the_lowest_ids_are_the_first_as_texts() -> None:
    known = ["0000:3b:02.10", "0000:3b:02.2", "0000:18:00.1"]
    assert answers("lowest-ids", known, 2, known, {}) == {frozenset(("0000:18:00.1", "0000:3b:02.10"))}
