"""How CPUs form cores: `topowise.io/cores`, "socket:l3:threads;...".

Machines are regular, so cores of one socket and L3 cache with as many threads travel together: "0:0:0-15/64-79" is
sixteen cores whose first threads are 0-15 and whose second threads are 64-79, in this order. 512 CPUs take some 200
characters. Cores that do not line up in this way travel alone. An absent L3 is an empty field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from topowise import cpuset
from topowise.errors import ParseError

# -1 is what the kernel says of a socket that it does not know.
_ID: Final = re.compile(r"-1|[0-9]{1,18}")


class Core(msgspec.Struct, frozen=True, gc=False):
    """`threads` are CPU ids ascending, `uncore` the id of the L3 cache as the kernel counts, None without one."""

    socket: int
    uncore: int | None
    threads: tuple[int, ...]


def write(cores: Iterable[Core]) -> str:
    """The cores in groups; the same text for the same cores in any order."""
    groups: dict[tuple[int, int | None, int], list[Core]] = {}
    for core in sorted(cores, key=lambda core: core.threads):
        groups.setdefault((core.socket, core.uncore, len(core.threads)), []).append(core)
    ordered = sorted(groups.values(), key=lambda group: group[0].threads)
    return ";".join(_spell(part) for group in ordered for part in _aligned(group))


def read(text: str) -> tuple[Core, ...]:
    """The inverse of `write`, by first thread. Raises ParseError."""
    cores: list[Core] = []
    count = 0
    for part in text.split(";"):
        for core in _cores(part, text) if part else ():
            count += len(core.threads)
            if count > cpuset.MAX_ID + 1:
                raise ParseError("cores", text, f"together up to {cpuset.MAX_ID + 1} CPUs")
            cores.append(core)
    return tuple(sorted(cores, key=lambda core: core.threads))


def _aligned(group: Sequence[Core]) -> Iterator[Sequence[Core]]:
    """The group in one if its threads ascend together, rank by rank; else core by core."""
    ranks = zip(*(core.threads for core in group), strict=True)
    if all(list(rank) == sorted(rank) for rank in ranks):
        yield group
    else:
        yield from ([core] for core in group)


def _spell(group: Sequence[Core]) -> str:
    first = group[0]
    ranks = zip(*(core.threads for core in group), strict=True)
    uncore = "" if first.uncore is None else str(first.uncore)
    return f"{first.socket}:{uncore}:{'/'.join(map(cpuset.spell, ranks))}"


def _id(text: str) -> int:
    if not _ID.fullmatch(text):
        raise ValueError("no id")
    return int(text)


def _cores(part: str, text: str) -> Iterator[Core]:
    fields = part.split(":")
    try:
        socket, uncore = _id(fields[0]), _id(fields[1]) if fields[1] else None
        spelt = fields[2].split("/")
        widths = {cpuset.mask(rank).bit_count() for rank in spelt}
        if len(fields) != 3 or len(widths) != 1 or max(widths) * len(spelt) > cpuset.MAX_ID + 1:
            raise ValueError("uneven ranks, or more CPUs than there are ids")
        ranks = [sorted(cpuset.parse(rank)) for rank in spelt]
    except (ValueError, IndexError) as exc:
        raise ParseError("cores", text, 'groups such as "0:0:0-15/64-79"') from exc
    return (Core(socket, uncore, tuple(sorted(threads))) for threads in zip(*ranks, strict=True))
