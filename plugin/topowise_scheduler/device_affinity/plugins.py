"""What known device plug-ins answer to GetPreferredAllocation: which of the devices that are free they would take.

No report tells which plug-in serves a resource, nor how it is set, so a rule is only taken from the service's
configuration. A rule that does not decide (equal candidates, or something it goes by is not known) leaves more than one
answer, or any; what it answers is never less than what the plug-in may.

- `lowest-ids`: sriov-network-device-plugin with `allocationPolicy: packed` (pkg/resources/allocator.go), the first
  addresses as texts.
- `nvidia`: k8s-device-plugin as it comes (internal/rm/nvml_manager.go). Whole GPUs by go-gpuallocator's best effort
  (gpuallocator/besteffort_policy.go): all that are free are divided into sets of the size asked for so that the sum of
  scores of pairs is the greatest, and of these sets the one with the greatest sum is taken. A pair has 10 to 50 points
  by its PCI distance, and a hundred for each NVLink between the two. Of NVLink nothing is known here, so the rule is
  right where no GPUs have any, or all pairs have as many (NVSwitch); and for boards of one GPU each, as those on one
  board have 60. GPUs that are shared (`::` in the id) and MIG devices are taken one by one from the GPU of which the
  least is given out (`distributed`).
- `nvidia-packed`: the same with `sharedDevicesAllocationPolicy: packed`, from the GPU of which the most is given out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final, Literal

from topowise import pci
from topowise.attributes.pci_devices import Located

Rule = Literal["any", "lowest-ids", "nvidia", "nvidia-packed"]
Ids = frozenset[str]

_POINTS: Final[Mapping[pci.Distance, int]] = {"PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
_SHARED: Final = "::"
_MIG: Final = "MIG-"
# Divisions of the free GPUs that are looked at: eight in pairs are 105, twelve in threes 15,400.
_MOST_DIVISIONS: Final = 20_000
_MOST_STEPS: Final = 2_000


def answers(
    rule: Rule, among: Sequence[str], count: int, known: Sequence[str], places: Mapping[str, Located]
) -> frozenset[Ids] | None:
    """What the plug-in may answer for `count` of the devices `among`, of all that it has (`known`); None for any."""
    if rule == "any" or not 0 < count < len(among):
        return None
    if rule == "lowest-ids":
        return frozenset((frozenset(sorted(among)[:count]),))
    if any(_SHARED in one for one in among) or any(one.startswith(_MIG) for one in known):
        return _one_by_one(among, count, known, packs=rule == "nvidia-packed")
    located = [places.get(one) for one in among]
    points = tuple(tuple(_points(one, other) for other in located) for one in located)
    # Of single ones all are equal.
    if count == 1 or any(0 in row[:at] + row[at + 1 :] for at, row in enumerate(points)):
        return None
    best = _best_sets(points, count)
    return None if best is None else frozenset(frozenset(among[at] for at in one) for one in best)


def _points(one: Located | None, other: Located | None) -> int:
    """0 if it is not known how far they are apart."""
    apart = None if one is None or other is None else pci.distance(one.place, other.place)
    return 0 if apart is None else _POINTS[apart]


@lru_cache(maxsize=1024)
def _best_sets(points: tuple[tuple[int, ...], ...], count: int) -> frozenset[tuple[int, ...]] | None:
    """The sets that best effort may take, by their places in `points`; None where there are too many divisions."""
    if _divisions(len(points), count) > _MOST_DIVISIONS:
        return None
    best, most = set[tuple[int, ...]](), -1
    for division in _divided(tuple(range(len(points))), count):
        worth = {one: sum(points[a][b] for a, b in combinations(one, 2)) for one in division}
        total, full = sum(worth.values()), [one for one in division if len(one) == count]
        if total > most:
            best, most = set(), total
        if total == most:
            high = max(map(worth.__getitem__, full))
            best.update(one for one in full if worth[one] == high)
    return frozenset(best)


def _divided(left: tuple[int, ...], count: int) -> Iterator[list[tuple[int, ...]]]:
    """All divisions into sets of this size, with what is over in one set of its own."""
    if not left:
        yield []
        return
    first, rest = left[0], left[1:]
    # The set that the first is in may be the one of what is over.
    for size in {count, len(left) % count} - {0}:
        if size > len(left):
            continue
        for others in combinations(rest, size - 1):
            gone = {first, *others}
            remaining = tuple(one for one in left if one not in gone)
            yield from ([(first, *others), *more] for more in _divided(remaining, count))


def _divisions(devices: int, count: int) -> int:
    """About how many there are: never fewer are told than that."""
    found, left = 1, devices
    while left > count and found <= _MOST_DIVISIONS:
        ways = 1
        for at in range(count - 1):
            ways = ways * (left - 1 - at) // (at + 1)
        found, left = found * ways, left - count
    return found * (devices if devices % count else 1)


def _one_by_one(among: Sequence[str], count: int, known: Sequence[str], *, packs: bool) -> frozenset[Ids] | None:
    """Each time from a GPU of which the least, or the most, is given out; of equal ones from any."""
    free: dict[str, list[str]] = {}
    for one in sorted(among):
        free.setdefault(one.partition(_SHARED)[0], []).append(one)
    total = Counter(one.partition(_SHARED)[0] for one in known)
    gpus = sorted(free)
    given = [total[gpu] - len(free[gpu]) for gpu in gpus]
    states: set[tuple[int, ...]] = {(0,) * len(gpus)}
    for _ in range(count):
        after = set[tuple[int, ...]]()
        for picked in states:
            left = [at for at, gpu in enumerate(gpus) if picked[at] < len(free[gpu])]
            out = {at: given[at] + picked[at] for at in left}
            wanted = max(out.values()) if packs else min(out.values())
            after.update((*picked[:at], picked[at] + 1, *picked[at + 1 :]) for at in left if out[at] == wanted)
        states = after
        if len(states) > _MOST_STEPS:
            return None
    # Which replica of a GPU it is makes no difference.
    return frozenset(
        frozenset(one for at, gpu in enumerate(gpus) for one in free[gpu][: picked[at]]) for picked in states
    )
