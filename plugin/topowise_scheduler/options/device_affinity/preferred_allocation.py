"""What known device plug-ins answer to GetPreferredAllocation: which of the free devices they prefer.

No report names the plug-in of a resource or its settings, so a rule comes only from the service's configuration. If a
rule does not decide (equal candidates, or unknown input) it gives several answers, or any set. The answers always
include the answer of the plug-in.

- `lowest-ids`: sriov-network-device-plugin with `allocationPolicy: packed` (pkg/resources/allocator.go), the first
  addresses as texts.
- `nvidia`: k8s-device-plugin by default (internal/rm/nvml_manager.go). Whole GPUs by the best-effort policy of
  go-gpuallocator (gpuallocator/besteffort_policy.go): it divides the free GPUs into sets of the requested size so that
  the sum of the pairs' scores is greatest, and takes the set with the greatest sum. A pair scores 10 to 50 points by
  PCI distance, and 100 for each NVLink. NVLinks are unknown here, so the rule is right where no GPUs have any, or all
  pairs have as many (NVSwitch); and for single-GPU boards, as GPUs on a common board score 60. GPUs that are shared
  (`::` in ids) and MIG devices are taken singly from the GPU with the fewest allocated replicas (`distributed`).
- `nvidia-packed`: the same with `sharedDevicesAllocationPolicy: packed`, from the GPU with the most allocated replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Final, Literal

from topowise import pci
from topowise.attributes.pci_devices import Located

Rule = Literal["any", "lowest-ids", "nvidia", "nvidia-packed"]
Ids = frozenset[str]

_POINTS: Final[Mapping[pci.Distance, int]] = {"PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
_SHARED: Final = "::"
_MIG: Final = "MIG-"
# Divisions of the free GPUs that are examined: eight in pairs are 105, twelve in threes 15,400.
_MOST_DIVISIONS: Final = 20_000
_MOST_STEPS: Final = 2_000


def answers(
    rule: Rule, among: Sequence[str], count: int, known: Sequence[str], places: Mapping[str, Located]
) -> frozenset[Ids] | None:
    """The sets of `count` free devices (`among`) that the plug-in may prefer, None for any set.

    `known` are all devices of the plug-in.
    """
    if rule == "any" or not 0 < count < len(among):
        return None
    if rule == "lowest-ids":
        return frozenset((frozenset(sorted(among)[:count]),))
    if any(_SHARED in device for device in among) or any(device.startswith(_MIG) for device in known):
        return _shared_sets(among, count, known, packs=rule == "nvidia-packed")
    located = [places.get(device) for device in among]
    points = tuple(tuple(_points(first, second) for second in located) for first in located)
    # All single GPUs score equally.
    if count == 1 or any(0 in row[:at] + row[at + 1 :] for at, row in enumerate(points)):
        return None
    best = _best_sets(points, count)
    return None if best is None else frozenset(frozenset(among[at] for at in members) for members in best)


def _points(first: Located | None, second: Located | None) -> int:
    """The score of a pair, 0 for an unknown distance."""
    distance = None if first is None or second is None else pci.distance(first.place, second.place)
    return 0 if distance is None else _POINTS[distance]


@lru_cache(maxsize=1024)
def _best_sets(points: tuple[tuple[int, ...], ...], count: int) -> frozenset[tuple[int, ...]] | None:
    """The sets that the best-effort policy may take, as indices of `points`; None with too many divisions."""
    if _divisions(len(points), count) > _MOST_DIVISIONS:
        return None
    best, greatest = set[tuple[int, ...]](), -1
    for division in _divided(tuple(range(len(points))), count):
        scores = {members: sum(points[a][b] for a, b in combinations(members, 2)) for members in division}
        total, full = sum(scores.values()), [members for members in division if len(members) == count]
        if total > greatest:
            best, greatest = set(), total
        if total == greatest:
            high = max(map(scores.__getitem__, full))
            best.update(members for members in full if scores[members] == high)
    return frozenset(best)


def _divided(left: tuple[int, ...], count: int) -> Iterator[list[tuple[int, ...]]]:
    """All divisions into sets of this size, with the remainder in a smaller set."""
    if not left:
        yield []
        return
    first, rest = left[0], left[1:]
    # The first device may be in the smaller set.
    for size in {count, len(left) % count} - {0}:
        if size > len(left):
            continue
        for members in combinations(rest, size - 1):
            remaining = tuple(at for at in rest if at not in members)
            yield from ([(first, *members), *sets] for sets in _divided(remaining, count))


def _divisions(devices: int, count: int) -> int:
    """An upper bound of the number of divisions."""
    bound, left = 1, devices
    while left > count and bound <= _MOST_DIVISIONS:
        bound, left = bound * comb(left - 1, count - 1), left - count
    return bound * (devices if devices % count else 1)


def _shared_sets(among: Sequence[str], count: int, known: Sequence[str], *, packs: bool) -> frozenset[Ids] | None:
    """Takes replica by replica from a GPU with the fewest allocated replicas, or with the most; any of equal GPUs."""
    free: dict[str, list[str]] = {}
    for replica in sorted(among):
        free.setdefault(replica.partition(_SHARED)[0], []).append(replica)
    total = Counter(replica.partition(_SHARED)[0] for replica in known)
    gpus = sorted(free)
    allocated = [total[gpu] - len(free[gpu]) for gpu in gpus]
    # By GPU, the number of replicas taken so far.
    states: set[tuple[int, ...]] = {(0,) * len(gpus)}
    for _ in range(count):
        following = set[tuple[int, ...]]()
        for taken in states:
            loads = {at: allocated[at] + taken[at] for at, gpu in enumerate(gpus) if taken[at] < len(free[gpu])}
            load = max(loads.values()) if packs else min(loads.values())
            following.update((*taken[:at], taken[at] + 1, *taken[at + 1 :]) for at in loads if loads[at] == load)
        states = following
        if len(states) > _MOST_STEPS:
            return None
    # Replicas of a GPU are equal, so the first represent all.
    return frozenset(
        frozenset(replica for gpu, number in zip(gpus, taken, strict=True) for replica in free[gpu][:number])
        for taken in states
    )
