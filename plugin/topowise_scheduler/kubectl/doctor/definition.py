"""Checks that the API server serves NodeResourceTopology in the required version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from topowise import nrt
from topowise.errors import SourceError
from topowise_scheduler.kubectl.doctor.finding import Finding
from topowise_scheduler.kubectl.source import ForbiddenError, MissingError, decoded

PATH: Final = f"/apis/{nrt.GROUP}"
_WHY: Final = "exporters cannot write and the scheduler cannot read: every pod is scheduled without NUMA nodes"
_WHY_OLD: Final = "topowise-exporter cannot write; objects of other exporters are read without their attributes"


def check(answer: bytes | SourceError) -> Iterator[Finding]:
    """Checks the discovery document of the group (PATH), which needs no rights."""
    kind = f"API group {nrt.GROUP}"
    if isinstance(answer, MissingError):
        yield Finding(
            "definition", "error", kind, (), "is not served", _WHY,
            "install the CRD: kubectl apply -f charts/topowise/crds",
        )  # fmt: skip
        return
    if isinstance(answer, ForbiddenError):
        return
    if isinstance(answer, SourceError):
        raise answer
    document: dict[str, Any] = decoded(answer, PATH)
    served = [str(version.get("version")) for version in document.get("versions") or ()]
    if nrt.VERSION not in served:
        yield Finding(
            "definition", "error", kind, (),
            f"serves {', '.join(served) or 'no version'}, expected {nrt.VERSION}",
            _WHY_OLD if nrt.OLD_VERSION in served else _WHY,
            "replace the CRD by charts/topowise/crds, which serves v1alpha1 and v1alpha2",
        )  # fmt: skip
