"""Fixtures of the end-to-end tests, which run real processes (`make e2e`)."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemons import Start, api, server, start
from exporter_setup import FakeKubelet, config, kubelet
from faults.site import Site, site
from kept_demo import environment
from real_cluster import control_plane
from sandbox.apiserver import ApiServer
from sandbox.controlplane import ControlPlane

__all__ = ["api", "config", "environment", "kubelet", "server", "start"]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as running:
        yield running


@pytest.fixture
async def place(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> AsyncIterator[Site]:
    async with site(server, start, config, kubelet, tmp_path) as place:
        yield place
