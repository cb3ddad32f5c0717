"""An autoscaler beside a `Cluster`, which adds nodes of a `FakeCloud`.

`real` is cluster-autoscaler with the externalgrpc provider, `cluster-autoscaler` in $CLUSTER_AUTOSCALER or beside
kube-apiserver; without the binary these tests are skipped. `emulated` follows its rules (emulated_autoscaler.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from emulated_autoscaler import EmulatedAutoscaler
from fake_cloud import FakeCloud
from real_cluster import ASSETS, Cluster
from sandbox import controlplane
from sandbox.controlplane import ControlPlane
from sandbox.processes import Process, free_ports
from topowise_scheduler.ledger.nodes import STARTUP_TAINT

BINARY: Final = Path(os.environ.get("CLUSTER_AUTOSCALER") or (ASSETS or Path()) / "cluster-autoscaler")


@asynccontextmanager
async def autoscaler(
    kind: str, plane: ControlPlane, directory: Path, cluster: Cluster, cloud: FakeCloud
) -> AsyncIterator[None]:
    if kind == "emulated":
        async with EmulatedAutoscaler(cluster.api, cloud):
            yield
        return
    config = directory / "cloud.yaml"
    config.write_text(f'address: "{cloud.address}"\n')
    (port,) = free_ports(1)
    arguments = [
        str(BINARY),
        "--cloud-provider=externalgrpc",
        f"--cloud-config={config}",
        f"--kubeconfig={plane.kubeconfig(directory / 'autoscaler', controlplane.ADMIN)}",
        "--leader-elect=false",
        "--scan-interval=2s",
        "--scale-down-enabled=false",
        f"--startup-taint={STARTUP_TAINT}",
        f"--address=127.0.0.1:{port}",
    ]
    process = Process("cluster-autoscaler", arguments, directory / "cluster-autoscaler.log")
    await asyncio.to_thread(process.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(process.__exit__, None, None, None)


@pytest.fixture(params=["real", "emulated"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of autoscaler."""
    if request.param == "real" and not os.access(BINARY, os.X_OK):
        pytest.skip(f"no cluster-autoscaler in $CLUSTER_AUTOSCALER or {ASSETS}")
    return str(request.param)
