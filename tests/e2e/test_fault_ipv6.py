"""Both daemons on a machine with IPv6 addresses only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemons import Start, assert_eventually
from exporter_setup import FakeKubelet, available
from faults import FaultProxy, assert_said_once
from faults.site import LONG_S, pod
from faults.tls_front import TlsFront
from pki import Authority
from sandbox.apiserver import ApiServer
from scheduler_process import Listener
from scheduling import NODE_STATUS
from topowise.kube import credentials
from topowise.kube.api import Api


async def test_ipv6_alone(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    async with FaultProxy(server.url, host="::1") as proxy, aiohttp.ClientSession() as session:
        kubeconfig = proxy.kubeconfig(tmp_path / "ipv6")
        listener = Listener(kubeconfig)
        for port in ("extender", "readOnly", "serving"):
            listener.config[port]["address"] = "::1"
        config["client"]["kubeconfig"] = str(kubeconfig)
        config["serving"]["address"] = "::1"
        server.create("nodes", {"metadata": {"name": "n1"}, "status": NODE_STATUS})
        exporter = await start("topowise_exporter", "run", config=config)
        scheduler = await start("topowise_scheduler", "serve", config=listener.config)

        async def is_ready() -> bool:
            try:
                async with session.get(f"http://[::1]:{listener.health_port}/readyz") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        async def fits(cpus: int) -> bool:
            body = {"Pod": pod("asked", cpus), "Nodes": None, "NodeNames": ["n1"]}
            async with session.post(f"http://[::1]:{listener.port}/filter", json=body) as response:
                assert response.status == 200, await response.text()
                return json.loads(await response.text())["NodeNames"] == ["n1"]

        async def is_reported() -> bool:
            return await fits(2) and not await fits(5)

        await assert_eventually(is_ready, within=LONG_S)
        await assert_eventually(lambda: available(server) == "3", within=LONG_S)
        await assert_eventually(is_reported, within=LONG_S)
        async with session.post(
            f"http://[::1]:{listener.pages_port}/explain?node=n1", json=pod("asked", 2)
        ) as response:
            assert response.status == 200, await response.text()
        for daemon in (exporter, scheduler):
            assert daemon.process.returncode is None
            assert_said_once(daemon)


async def test_the_service_account_of_a_cluster_with_ipv6_alone(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "ca", "ca")
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    async with TlsFront((host, int(port)), host="::1") as front:
        await front.serve(*authority.issue("server", "IP:::1"))
        (tmp_path / "token").write_text("t")
        (tmp_path / "ca.crt").write_text(authority.certificate.read_text())
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(front.port))
        async with Api(credentials.in_cluster(tmp_path), "test", timeout=5) as api:
            assert json.loads(await api.request("GET", "/api/v1/pods"))["kind"] == "PodList"
