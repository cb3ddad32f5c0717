"""numaplacement: the NUMA node of each container, in a few characters of an NRT.

An exporter on a single-numa-node kubelet publishes it, so that a scheduler knows in which zone a preempted pod releases
resources. Container names are not included. Both sides sort the hashes of the same containers, and each node's vector
lists offsets into that order (the first, then the differences). The busiest node has no vector: it has all remaining
offsets. A number is LEB89: 64 of the characters that JSON never escapes end it, the other 25 announce more digits.
Format and known answers: github.com/k8stopologyawareschedwg/numaplacement v0.1.0, metadata version 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec
import xxhash

from topowise import digits
from topowise.errors import ParseError, TopowiseError

METADATA_ATTRIBUTE: Final = "topology.node.k8s.io/numaplacement-metadata"
VECTOR_ATTRIBUTE: Final = "topology.node.k8s.io/numaplacement-vector"

Container: TypeAlias = tuple[str, str, str]
"""Namespace, pod, container."""

_PREFIX = "npv0"
_VERSION = "v001"
_ENCODING = "leb89"

_ALPHABET = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"&<>\\')
_INDEX = {character: index for index, character in enumerate(_ALPHABET)}
_LAST = 64
_MORE = 25

# Upstream's offsets are int32.
_MAX_OFFSET = (1 << 31) - 1
# A reader expands the busiest node's offsets: a count beyond this is damaged text (a kubelet is tested with 110 pods,
# and run with up to a thousand).
_MAX_CONTAINERS = 1 << 14


class PlacementError(TopowiseError):
    """A container whose resources are not on exactly one NUMA node of the machine."""


class VectorMetadata(msgspec.Struct, frozen=True, gc=False):
    """How to read the vectors; `node_count` is one more than the highest NUMA node id."""

    containers: int
    node_count: int
    busiest: int


class Holdings(msgspec.Struct, frozen=True, gc=False):
    """Exclusive resources of a container: CPU ids, and the NUMA nodes of each device and memory block."""

    cpus: tuple[int, ...] = ()
    devices: tuple[tuple[int, ...], ...] = ()
    memory: tuple[tuple[int, ...], ...] = ()


def affinity(holdings: Holdings, node_of_cpu: Mapping[int, int]) -> int | None:
    """Returns the node of the CPUs, else of the devices, else of the memory; None without resources of a node. A device
    or block near several nodes is ignored if another names the node. Raises PlacementError if several nodes are
    possible."""
    unknown = [cpu for cpu in holdings.cpus if node_of_cpu.get(cpu, -1) < 0]
    if unknown:
        raise PlacementError(f"CPU {unknown[0]} is on no known NUMA node")
    cpus = tuple((node_of_cpu[cpu],) for cpu in holdings.cpus)
    for what, entries in (("CPUs", cpus), ("devices", holdings.devices), ("memory", holdings.memory)):
        named = sorted({nodes[0] for nodes in entries if len(nodes) == 1})
        if len(named) > 1:
            raise PlacementError(f"its {what} are on NUMA nodes {named}, not on one")
        if named:
            return named[0]
    if any(holdings.devices) or any(holdings.memory):
        raise PlacementError("all it holds is near more than one NUMA node")
    return None


def placements(containers: Mapping[Container, Holdings], node_of_cpu: Mapping[int, int]) -> dict[Container, int]:
    """Returns the node of every container that has a node. Raises PlacementError for a container without a single node:
    a reader that knows this container would reject all vectors, so there is no point in publishing them."""
    node_of_container: dict[Container, int] = {}
    for container, holdings in containers.items():
        try:
            node = affinity(holdings, node_of_cpu)
        except PlacementError as exc:
            raise PlacementError(f"container {'/'.join(container)}: {exc}") from exc
        if node is not None:
            node_of_container[container] = node
    return node_of_container


def encode(placements: Mapping[Container, int], nodes: Iterable[int]) -> tuple[str, dict[int, str]]:
    """Returns the metadata, and the vector of every NUMA node that has one; `nodes` are the ids of the whole machine.
    The node count of the metadata is one more than the highest id, because readers refuse ids that are not below it,
    and ids have gaps on some machines. Raises PlacementError for a node that the machine does not have."""
    known = frozenset(nodes)
    if strays := sorted(set(placements.values()) - known):
        raise PlacementError(f"containers are placed on NUMA nodes {strays}, which the machine does not have")
    by_hash = {container_hash(container): node for container, node in placements.items()}
    offsets: dict[int, list[int]] = {}
    for offset, digest in enumerate(sorted(by_hash)):
        offsets.setdefault(by_hash[digest], []).append(offset)
    busiest = min(offsets, key=lambda node: (-len(offsets[node]), node), default=0)
    metadata = VectorMetadata(len(by_hash), max(known, default=0) + 1, busiest)
    vectors = {node: encode_offsets(offsets[node]) for node in sorted(offsets) if node != busiest}
    return encode_metadata(metadata), vectors


def decode(metadata: str, vectors: Mapping[int, str]) -> dict[int, tuple[int, ...]]:
    """Returns NUMA node id -> offsets into the sorted hashes of all containers, ascending. Raises ParseError."""
    decoded = decode_metadata(metadata)
    if not all(0 <= node < decoded.node_count and node != decoded.busiest for node in vectors):
        raise ParseError("numaplacement metadata", metadata, f"nodes that fit vectors of {sorted(vectors)}")
    offsets_of_node: dict[int, tuple[int, ...]] = {}
    seen: set[int] = set()
    for node, text in sorted(vectors.items()):
        offsets = decode_offsets(text)
        if offsets and offsets[-1] >= decoded.containers:
            raise ParseError("numaplacement vector", text, f"offsets below {decoded.containers}")
        counts = Counter(offsets)
        if len(counts) < len(offsets) or not seen.isdisjoint(counts):
            raise ParseError("numaplacement vector", text, "each offset once in all vectors")
        seen |= counts.keys()
        offsets_of_node[node] = offsets
    offsets_of_node[decoded.busiest] = tuple(offset for offset in range(decoded.containers) if offset not in seen)
    return dict(sorted(offsets_of_node.items()))


def resolve(decoded: Mapping[int, tuple[int, ...]], containers: Iterable[Container]) -> dict[Container, int]:
    """Returns the node of each container, for a reader that knows which containers were counted. Raises ParseError if
    their number differs: then the offsets refer to other containers."""
    by_hash = {container_hash(container): container for container in containers}
    total = sum(map(len, decoded.values()))
    if total != len(by_hash):
        raise ParseError("numaplacement", f"{total} containers", f"{len(by_hash)}, which this reader knows")
    node_of = {offset: node for node, offsets in decoded.items() for offset in offsets}
    return {by_hash[digest]: node_of[offset] for offset, digest in enumerate(sorted(by_hash))}


def container_hash(container: Container) -> int:
    """Returns XXH64 of the three names, separated by NUL."""
    return xxhash.xxh64_intdigest("\0".join(container).encode())


def encode_metadata(metadata: VectorMetadata) -> str:
    fields = {"ve": _ENCODING, "cc": metadata.containers, "nn": metadata.node_count, "bn": metadata.busiest}
    return "::".join([_PREFIX + _VERSION, *(f"{key}={text}" for key, text in fields.items())])


def decode_metadata(text: str) -> VectorMetadata:
    """Returns the inverse of `encode_metadata`, with the fields in any order. Raises ParseError."""
    head, *pairs = text.split("::")
    if head != _PREFIX + _VERSION:
        raise ParseError("numaplacement metadata", text, f"{_PREFIX} and version {_VERSION}")
    fields = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
    if fields.keys() != {"ve", "cc", "nn", "bn"}:
        raise ParseError("numaplacement metadata", text, "the fields ve, cc, nn and bn")
    if fields["ve"] != _ENCODING:
        raise ParseError("numaplacement metadata", text, f"vectors in {_ENCODING}")
    numbers = [number for key in ("cc", "nn", "bn") if (number := digits.natural(fields[key])) is not None]
    if len(numbers) < 3:
        raise ParseError("numaplacement metadata", text, "cc, nn and bn as numbers")
    decoded = VectorMetadata(*numbers)
    if decoded.containers > _MAX_CONTAINERS or decoded.busiest >= decoded.node_count:
        raise ParseError("numaplacement metadata", text, f"cc up to {_MAX_CONTAINERS}, and bn below nn")
    return decoded


def encode_offsets(offsets: Iterable[int]) -> str:
    """Returns LEB89 of the lowest offset and of the differences; the offsets are 0 or more, in any order."""
    previous = 0
    parts: list[str] = []
    for offset in sorted(offsets):
        parts.append(_encode_number(offset - previous))
        previous = offset
    return "".join(parts)


def _encode_number(number: int) -> str:
    if number < 0:
        raise AssertionError(f"unreachable: offsets are never negative, got {number}")
    if number < _LAST:
        return _ALPHABET[number]
    high, last = divmod(number - _LAST, _LAST)
    # At least a digit: 64 is a leading zero and a last digit of zero.
    digits = [high % _MORE]
    while high := high // _MORE:
        digits.append(high % _MORE)
    return "".join(_ALPHABET[_LAST + digit] for digit in reversed(digits)) + _ALPHABET[last]


def decode_offsets(text: str) -> tuple[int, ...]:
    """Returns the inverse of `encode_offsets`, ascending. Raises ParseError."""
    offsets: list[int] = []
    previous = 0
    high: int | None = None
    for character in text:
        index = _INDEX.get(character)
        if index is None:
            raise ParseError("numaplacement vector", text, "LEB89, without " + ascii(character))
        if index >= _LAST:
            high = (high or 0) * _MORE + index - _LAST
        else:
            previous += index if high is None else _LAST + high * _LAST + index
            offsets.append(previous)
            high = None
        if max(previous, high or 0) > _MAX_OFFSET:
            raise ParseError("numaplacement vector", text, f"offsets up to {_MAX_OFFSET}")
    if high is not None:
        raise ParseError("numaplacement vector", text, "a last digit at the end; it is cut off")
    return tuple(offsets)
