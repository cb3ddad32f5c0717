"""The image of `make images`, run by buildah as in a pod: as an unprivileged user, and nothing of this machine
in reach but its network.

Chroot isolation needs no rights to mount, so it works where this is built; it cannot make a root read-only, which is
the chart's affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

import topowise
from daemons import assert_eventually
from images import application, engines
from sandbox.apiserver import ApiServer
from scheduler_process import Service

ARCHITECTURE = engines.architecture()
IMAGE = f"ghcr.io/topowise/topowise:{topowise.__version__}-{ARCHITECTURE}"
NOBODY = "65532:65532"


@pytest.fixture(scope="module")
def container() -> Iterator[list[str]]:
    """The command prefix that runs a command in the image."""
    if not shutil.which("buildah"):
        pytest.skip("no buildah here: the image is not run")
    engine = engines.named("buildah")
    if not engine.has(IMAGE):
        pytest.skip(f"{IMAGE} is not built: make images")
    name = engine.run("from", "--pull-never", IMAGE)
    yield [*engine.command, "run", "--isolation=chroot", name]
    engine.run("rm", name)


def run(container: list[str], *command: str, user: str = NOBODY) -> subprocess.CompletedProcess[str]:
    words = [*container[:-1], f"--user={user}", container[-1], "--", *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("program", ["topowise-exporter", "topowise-scheduler", "kubectl-topowise"])
def test_each_program_tells_its_version(container: list[str], program: str) -> None:
    assert run(container, program, "--version").stdout.split()[-1] == topowise.__version__


@pytest.mark.parametrize("user", [NOBODY, "0:0"])
def test_the_exporter_reads_this_machine(container: list[str], user: str) -> None:
    done = run(container, "topowise-exporter", "machine", user=user)
    assert json.loads(done.stdout)["nodes"][0]["cpus"], done.stderr


def test_events_of_hardware_have_their_library(container: list[str]) -> None:
    code = "import sys; sys.path.insert(1, '/opt/topowise/lib'); import pyudev; pyudev.Context()"
    assert run(container, "python3", "-c", code).returncode == 0


def test_nothing_to_build_or_install_with_is_left(container: list[str]) -> None:
    done = run(container, "sh", "-c", "command -v cc gcc make pip pip3 apt apt-get; python3 -m pip")
    assert not done.stdout
    assert "No module named pip" in done.stderr


def test_no_user_can_change_the_installed_code(container: list[str]) -> None:
    assert run(container, "sh", "-c", "echo > /opt/topowise/bin/topowise-exporter").returncode


def test_the_archive_has_the_name_that_the_chart_asks_for() -> None:
    archive = application.REPOSITORY / f"dist/topowise-{ARCHITECTURE}.tar"
    if not archive.exists():
        pytest.skip("no image is built: make images")
    values = yaml.safe_load((application.REPOSITORY / "charts/topowise/values.yaml").read_text())
    with tarfile.open(archive) as file:
        manifest = file.extractfile("manifest.json")
        assert manifest is not None
        assert f"{values['image']['repository']}:{topowise.__version__}" in json.load(manifest)[0]["RepoTags"]


def kubeconfig(server: ApiServer, folder: Path, user: dict[str, Any]) -> Path:
    path = server.kubeconfig(folder / "kubeconfig")
    document = yaml.safe_load(path.read_text())
    document["users"] = [{"name": "image", "user": user}]
    document["contexts"][0]["context"]["user"] = "image"
    path.write_text(yaml.safe_dump(document))
    path.chmod(0o644)
    return path


CREDENTIAL = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}
PLUG_IN = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "echo",
    "args": [json.dumps(CREDENTIAL)],
    "interactiveMode": "Never",
}


@asynccontextmanager
async def running(words: list[str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has children, ended with them."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*words, stdout=file, stderr=file, start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 20)


@pytest.mark.parametrize("user", [{"token": "t"}, {"exec": PLUG_IN}], ids=["token", "exec plug-in"])
async def test_the_service_answers(
    container: list[str], server: ApiServer, tmp_path: Path, user: dict[str, Any]
) -> None:
    """With the official client too, of which the image has the part for exec plug-ins alone."""
    server.create("nodes", {"metadata": {"name": "n1"}})
    service = Service(server, tmp_path)
    folder = tmp_path / "config"
    folder.mkdir(mode=0o755)
    kubeconfig(server, folder, user)
    service.config["client"]["kubeconfig"] = "/etc/topowise/kubeconfig"
    (folder / "scheduler.yaml").write_text(yaml.safe_dump(service.config))
    words = [*container[:-1], f"--volume={folder}:/etc/topowise:ro", container[-1], "--", "topowise-scheduler"]
    log = tmp_path / "log"
    words += ["serve", "--config=/etc/topowise/scheduler.yaml"]
    async with running(words, log) as process, aiohttp.ClientSession() as session:

        async def ready_or_gone() -> bool:
            return process.returncode is not None or await service.is_ready()

        await assert_eventually(ready_or_gone, within=60)
        assert process.returncode is None, log.read_text()
        pod = {"metadata": {"name": "p", "namespace": "default", "uid": "p"}, "spec": {"containers": [{"name": "c"}]}}
        answer = await service.ask("filter", pod, ["n1"], session)
        assert answer["NodeNames"] == ["n1"], log.read_text()
