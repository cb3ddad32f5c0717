"""Maps names of hugepages resources to page sizes."""

from __future__ import annotations

import re
from functools import lru_cache

from topowise_scheduler.kubelet.machine import hugepages_resource

_NAME = re.compile(r"hugepages-([1-9][0-9]{0,9})(Ki|Mi|Gi)", re.ASCII)
_KIB = {"Ki": 1, "Mi": 1 << 10, "Gi": 1 << 20}
# A longer name is not cached: the cache must not keep texts of a hostile report.
_MAX_LENGTH = 32


def page_kib(resource: str) -> int | None:
    """Returns the page size in KiB of "hugepages-2Mi"; None unless the kubelet uses this very name for a size."""
    return _page_kib(resource) if len(resource) <= _MAX_LENGTH else None


@lru_cache(maxsize=256)
def _page_kib(resource: str) -> int | None:
    match = _NAME.fullmatch(resource)
    if match is None:
        return None
    # # The kubelet names 2048Ki "hugepages-2Mi" (HugePageResourceName), so "hugepages-2048Ki" is no resource of a node.
    kib = int(match[1]) * _KIB[match[2]]
    return kib if hugepages_resource(kib) == resource else None
