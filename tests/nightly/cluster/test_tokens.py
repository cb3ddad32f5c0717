"""Tokens end within the hour, on a real API server with the chart's rules; the service goes on with a new token."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chart_cluster import NAMESPACE, Cluster, Document, installed
from sandbox import controlplane
from topowise.errors import ApiError
from topowise.kube import account_token, credentials
from topowise.kube.account_token import LIFETIME_S, AccountToken
from topowise.kube.api import Api
from topowise_scheduler.__main__ import main

if controlplane.assets() is None:
    pytest.skip("no etcd and kube-apiserver in $KUBEBUILDER_ASSETS", allow_module_level=True)
pytestmark = pytest.mark.apiserver

ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
SERVICE = "topowise-scheduler"
KUBE_SCHEDULER = "topowise-kube-scheduler"
A_YEAR = 365 * 24 * 3600


@pytest.fixture(scope="module")
def cluster(default: Any) -> Iterator[Cluster]:
    """With the objects of the chart's default values."""
    with installed(default) as cluster:
        yield cluster


@pytest.fixture
def inside(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of a container."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", cluster.plane.url.rpartition(":")[2])


@pytest.fixture
def mounted(cluster: Cluster, tmp_path: Path) -> Path:
    """The directory of kube-scheduler's account, as the kubelet mounts it."""
    folder = tmp_path / "kube-scheduler"
    folder.mkdir()
    (folder / "token").write_text(cluster.token(KUBE_SCHEDULER, running(cluster, KUBE_SCHEDULER)))
    (folder / "ca.crt").write_bytes(cluster.plane.ca_file.read_bytes())
    (folder / "namespace").write_text(NAMESPACE)
    return folder


def running(cluster: Cluster, account: str) -> Document:
    """A pod of an account."""
    spec = {"serviceAccountName": account, "containers": [{"name": "main", "image": "none"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "pod-"}, "spec": spec}
    status, created = cluster.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)
    assert status == 201, created
    return created


def claims(token: str) -> Document:
    payload = token.split(".")[1]
    decoded: Document = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return decoded


def lifetime(token: str) -> int:
    return int(claims(token)["exp"]) - int(claims(token)["iat"])


def test_the_api_server_grants_a_year_for_3607_seconds_and_what_is_requested_for_3600(cluster: Cluster) -> None:
    """3607 is what Kubernetes requests where it mounts a token by itself; the chart's pods request 3600."""
    pod = running(cluster, "topowise-exporter")
    assert lifetime(cluster.token("topowise-exporter", pod, 3607)) == A_YEAR
    assert lifetime(cluster.token("topowise-exporter", pod, LIFETIME_S)) == LIFETIME_S


@pytest.mark.usefixtures("inside")
async def test_the_service_continues_with_a_new_token_when_the_old_token_is_refused(
    cluster: Cluster, mounted: Path, tmp_path: Path
) -> None:
    target = tmp_path / "service"
    target.mkdir()

    async def may_list(api: Api) -> bool:
        try:
            await api.request("GET", "/api/v1/pods", query={"limit": "1"})
        except ApiError as exc:
            assert exc.status == 401, exc
            return False
        return True

    async with Api(credentials.in_cluster(mounted), "test") as requester:
        keeper = AccountToken(requester, SERVICE, target, source=mounted)
        assert await keeper.renew() == LIFETIME_S
        token = (target / "token").read_text()
        assert claims(token)["sub"] == f"system:serviceaccount:{NAMESPACE}:{SERVICE}"
        assert lifetime(token) == LIFETIME_S
        assert {path.name for path in target.iterdir()} == {"token", "ca.crt", "namespace"}
        async with Api(credentials.in_cluster(target), "test") as service:
            assert await may_list(service)
            # The account is made anew, which ends all tokens of before.
            status, _ = cluster.call("DELETE", f"{ACCOUNTS}/{SERVICE}")
            assert status == 200
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SERVICE}}
            assert cluster.call("POST", ACCOUNTS, account)[0] == 201
            async with asyncio.timeout(60):
                while await may_list(service):
                    await asyncio.sleep(0.2)
            await keeper.renew()
            assert await may_list(service)


@pytest.mark.usefixtures("inside")
async def test_a_token_that_cannot_be_had_yet_is_requested_again(
    cluster: Cluster, mounted: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SERVICE}}
    cluster.call("DELETE", f"{ACCOUNTS}/{SERVICE}")
    task = asyncio.create_task(account_token.run(SERVICE, tmp_path, source=mounted))
    async with asyncio.timeout(60):
        while not caplog.records:
            await asyncio.sleep(0.05)
        assert not (tmp_path / "token").exists()
        assert cluster.call("POST", ACCOUNTS, account)[0] == 201
        while not (tmp_path / "token").exists():
            await asyncio.sleep(0.05)
        # As the kubelet ends a container.
        os.kill(os.getpid(), signal.SIGTERM)
        assert await task == 0
    assert caplog.records[0].message == "Cannot renew a token, trying again"
    assert claims((tmp_path / "token").read_text())["sub"].endswith(f":{SERVICE}")


def test_without_a_directory_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "--account", SERVICE, "--directory", str(tmp_path / "none")]) == 1
    assert "is no directory, expected a volume" in capsys.readouterr().err
