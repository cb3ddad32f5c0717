"""Claims (DRA) beside CPUs: real API server, kube-scheduler and controllers of claims, and the service.

kube-scheduler allocates the first devices of the slice that are free; the kubelets place pods on the lowest NUMA node
that fits.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from claims_cluster import ClaimsCluster, claimed
from real_cluster import ASSETS, MISSING
from sandbox.controlplane import ControlPlane

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

# kube-scheduler takes the devices of NUMA node 1 first, the kubelet the CPUs of NUMA node 0.
CROSSED = (1, 1, 1, 1, 0, 0, 0, 0)


async def test_a_pod_is_steered_to_the_devices_of_its_claim(plane: ControlPlane, tmp_path: Path) -> None:
    async with ClaimsCluster(plane, tmp_path, 2, devices=CROSSED, claims={}) as cluster:
        for number in range(4):
            await cluster.create(claimed(f"p{number}", 1 + number % 2, 2))
            await cluster.until_bound(f"p{number}")
        found = await cluster.alignments()
        assert {name: at.is_aligned for name, at in found.items()} == dict.fromkeys(found, True)
        assert {1} in [at.devices for at in found.values()]
        await cluster.assert_all_well()
        metrics = await cluster.service.metrics(cluster.session)
        shown = {name: count for name, count in metrics.items() if "claim" in name}
        assert metrics['claim_predictions_total{result="right"}'] == 4, shown
