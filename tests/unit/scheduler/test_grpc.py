"""What gRPC is asked in vain, and what keeps it from being served."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import grpc
import grpc.aio
import pytest

from scheduling import Service, pod
from topowise.errors import SourceError
from topowise.runtime.config import ServingTls
from topowise.wire import scoring_pb2, scoring_pb2_grpc
from topowise_scheduler import grpc_api
from topowise_scheduler.configuration import Grpc


@pytest.fixture
def scoring() -> grpc_api.Scoring:
    service = Service()
    return grpc_api.Scoring(service.answers, service.view, lambda: None)


@pytest.mark.parametrize(
    ("sent", "named"),
    [(b"{", "JSON of a v1.Pod"), (json.dumps(pod("a", "many")).encode(), "many")],
    ids=["no pod", "no quantity"],
)
async def test_a_pod_that_cannot_be_read_is_an_invalid_argument(
    scoring: grpc_api.Scoring, tmp_path: Path, sent: bytes, named: str
) -> None:
    path = tmp_path / "scoring.sock"
    task = asyncio.create_task(grpc_api.serve(Grpc(socket=str(path)), scoring))
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scoring_pb2_grpc.ScoringStub(channel).Filter(scoring_pb2.FilterRequest(pod=sent, nodes=["n1"]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in (caught.value.details() or "")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_port_that_is_taken_is_named(scoring: grpc_api.Scoring) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            await grpc_api.serve(Grpc(address="127.0.0.1", port=port), scoring)


async def test_a_certificate_that_is_not_there_is_named(scoring: grpc_api.Scoring, tmp_path: Path) -> None:
    tls = ServingTls(cert_file=str(tmp_path / "tls.crt"), key_file=str(tmp_path / "tls.key"))
    with pytest.raises(SourceError, match=r"tls\.key"):
        await grpc_api.serve(Grpc(port=1, tls=tls), scoring)
