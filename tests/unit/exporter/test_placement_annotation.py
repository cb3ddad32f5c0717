"""Pods get a placement annotation in KAI's format; only pods of this node, only changes, and at a limited rate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from topowise.errors import ApiError
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime.backoff import Backoff
from topowise_exporter.annotator import Annotator
from topowise_exporter.conditions import Conditions
from topowise_exporter.exclusions import Exclusions, PodPattern
from topowise_exporter.kubelet.allocations import Allocations, ContainerAllocation, Device, MemoryBlock, PodAllocation
from topowise_exporter.machine.inventory import Machine, NumaNode
from topowise_exporter.metrics import Metrics
from topowise_exporter.publish.numatopology import ANNOTATION, placement
from topowise_exporter.publish.topology import Observation

NODE_OF_CPU = {0: 0, 1: 0, 4: 1, 5: 1}
MACHINE = Machine(
    tuple(NumaNode(number, cpus, 1 << 30, {}, {0: 10, 1: 20}, (0,)) for number, cpus in ((0, (0, 1)), (1, (4, 5)))),
    (),
    (),
    (0, 1, 4, 5),
    (0, 1, 4, 5),
    (0, 1, 4, 5),
    (),
    (),
)


def pod(name: str, *cpus: int, **more: Any) -> PodAllocation:
    return PodAllocation("ns", name, (ContainerAllocation("c", frozenset(cpus), **more),))


def seen(*pods: PodAllocation) -> Observation:
    return Observation(MACHINE, KubeletConfiguration(), Allocations(pods=pods))


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(
            pod("p", 0, 1, devices=(Device("nvidia.com/gpu", "a", (0,)), Device("nvidia.com/gpu", "b", (0,)))),
            '[{"zone":"node-0","amount":{"cpu":"2","nvidia.com/gpu":"2"}}]',
            id="KAI's own example",
        ),
        pytest.param(
            PodAllocation(
                "ns",
                "p",
                (
                    ContainerAllocation("a", frozenset({4}), (MemoryBlock("memory", (1,), 1 << 30),)),
                    ContainerAllocation("b", frozenset({0, 5}), (MemoryBlock("hugepages-2Mi", (1,), 2 << 20),)),
                ),
            ),
            '[{"zone":"node-0","amount":{"cpu":"1"}},'
            '{"zone":"node-1","amount":{"cpu":"2","hugepages-2Mi":"2097152","memory":"1073741824"}}]',
            id="containers are summed, zones are in order",
        ),
        pytest.param(
            pod(
                "p",
                9,
                memory=(MemoryBlock("memory", (0, 1), 1 << 30),),
                devices=(Device("gpu", "a", (0, 1)), Device("fpga", "b", ())),
            ),
            None,
            id="several nodes or none",
        ),
        pytest.param(
            PodAllocation("ns", "p", (ContainerAllocation("c", frozenset({0})),), own_cpus=frozenset({0, 1})),
            '[{"zone":"node-0","amount":{"cpu":"2"}}]',
            id="CPUs of the pod level count once",
        ),
    ],
)
def test_the_text_of_a_pod(pod: PodAllocation, expected: str | None) -> None:
    assert placement(pod, NODE_OF_CPU) == expected


class Server:
    """Pods by name with their node; refuses to change a pod's node, as the API server does."""

    def __init__(self, **nodes: str) -> None:
        self.nodes = nodes
        self.annotations: dict[str, str] = {}
        self.patches: list[str] = []
        self.refuse: Callable[[], None] = lambda: None

    async def request(self, method: str, path: str, *, body: bytes = b"", query: Any = None, **_: object) -> bytes:
        self.refuse()
        if method == "GET":
            node_name = query["fieldSelector"].partition("=")[2]
            items = [
                {"metadata": {"name": name, "namespace": "ns", "annotations": self._of(name)}}
                for name, node in self.nodes.items()
                if node == node_name
            ]
            return msgspec.json.encode({"items": items})
        name = path.rpartition("/")[2]
        self.patches.append(name)
        if name not in self.nodes:
            raise ApiError(404, "NotFound", "none", request=path)
        patch = msgspec.json.decode(body)
        if patch["spec"] != {"nodeName": self.nodes[name]}:
            raise ApiError(422, "Invalid", "pod updates may not change fields", request=path)
        self.annotations[name] = patch["metadata"]["annotations"][ANNOTATION]
        return b"{}"

    def _of(self, name: str) -> dict[str, str] | None:
        return {ANNOTATION: self.annotations[name]} if name in self.annotations else None


@contextlib.asynccontextmanager
async def annotating(server: Server, **options: Any) -> AsyncIterator[Annotator]:
    excluded = options.pop("excluded", None)
    resync = options.pop("resync", 3600.0)
    options = {"per_second": 1000.0, "backoff": Backoff(0.01, 0.02), **options}
    annotator = Annotator(server, "n1", Metrics(), Conditions(), resync, excluded, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(annotator.run())
    try:
        yield annotator
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled(seconds: float = 0.1) -> None:
    await asyncio.sleep(seconds)


async def test_only_what_is_new_is_patched() -> None:
    server = Server(a="n1", b="n1", web="n1")
    async with annotating(server) as annotator:
        first = seen(pod("a", 0), pod("b", 4), pod("web"))
        for facts in (first, first, seen(pod("a", 0), pod("b", 4), pod("web"))):
            annotator.saw(facts)
            await settled()
        assert sorted(server.patches) == ["a", "b"]
        annotator.saw(seen(pod("a", 0, 1), pod("b", 4)))
        await settled()
    assert sorted(server.patches) == ["a", "a", "b"]
    assert server.annotations["a"] == '[{"zone":"node-0","amount":{"cpu":"2"}}]'


async def test_a_stale_name_annotates_no_pod_of_another_node() -> None:
    server = Server(moved="n2")
    async with annotating(server) as annotator:
        annotator.saw(seen(pod("moved", 0), pod("gone", 1)))
        await settled()
        assert not server.annotations
        assert sorted(server.patches) == ["gone", "moved"], "each once: neither is worth another try"


async def test_an_annotation_that_was_taken_away_and_a_pod_that_was_replaced_are_made_good() -> None:
    server = Server(a="n1")
    async with annotating(server, resync=0.1) as annotator:
        annotator.saw(seen(pod("a", 0)))
        await settled(0.05)
        assert server.annotations.pop("a")
        await settled(0.3)
        assert server.annotations["a"]
    assert len(server.patches) == 2


async def test_an_absent_api_server_is_retried_and_does_not_stop_the_loop() -> None:
    server = Server(a="n1")

    def away() -> None:
        raise ApiError(0, "Unreachable", "no", request="")

    server.refuse = away
    async with annotating(server) as annotator:
        annotator.saw(seen(pod("a", 0)))
        await settled()
        server.refuse = lambda: None
        await settled()
    assert server.annotations["a"]


async def test_a_full_node_is_annotated_at_the_pace_that_was_promised() -> None:
    server = Server(**{f"p{number}": "n1" for number in range(40)})
    async with annotating(server, per_second=50.0) as annotator:
        annotator.saw(seen(*(pod(f"p{number}", 0) for number in range(40))))
        await settled(0.4)
        assert 5 <= len(server.patches) <= 21


async def test_a_restarted_exporter_patches_nothing_that_is_there_already() -> None:
    server = Server(a="n1", b="n1")
    facts = seen(pod("a", 0), pod("b", 4))
    for _ in range(2):
        async with annotating(server) as annotator:
            annotator.saw(facts)
            await settled()
    assert sorted(server.patches) == ["a", "b"]


async def test_a_pod_that_a_webhook_refuses_keeps_no_other_pod_from_its_annotation() -> None:
    server = Server(a="n1", b="n1", c="n1", d="n1")
    whole = server.request

    async def refusing(method: str, path: str, **more: Any) -> bytes:
        if path.endswith("/a"):
            raise ApiError(400, "BadRequest", 'admission webhook "no" denied the request', request=path)
        return await whole(method, path, **more)

    server.request = refusing  # type: ignore[method-assign]
    left_out = Exclusions(pods=(PodPattern(namespace="ns", name="d"),))
    async with annotating(server, excluded=left_out) as annotator:
        annotator.saw(seen(pod("a", 0), pod("b", 1), pod("c", 4), pod("d", 5)))
        await settled(0.3)
    assert sorted(server.patches) == ["b", "c"]
