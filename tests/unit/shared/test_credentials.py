"""Who we are to the API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from topowise.errors import ConfigError, SourceError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.kube.credentials import TokenFile


def kubeconfig(path: Path, cluster: dict[str, Any] | None = None, /, **user: Any) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


async def test_a_kubeconfig_gives_server_and_token(tmp_path: Path) -> None:
    read = await credentials.load(kubeconfig(tmp_path / "config", token="secret"))
    assert read.server == "http://127.0.0.1:1"
    assert read.tls is None
    assert await read.authorization(False) == "Bearer secret"


async def test_a_renewed_token_is_read_after_a_401(tmp_path: Path) -> None:
    path = tmp_path / "config"
    read = await credentials.load(kubeconfig(path, token="old"))
    kubeconfig(path, token="new")
    assert await read.authorization(False) == "Bearer old"
    assert await read.authorization(True) == "Bearer new"
    assert await read.authorization(False) == "Bearer new"


@pytest.mark.parametrize(
    ("user", "expected"),
    [({"username": "u", "password": "p"}, "Basic dTpw"), ({"tokenFile": "token"}, "Bearer t"), ({}, "")],
)
async def test_a_user_has_an_authorization(tmp_path: Path, user: dict[str, Any], expected: str) -> None:
    """A token file is found beside the kubeconfig."""
    (tmp_path / "token").write_text("t")
    read = await credentials.load(kubeconfig(tmp_path / "config", **user))
    assert await read.authorization(False) == expected


def exec_plug_in(script: Path) -> dict[str, str]:
    status = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "made"}}
    script.write_text(f"#!/bin/sh\necho '{json.dumps(status)}'\n")
    script.chmod(0o755)
    return {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script), "interactiveMode": "Never"}


async def test_an_exec_plug_in_is_run_by_the_official_client(tmp_path: Path) -> None:
    script = tmp_path / "plugin"
    plugin = exec_plug_in(script)
    now = [0.0]
    read = await credentials.load(kubeconfig(tmp_path / "config", exec=plugin), clock=lambda: now[0])
    assert await read.authorization(False) == "Bearer made"
    script.write_text(script.read_text().replace("made", "renewed"))
    now[0] = 2
    assert await read.authorization(True) == "Bearer renewed"


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"server": "10.0.0.1:6443"}, "http://10.0.0.1:6443"),
        ({"server": "api.example", "insecure-skip-tls-verify": True}, "https://api.example"),
        ({"server": "https://api.example/k8s/clusters/c-1/"}, "https://api.example/k8s/clusters/c-1"),
        ({"server": "[fd00::1]:6443"}, "http://[fd00::1]:6443"),
    ],
)
async def test_a_server_is_a_url_or_a_host_and_port(tmp_path: Path, cluster: dict[str, Any], expected: str) -> None:
    read = await credentials.load(kubeconfig(tmp_path / "config", cluster))
    assert read.server == expected
    assert (read.tls is not None) is expected.startswith("https:")


@pytest.mark.parametrize("server", ["https://", "unix:///run/api", "http://127.0.0.1:99999", "me:secret@[::1"])
async def test_a_server_that_is_none_is_named(tmp_path: Path, server: str) -> None:
    with pytest.raises(ConfigError, match=r"server .*: expected a URL") as caught:
        await credentials.load(kubeconfig(tmp_path / "config", {"server": server}))
    assert "secret" not in str(caught.value)


async def test_an_exec_plug_in_needs_the_whole_url(tmp_path: Path) -> None:
    # The official client reads no CA for a server without it, and the token would go out in plain text.
    path = kubeconfig(tmp_path / "config", {"server": "10.0.0.1:6443"}, exec=exec_plug_in(tmp_path / "plugin"))
    with pytest.raises(ConfigError, match=r"server '10.0.0.1:6443': expected a URL"):
        await credentials.load(path)


@pytest.mark.parametrize("helper", [False, True], ids=["static", "exec plug-in"])
async def test_requests_go_through_the_proxy_of_the_kubeconfig(tmp_path: Path, helper: bool) -> None:
    urls: list[str] = []

    async def proxy(request: web.BaseRequest) -> web.Response:
        urls.append(str(request.url))
        return web.Response(text="{}")

    user: dict[str, Any] = {"exec": exec_plug_in(tmp_path / "plugin")} if helper else {"token": "t"}
    async with RawTestServer(proxy) as server:
        cluster = {"server": "http://api.invalid:6443", "proxy-url": str(server.make_url(""))}
        read = await credentials.load(kubeconfig(tmp_path / "config", cluster, **user))
        async with Api(read, "test", timeout=5) as api:
            assert await api.request("GET", "/version") == b"{}"
    assert urls == ["http://api.invalid:6443/version"]


@pytest.mark.parametrize("helper", [False, True], ids=["static", "exec plug-in"])
@pytest.mark.parametrize(
    ("cluster", "user", "problem"),
    [
        ({"proxy-url": "socks5://127.0.0.1:1080"}, {}, r"proxy-url .*socks5.*: expected http"),
        ({}, {"as": "viewer"}, "impersonat"),
    ],
)
async def test_what_cannot_be_honoured_is_refused(
    tmp_path: Path, helper: bool, cluster: dict[str, Any], user: dict[str, Any], problem: str
) -> None:
    user = {**user, **({"exec": exec_plug_in(tmp_path / "plugin")} if helper else {"token": "of-an-admin"})}
    with pytest.raises(ConfigError, match=problem):
        await credentials.load(kubeconfig(tmp_path / "config", cluster, **user))


@pytest.mark.parametrize(
    ("context", "named"), [("none", "no context 'none'"), ("lost", "no cluster")], ids=["unknown", "without cluster"]
)
async def test_a_context_that_leads_nowhere_is_named(tmp_path: Path, context: str, named: str) -> None:
    path = tmp_path / "config"
    document = yaml.safe_load(Path(kubeconfig(path)).read_text())
    document["contexts"].append({"name": "lost", "context": {"cluster": "gone", "user": "u"}})
    document["current-context"] = context
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match=named):
        await credentials.load(str(path))


async def test_client_certificates_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    path = tmp_path / "config"
    kubeconfig(path, **{"client-certificate-data": "bm8=", "client-key-data": "bm8="})
    path.write_text(path.read_text().replace("http:", "https:"))
    with pytest.raises(ConfigError, match="certificates of https://127"):
        await credentials.load(str(path))


@pytest.mark.parametrize("text", ["clusters: [\n", "users: 2001-99-99\n"])
async def test_damage_in_a_kubeconfig_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        await credentials.load(str(path))


def test_inside_a_pod_a_missing_token_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(SourceError, match="token"):
        credentials.in_cluster(tmp_path)
    (tmp_path / "token").write_text("t\n")
    with pytest.raises(SourceError, match=r"ca\.crt"):
        credentials.in_cluster(tmp_path)


def test_a_rotated_token_is_read_again_after_a_minute_or_when_refused(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "token"
    path.write_text("one\n")
    token = TokenFile(path, clock=lambda: now[0])
    assert token.read() == "one"
    path.write_text("two\n")
    assert token.read() == "one"
    assert token.read(renew=True) == "two"
    path.write_text("three")
    now[0] = 61
    assert token.read() == "three"
    # A file that vanishes leaves the old token in use.
    path.unlink()
    assert token.read(renew=True) == "three"


def test_the_own_namespace_is_the_variables_or_the_service_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "namespace").write_text("of-the-account\n")
    monkeypatch.setenv(credentials.NAMESPACE, "of-the-variable")
    assert credentials.own_namespace(tmp_path) == credentials.needed_namespace("steering") == "of-the-variable"
    monkeypatch.delenv(credentials.NAMESPACE)
    assert credentials.own_namespace(tmp_path) == "of-the-account"
    monkeypatch.setattr(credentials, "own_namespace", lambda: "")
    with pytest.raises(ConfigError, match=r"leaderElection: needs the own namespace.*\$POD_NAMESPACE"):
        credentials.needed_namespace("leaderElection")
