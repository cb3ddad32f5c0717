"""An embedded server with the NodeResourceTopology CRD, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandbox.apiserver import ApiServer
from sandbox.apiserver.client import Client, connect

CRDS = Path(__file__).parents[4] / "charts" / "topowise" / "crds"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(window=8, bookmark_every=0.05) as server:
        server.install_crds(CRDS)
        yield server


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with connect(server.url) as client:
        yield client
