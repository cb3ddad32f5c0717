"""CPU cores: `topowise.io/cores`, "socket:l3:threads;...".

Machines are regular, so cores with equal socket, L3 cache and number of threads form a group: "0:0:0-15/64-79" is
sixteen cores whose first threads are 0-15 and whose second threads are 64-79, in this order. 512 CPUs take some 200
characters. Cores that do not align in this way are listed individually. The field of a missing L3 cache is empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from topowise import cpuset
from topowise.errors import ParseError

# The kernel prints -1 for an unknown socket.
_ID: Final = re.compile(r"-1|[0-9]{1,18}")


class Core(msgspec.Struct, frozen=True, gc=False):
    """`threads` are CPU ids ascending, `uncore` the kernel's id of the L3 cache, None without a cache."""

    socket: int
    uncore: int | None
    threads: tuple[int, ...]


def write(cores: Iterable[Core]) -> str:
    """Returns the cores in groups; the text does not depend on the order of the cores."""
    groups: dict[tuple[int, int | None, int], list[Core]] = {}
    for core in sorted(cores, key=lambda core: core.threads):
        groups.setdefault((core.socket, core.uncore, len(core.threads)), []).append(core)
    ordered = sorted(groups.values(), key=lambda group: group[0].threads)
    return ";".join(_format_group(part) for group in ordered for part in _aligned(group))


def read(text: str) -> tuple[Core, ...]:
    """Returns the inverse of `write`, by first thread. Raises ParseError."""
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
    """Yields the whole group if its threads ascend together, rank by rank; else core by core.

    No hardware has three threads in a core. Such cores are CPUs that the kubelet takes as a core, and vary.
    """
    ranks = zip(*(core.threads for core in group), strict=True)
    if len(group[0].threads).bit_count() == 1 and all(list(rank) == sorted(rank) for rank in ranks):
        yield group
    else:
        yield from ([core] for core in group)


def _format_group(group: Sequence[Core]) -> str:
    first = group[0]
    ranks = zip(*(core.threads for core in group), strict=True)
    uncore = "" if first.uncore is None else str(first.uncore)
    return f"{first.socket}:{uncore}:{'/'.join(map(cpuset.to_text, ranks))}"


def _id(text: str) -> int:
    if not _ID.fullmatch(text):
        raise ValueError("no id")
    return int(text)


def _cores(part: str, text: str) -> Iterator[Core]:
    fields = part.split(":")
    try:
        socket, uncore = _id(fields[0]), _id(fields[1]) if fields[1] else None
        rank_texts = fields[2].split("/")
        widths = {cpuset.mask(rank).bit_count() for rank in rank_texts}
        if len(fields) != 3 or len(widths) != 1 or max(widths) * len(rank_texts) > cpuset.MAX_ID + 1:
            raise ValueError("uneven ranks, or more CPUs than there are ids")
        ranks = [sorted(cpuset.parse(rank)) for rank in rank_texts]
    except (ValueError, IndexError) as exc:
        raise ParseError("cores", text, 'groups such as "0:0:0-15/64-79"') from exc
    return (Core(socket, uncore, tuple(sorted(threads))) for threads in zip(*ranks, strict=True))
