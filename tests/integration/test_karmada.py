"""Karmada's estimator in the daemon, asked by a gRPC client over mutual TLS as karmada-scheduler asks."""

from __future__ import annotations

import shutil
from pathlib import Path

import grpc
import grpc.aio
import pytest

from daemons import Start, assert_eventually
from pki import Authority
from sandbox.apiserver import ApiServer
from sandbox.processes import free_ports
from scheduler_process import NRT, Service
from topowise.wire import karmada_estimator_pb2 as pb
from topowise.wire import karmada_estimator_service_pb2_grpc as service_grpc

WAIT_S = 60


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca", "ca")


@pytest.fixture
def service(server: ApiServer, tmp_path: Path, authority: Authority) -> Service:
    """Two nodes with 4 and 2 free CPUs on NUMA nodes of 4."""
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": "110"}
    for name, free in (("n1", ("4", "2")), ("n2", ("2", "2"))):
        ready = [{"type": "Ready", "status": "True"}]
        server.create(
            "nodes", {"metadata": {"name": name}, "status": {"allocatable": allocatable, "conditions": ready}}
        )
        zones = [
            {
                "name": f"node-{at}",
                "type": "Node",
                "resources": [{"name": "cpu", "capacity": "4", "allocatable": "4", "available": available}],
            }
            for at, available in enumerate(free)
        ]
        policy = {"name": "topologyManagerPolicy", "value": "single-numa-node"}
        server.create(NRT, {"metadata": {"name": name}, "attributes": [policy], "zones": zones})
    started = Service(server, tmp_path)
    (port,) = free_ports(1)
    tls = {"certFile": "tls.crt", "keyFile": "tls.key", "clientCaFile": "ca.crt"}
    started.config["karmada"] = {
        "port": port,
        "cluster": "member1",
        "timeLimit": f"{WAIT_S}s",
        "tls": {field: str(tmp_path / name) for field, name in tls.items()},
    }
    renew(tmp_path, authority, "server")
    return started


def renew(directory: Path, authority: Authority, name: str) -> None:
    certificate, key = authority.issue(name)
    for source, target in ((certificate, "tls.crt"), (key, "tls.key"), (authority.certificate, "ca.crt")):
        shutil.copy(source, directory / target)


async def ask(service: Service, trusted: Authority, client: tuple[Path, Path] | None, cpu: str = "2") -> int:
    """Returns the number of replicas of so many CPUs that fit. Raises AioRpcError."""
    chain, key = (None, None) if client is None else (client[0].read_bytes(), client[1].read_bytes())
    credentials = grpc.ssl_channel_credentials(trusted.certificate.read_bytes(), key, chain)
    async with grpc.aio.secure_channel(f"127.0.0.1:{service.config['karmada']['port']}", credentials) as channel:
        stub = service_grpc.EstimatorStub(channel)  # type: ignore[no-untyped-call]
        quantities = {"cpu": cpu, "memory": "1Gi"}
        amounts = {name: pb.KubernetesQuantity(string=text).SerializeToString() for name, text in quantities.items()}
        request = pb.MaxAvailableReplicasRequest(
            cluster="member1", replicaRequirements=pb.ReplicaRequirements(resourceRequestBytes=amounts)
        )
        answer: pb.MaxAvailableReplicasResponse = await stub.MaxAvailableReplicas(request, timeout=WAIT_S)
        return answer.maxReplicas


async def test_only_clients_of_the_ca_are_answered(
    start: Start, service: Service, authority: Authority, tmp_path: Path
) -> None:
    process = await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready)
    client = authority.issue("karmada-scheduler")
    assert await ask(service, authority, client) == 5
    assert await ask(service, authority, client, "4") == 1, "and 2 by sums"
    other = Authority(tmp_path / "other", "other")
    for refused in (None, other.issue("karmada-scheduler")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(service, authority, refused)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    renew(tmp_path, other, "server-2")

    async def is_renewed() -> bool:
        try:
            return await ask(service, other, other.issue("karmada-scheduler")) == 5
        except grpc.aio.AioRpcError:
            return False

    await assert_eventually(is_renewed)
    assert await process.stop() == 0
