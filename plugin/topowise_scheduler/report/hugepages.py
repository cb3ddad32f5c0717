"""Hugepage resources by the size of their pages."""

from __future__ import annotations

import re
from functools import lru_cache

from topowise_scheduler.kubelet.machine import hugepages_resource

_NAME = re.compile(r"hugepages-([1-9][0-9]{0,9})(Ki|Mi|Gi)", re.ASCII)
_KIB = {"Ki": 1, "Mi": 1 << 10, "Gi": 1 << 20}


_LONGEST = 32


def page_kib(resource: str) -> int | None:
    """The page size in KiB of "hugepages-2Mi"; None for any name that the kubelet does not give to a size."""
    return _page_kib(resource) if len(resource) <= _LONGEST else None


@lru_cache(maxsize=256)
def _page_kib(resource: str) -> int | None:
    match = _NAME.fullmatch(resource)
    if match is None:
        return None
    kib = int(match[1]) * _KIB[match[2]]
    return kib if hugepages_resource(kib) == resource else None
