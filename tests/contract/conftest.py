"""A fixture with two servers: every contract test runs against the embedded API server and, by night, a real one.

The kube-apiserver starts once a session and is shared, so tests take names from `api.name()` and never count a
collection. It is left out if its binaries are absent. The contract, with its texts of messages, is of version 1.36.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox import controlplane
from sandbox.apiserver import ApiServer, documents
from sandbox.apiserver.client import CRDS, NRT, Client, connect

DEFINITIONS = documents.load_all(Path(__file__).parents[2] / "charts" / "topowise" / "crds")


@dataclass
class Cluster:
    """The server under test and how to reach it."""

    url: str
    token: str | None
    write_kubeconfig: Callable[[Path], Path]


@pytest.fixture(scope="session")
def real_control_plane() -> Iterator[controlplane.ControlPlane]:
    folder = controlplane.assets()
    if folder is None:
        pytest.skip("no etcd and kube-apiserver in $KUBEBUILDER_ASSETS")
    with controlplane.ControlPlane(folder) as plane:
        yield plane


# Without the binaries a single test reports it, instead of every test that needs them.
_REAL = pytest.param("real", marks=(pytest.mark.apiserver, pytest.mark.nightly))
_SERVERS = ["embedded", *([_REAL] if controlplane.assets() else [])]


@pytest.fixture(params=_SERVERS)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    if request.param == "embedded":
        async with ApiServer() as server:
            yield Cluster(server.url, None, server.kubeconfig)
    else:
        plane: controlplane.ControlPlane = request.getfixturevalue("real_control_plane")
        yield Cluster(plane.url, plane.token, plane.kubeconfig)


@pytest.fixture
async def api(cluster: Cluster) -> AsyncIterator[Client]:
    """A client of the server under test, which serves the NodeResourceTopology CRD."""
    async with connect(cluster.url, cluster.token) as client:
        for crd in DEFINITIONS:
            reply = await client.call("POST", CRDS, crd)
            assert reply.status in (201, 409), reply.text
        await _until_served(client, NRT)
        yield client


async def _until_served(client: Client, path: str) -> None:
    """A real server takes a moment between creating a CRD and serving it."""
    for _ in range(200):
        if (await client.call("GET", path, limit=1)).status == 200:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{path} is not served")


class Kubectl:
    """kubectl against the server under test: a call answers its stdout, a failure raises with its stderr."""

    def __init__(self, binary: str, environment: dict[str, str]) -> None:
        self._binary = binary
        self._environment = environment

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        process = await self._start(arguments)
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
        assert process.returncode == 0, err.decode()
        return out.decode()

    @asynccontextmanager
    async def lines(self, *arguments: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
        """A kubectl that runs until the block ends: each call of what is yielded answers its next line."""
        process = await self._start(arguments)
        assert process.stdout is not None
        stdout = process.stdout

        async def line() -> str:
            return (await asyncio.wait_for(stdout.readline(), 30)).decode()

        try:
            yield line
        finally:
            process.kill()
            await process.communicate()

    async def _start(self, arguments: tuple[str, ...]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            self._binary,
            *arguments,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture
def kubectl(cluster: Cluster, api: Client, tmp_path: Path) -> Kubectl:
    binary = shutil.which("kubectl")
    if binary is None:
        pytest.skip("no kubectl on PATH")
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig")
    return Kubectl(binary, {"KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path), "NO_PROXY": "*"})
