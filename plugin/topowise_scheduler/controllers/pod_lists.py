"""Lists of whole pods: records of the ledger lack owners and most of the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from topowise.kube import paths
from topowise.kube.api import Api
from topowise_scheduler.controllers import objects
from topowise_scheduler.verdicts.kube_scheduler import Pod


class _Pods(msgspec.Struct, frozen=True):
    """v1.PodList."""

    items: tuple[Pod, ...] | None = ()


_decode: Final = msgspec.json.Decoder(_Pods).decode


async def read(api: Api, path: str, query: Mapping[str, str]) -> Sequence[Pod]:
    """Returns the pods of a list. Raises ApiError."""
    return (await objects.read(api, path, _decode, query)).items or ()


async def on_node(api: Api, name: str) -> Sequence[Pod]:
    """Returns the pods of a node, from the server's cache. Raises ApiError."""
    return await read(api, paths.PODS, {"fieldSelector": f"spec.nodeName={name}", "resourceVersion": "0"})
