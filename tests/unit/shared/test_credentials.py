"""Who we are to the API server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from topowise.errors import ConfigError, SourceError
from topowise.kube import credentials
from topowise.kube.credentials import TokenFile


def kubeconfig(path: Path, **user: str) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}}],
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


async def test_a_renewed_token_is_read_after_a_401_but_not_for_each_of_many(tmp_path: Path) -> None:
    path = tmp_path / "config"
    now = [0.0]
    read = await credentials.load(kubeconfig(path, token="old"), clock=lambda: now[0])
    kubeconfig(path, token="new")
    assert await read.authorization(True) == "Bearer old"
    now[0] = 2
    assert await read.authorization(True) == "Bearer new"


async def test_a_kubeconfig_without_user_sends_no_authorization(tmp_path: Path) -> None:
    read = await credentials.load(kubeconfig(tmp_path / "config"))
    assert await read.authorization(False) == ""


async def test_damage_in_a_kubeconfig_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("clusters: [\n")
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


def test_a_token_file_that_vanishes_leaves_the_old_token_in_use(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    token = TokenFile(path)
    token.read()
    path.unlink()
    assert token.read(renew=True) == "one"
