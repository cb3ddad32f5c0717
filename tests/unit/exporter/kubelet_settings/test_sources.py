"""Which source is used, which overrides win over it, and which settings apply while no source is readable."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from exporter_setup import Clock
from topowise.errors import ConfigError, SourceError
from topowise_exporter.kubelet.settings import Configz, Kubelet, Source, sources
from topowise_exporter.kubelet.settings.configz import ConfigzSource
from topowise_exporter.kubelet.settings.sources import PATIENCE_S

from .conftest import Serve

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"


class RunningKubelet:
    def __init__(self) -> None:
        self.status = 200

    async def configz(self, request: web.Request) -> web.StreamResponse:
        answer = {"kubeletconfig": {"topologyManagerPolicy": "restricted", "maxPods": 1}}
        return web.Response(status=self.status, text=json.dumps(answer))


def state(source: Source) -> tuple[str, list[str]]:
    return source.name, list(source.problems)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(HEAD + "topologyManagerPolicy: best-effort\nmaxPods: 2\n")
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


Configure = Callable[[int], Configz]


@pytest.fixture
def configz(pki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Returns the section for a kubelet on loopback, whose port is no constant."""
    token = tmp_path / "token"
    token.write_text("secret")
    monkeypatch.setenv("NODE_ADDRESS", "127.0.0.1")

    def on(port: int) -> Configz:
        monkeypatch.setattr(sources, "ConfigzSource", partial(ConfigzSource, port=port, token_file=token))
        return Configz(enabled=True, ca_file=str(pki / "ca.crt"))

    return on


async def test_drop_ins_are_part_of_the_file(file: Path, tmp_path: Path) -> None:
    directory = tmp_path / "conf.d"
    directory.mkdir()
    (directory / "1.conf").write_text(HEAD + "topologyManagerScope: pod")
    read = await Source(Kubelet(config_file=str(file), config_dir=str(directory))).read()
    assert (read.topologyManagerPolicy, read.topologyManagerScope) == ("best-effort", "pod")


async def test_the_file_stands_in_for_a_configz_that_never_answered(
    serve: Serve, configz: Configure, file: Path, clock: Clock
) -> None:
    kubelet = RunningKubelet()
    kubelet.status = 403
    settings = Kubelet(configz=configz(await serve(kubelet.configz)), config_file=str(file))
    source = Source(settings, clock=clock)
    assert (await source.read()).maxPods == 2
    name, problems = state(source)
    assert (name, len(problems)) == ("file", 1)
    assert problems[0].startswith("configz: https://127.0.0.1:")
    kubelet.status = 200
    clock.now += 10
    assert (await source.read()).maxPods == 1
    assert state(source) == ("configz", [])


async def test_a_short_silence_of_configz_keeps_its_answer_and_a_long_silence_does_not(
    serve: Serve, configz: Configure, file: Path, clock: Clock
) -> None:
    kubelet = RunningKubelet()
    settings = Kubelet(configz=configz(await serve(kubelet.configz)), config_file=str(file))
    source = Source(settings, clock=clock)
    await source.read()
    kubelet.status = 500
    clock.now += PATIENCE_S - 1
    assert (await source.read()).maxPods == 1
    name, problems = state(source)
    assert (name, len(problems)) == ("configz", 1)
    clock.now += 1
    assert (await source.read()).maxPods == 2
    assert state(source)[0] == "file"


async def test_the_last_answer_stays_valid_if_no_other_source_is_readable(file: Path, clock: Clock) -> None:
    source = Source(Kubelet(config_file=str(file)), clock=clock)
    first = await source.read()
    file.write_text("")
    clock.now += 100 * PATIENCE_S
    assert await source.read() == first
    assert state(source) == ("file", [f"file: {file}: is empty"])
    file.write_text(HEAD + "maxPods: 3")
    assert (await source.read()).maxPods == 3
    assert state(source) == ("file", [])


async def test_nothing_is_guessed_while_a_source_was_never_readable(
    serve: Serve, configz: Configure, tmp_path: Path
) -> None:
    kubelet = RunningKubelet()
    kubelet.status = 500
    missing = str(tmp_path / "no.yaml")
    settings = Kubelet(configz=configz(await serve(kubelet.configz)), config_file=missing, overrides={"maxPods": 5})
    source = Source(settings)
    with pytest.raises(SourceError, match=f"configz: .*status 500 .*; file: {missing}: cannot be read"):
        await source.read()
    name, problems = state(source)
    assert (name, len(problems)) == ("", 2)


async def test_without_a_readable_source_the_error_names_the_next_step(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.yaml")
    with pytest.raises(SourceError) as error:
        await Source(Kubelet(config_file=missing)).read()
    assert str(error.value) == (
        f"kubelet configuration: file: {missing}: cannot be read: No such file or directory; nothing is published: "
        "name the kubelet's --config in kubelet.configFile, ask the kubelet itself by kubelet.configz.enabled, "
        "or give its policies in kubelet.overrides"
    )


async def test_an_override_wins_over_every_source(file: Path) -> None:
    source = Source(Kubelet(config_file=str(file), overrides={"topologyManagerScope": "pod", "maxPods": 9}))
    read = await source.read()
    assert (read.topologyManagerPolicy, read.topologyManagerScope, read.maxPods) == ("best-effort", "pod", 9)
    assert state(source)[0] == "file"


async def test_an_override_of_the_policy_replaces_an_unreadable_source(tmp_path: Path) -> None:
    settings = Kubelet(config_file=str(tmp_path / "no"), overrides={"topologyManagerPolicy": "restricted"})
    source = Source(settings)
    read = await source.read()
    assert (read.topologyManagerPolicy, read.maxPods) == ("restricted", 110)
    assert read.evictionHard is not None
    assert read.evictionHard["memory.available"] == "100Mi"
    assert state(source) == ("flags", [f"file: {settings.config_file}: cannot be read: No such file or directory"])


@pytest.mark.parametrize(("overrides", "name"), [({}, "defaults"), ({"maxPods": 5}, "flags")])
async def test_without_any_source_the_defaults_apply(overrides: dict[str, Any], name: str) -> None:
    source = Source(Kubelet(config_file="", overrides=overrides))
    read = await source.read("v1.29.0")
    assert (read.topologyManagerPolicy, read.maxPods) == ("none", overrides.get("maxPods", 110))
    assert "imagefs.inodesFree" not in (read.evictionHard or {})
    assert state(source) == (name, [])


def test_settings_that_cannot_work_are_found_at_the_start() -> None:
    with pytest.raises(ConfigError, match="NODE_ADDRESS"):
        Source(Kubelet(configz=Configz(enabled=True)), environment={})
    with pytest.raises(ConfigError, match="no such field"):
        Source(Kubelet(overrides={"policy": "none"}))
