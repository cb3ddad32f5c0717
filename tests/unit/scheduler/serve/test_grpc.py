"""gRPC requests that are refused, and conditions that keep the server from serving."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from scheduling import Service, counts, exact, kubelet, pod
from topowise.errors import SourceError
from topowise.runtime.config import ServingTls
from topowise.wire import scoring_pb2, scoring_pb2_grpc
from topowise_scheduler.configuration import Grpc
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.overlay.scale_up.template_nodes import TemplateNodes
from topowise_scheduler.serve import grpc_api
from topowise_scheduler.verdicts.refusals import Refusal


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def scoring(service: Service) -> grpc_api.ScoringService:
    return grpc_api.ScoringService(service.answers, service.view, service.fitting(8), lambda: None)


@pytest.fixture
async def stub(scoring: grpc_api.ScoringService, tmp_path: Path) -> AsyncIterator[Any]:
    path = tmp_path / "scoring.sock"
    task = asyncio.create_task(grpc_api.serve(Grpc(socket=str(path)), scoring))
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 5)
        yield scoring_pb2_grpc.ScoringStub(channel)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("sent", "named"),
    [(b"{", "JSON of a v1.Pod"), (json.dumps(pod("a", "many")).encode(), "many")],
    ids=["no pod", "no quantity"],
)
async def test_a_pod_that_cannot_be_read_is_an_invalid_argument(stub: Any, sent: bytes, named: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Filter(scoring_pb2.FilterRequest(pod=sent, nodes=["n1"]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in (caught.value.details() or "")


async def test_a_running_pod_is_asked_about_as_it_would_come_anew(
    service: Service, scoring: grpc_api.ScoringService
) -> None:
    """The kubelet has not allocated the resized request: two CPUs more than the other node has."""
    service.report(counts("n2", "3"))
    document = pod("a", "4", node="n1")
    document["status"]["containerStatuses"] = [{"name": "c", "allocatedResources": {"cpu": "2", "memory": "1Gi"}}]
    raw, context = json.dumps(document).encode(), cast(grpc_api.Context, None)
    response = await scoring.Filter(scoring_pb2.FilterRequest(pod=raw, nodes=["n2"]), context)
    explained = await scoring.Explain(scoring_pb2.ExplainRequest(pod=raw, nodes=["n2"]), context)
    assert list(response.verdicts) == list(explained.verdicts) == [scoring_pb2.VERDICT_UNSCHEDULABLE]


async def test_nodes_that_do_not_exist_are_answered_as_the_empty_node_of_their_group(service: Service) -> None:
    service.report(exact(kubelet(), name="n1"))
    service.put_node("n1", labels={"pool": "a"})
    templates = TemplateNodes(service.trial, ("pool",), {})
    scoring = grpc_api.ScoringService(service.answers, service.view, service.fitting(), lambda: None, templates)
    new = [{"metadata": {"name": f"new-{pool}", "labels": {"pool": pool}}} for pool in ("a", "b")]
    context = cast(grpc_api.Context, None)
    for cpu, verdicts, scores in (("4", [1, 1, 1], [1, 0]), ("5", [3, 3, 1], [0, 0])):
        fields = {
            "pod": json.dumps(pod("p", cpu)).encode(),
            "nodes": ["n1"],
            "templates": [json.dumps(node).encode() for node in new],
        }
        response = await scoring.Filter(scoring_pb2.FilterRequest(**fields), context)
        assert list(response.verdicts) == verdicts
        score = await scoring.Score(scoring_pb2.ScoreRequest(**fields), context)
        assert list(score.scores)[1:] == scores


async def test_pods_that_are_to_fit_at_once(service: Service, stub: Any) -> None:
    service.report(exact(kubelet(), name="n1"))
    template, ask = json.dumps(pod("a", "3")).encode(), stub.FitTogether
    response = await ask(scoring_pb2.FitTogetherRequest(pods=[template], count=2, reserve_seconds=30))
    assert (response.fits, list(response.nodes)) == (True, ["n1", "n1"])
    refused = await ask(scoring_pb2.FitTogetherRequest(pods=[template]))
    assert (refused.fits, refused.why) == (False, f"0/1 nodes: 1 {TEXTS[Refusal.NOT_NOW]}")
    assert (await ask(scoring_pb2.FitTogetherRequest(release=response.reservation))).fits
    assert (await ask(scoring_pb2.FitTogetherRequest(pods=[template] * 2))).fits
    with pytest.raises(grpc.aio.AioRpcError, match="1024"):
        await ask(scoring_pb2.FitTogetherRequest(pods=[template], count=2000))


async def test_a_port_that_is_taken_is_named(scoring: grpc_api.ScoringService) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SourceError, match=f"127.0.0.1:{port}: cannot be listened on"):
            await grpc_api.serve(Grpc(address="127.0.0.1", port=port), scoring)


async def test_a_certificate_that_is_not_there_is_named(scoring: grpc_api.ScoringService, tmp_path: Path) -> None:
    tls = ServingTls(cert_file=str(tmp_path / "tls.crt"), key_file=str(tmp_path / "tls.key"))
    with pytest.raises(SourceError, match=r"tls\.key"):
        await grpc_api.serve(Grpc(port=1, tls=tls), scoring)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_an_address_of_ipv6_is_listened_on(scoring: grpc_api.ScoringService, unused_tcp_port: int) -> None:
    task = asyncio.create_task(grpc_api.serve(Grpc(address="::1", port=unused_tcp_port), scoring))
    async with grpc.aio.insecure_channel(f"[::1]:{unused_tcp_port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
