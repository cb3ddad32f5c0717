"""The pods fingerprint: a digest of the pods that an exporter saw on its node.

The exporter publishes it with the NRT; a scheduler computes it over the pods that it expects on the node. Equal digests
mean that the amounts in the NRT account for exactly these pods. Algorithm and known answers:
github.com/k8stopologyawareschedwg/podfingerprint, version 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal

import xxhash

from topowise.errors import ParseError

Method = Literal["all", "with-exclusive-resources"]

ALL: Final[Method] = "all"
WITH_EXCLUSIVE_RESOURCES: Final[Method] = "with-exclusive-resources"

_PREFIX = "pfp0"
_VERSION = "v001"


def of(pods: Iterable[tuple[str, str]]) -> str:
    """Returns the fingerprint of (namespace, name) pairs, in any order; duplicates count."""
    hashes = sorted(_hash(namespace, name) for namespace, name in pods)
    digest = xxhash.xxh64_hexdigest(struct.pack(f"<{len(hashes)}Q", *hashes))
    return f"{_PREFIX}{_VERSION}{digest}"


@lru_cache(maxsize=16384)
def _hash(namespace: str, name: str) -> int:
    return xxhash.xxh64_intdigest(name.encode(), seed=xxhash.xxh64_intdigest(namespace.encode()))


def check(fingerprint: str) -> None:
    """Raises ParseError unless the text is a fingerprint of the version that `of` computes."""
    digest = fingerprint[8:]
    well_formed = len(digest) == 16 and all(c in "0123456789abcdef" for c in digest)
    if fingerprint[:4] != _PREFIX or not well_formed:
        raise ParseError("pods fingerprint", fingerprint, f"{_PREFIX}, a version and 16 hexadecimal digits")
    if fingerprint[4:8] != _VERSION:
        raise ParseError("pods fingerprint", fingerprint, f"version {_VERSION}")
