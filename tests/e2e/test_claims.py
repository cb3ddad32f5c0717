"""Claims (DRA) beside CPUs: real API server, kube-scheduler and controllers of claims, and the service.

kube-scheduler allocates the first devices of the slice that are free; the kubelets place pods on the lowest NUMA node
that fits.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from burst.service import bucket
from claims_cluster import CLAIMS, CLASSES, DRIVER, TEMPLATES, ClaimsCluster, claimed
from real_cluster import ASSETS, MISSING
from sandbox.controlplane import ControlPlane
from steered_cluster import steered
from topowise.kube.api import MERGE_PATCH

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

HOSTNAME = "kubernetes.io/hostname"
# kube-scheduler takes the devices of NUMA node 1 first, the kubelet the CPUs of NUMA node 0.
CROSSED = (*[1] * 8, *[0] * 8)


REQUIRE = "require"


async def test_pods_are_steered_to_the_devices_of_their_claims(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pods with one to four devices and two to six CPUs among pods without claims, which come and end."""
    async with ClaimsCluster(plane, tmp_path, 3, devices=CROSSED, claims={"alignment": "require"}) as cluster:
        seen = await cluster.run_burst(40, Random(3), (2.0, 5.0))
        assert {name: at for name, at in seen.alignments.items() if not at.is_aligned} == {}
        assert {1} in [at.devices for at in seen.alignments.values()]
        assert not cluster.refusals
        with capsys.disabled():
            print("", len(seen.alignments), seen.seconds, sep="\n  ")  # noqa: T201


@pytest.mark.parametrize("way", ["gate", "extender", "without topowise"])
async def test_a_burst_of_pods_with_claims(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    """`TOPOWISE_BURST=4` is a burst of 2,000 pods; on a busy machine it takes more than the ten minutes of
    faulthandler_timeout."""
    pods = max(60, round(500 * float(os.environ.get("TOPOWISE_BURST", "1")) / 10) * 10)
    ways: dict[str, dict[str, Any]] = {
        "gate": {"claims": {"drivers": [DRIVER]}, "gated": True},
        "extender": {"claims": {}},
        "without topowise": {"extenders": []},
    }
    async with ClaimsCluster(plane, tmp_path, 40, devices=(0, 1) * 8, steers=False, **ways[way]) as cluster:
        scheduler = psutil.Process(cluster.scheduler_pid)
        before = scheduler.cpu_times()
        seen = await cluster.run_burst(pods, Random(5), (4.0, 8.0), markers=False)
        after = scheduler.cpu_times()
        metrics = await cluster.service.metrics(cluster.session)
        filter_ = 'extender_request_duration_seconds{verb="filter"}'
        aligned = sum(at.is_aligned for at in seen.alignments.values())
        figures = {
            "pods": pods,
            "kube-scheduler, ms of CPU a pod": round(
                1000 * (after.user + after.system - before.user - before.system) / pods, 1
            ),
            "pods/s": round(pods / seen.seconds, 1),
            "filter p50 below": bucket(metrics, filter_, 0.5),
            "p99 below": bucket(metrics, filter_, 0.99),
            "seen with claims": len(seen.alignments),
            "aligned, %": round(100 * aligned / max(1, len(seen.alignments)), 1),
            "refused": len(cluster.refusals),
            "looks": seen.looks,
        }
        with capsys.disabled():
            print("", figures, sep="\n  ")  # noqa: T201
        assert seen.twice == set()
        assert seen.looks > 1
        # kube-scheduler alone does not know NUMA nodes.
        if way != "without topowise":
            assert not cluster.refusals
            assert not seen.lost
        assert len(seen.alignments) > pods // 3


async def test_a_pod_leaves_the_devices_that_it_cannot_be_aligned_with(plane: ControlPlane, tmp_path: Path) -> None:
    """Which devices kube-scheduler takes is not known, so the first node is a wrong one: NUMA node 1, where
    kube-scheduler allocates the device, has no CPUs left. The bind is refused, the node is refused to the pod, and
    kube-scheduler takes the allocation back."""
    async with ClaimsCluster(plane, tmp_path, 2, devices=CROSSED, claims={}) as cluster:
        await cluster.create(steered("full", 16, 1, nodeSelector={HOSTNAME: "n0"}))
        await cluster.until_bound("full")
        taint = {"key": "busy", "value": "", "effect": "PreferNoSchedule"}
        body = json.dumps({"spec": {"taints": [taint]}}).encode()
        await cluster.api.request("PATCH", "/api/v1/nodes/n1", body=body, content_type=MERGE_PATCH)
        one = {"name": "one", "deviceClassName": "gpu", "count": 1}
        spec = {"spec": {"devices": {"requests": [{"name": "gpu", "firstAvailable": [one]}]}}}
        template = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "gpus-9"},
            "spec": spec,
        }
        await cluster.create(template, TEMPLATES)
        await cluster.create(claimed("p", 9, 2, alignment=REQUIRE))
        pod = await cluster.until_bound("p")
        assert pod["spec"]["nodeName"] == "n1"
        at = (await cluster.alignments())["p"]
        assert at.cpus == at.devices == {1}
        metrics = await cluster.service.metrics(cluster.session)
        assert metrics['reservations_ended_total{why="conflict"}'] == 1, metrics
        assert not cluster.refusals


async def test_extended_resources_that_claims_back_are_aligned_at_the_bind(plane: ControlPlane, tmp_path: Path) -> None:
    """kube-scheduler makes the claim of such a pod during the bind (DRAExtendedResource)."""
    async with ClaimsCluster(plane, tmp_path, 2, devices=CROSSED, claims={}) as cluster:
        body = json.dumps({"spec": {"extendedResourceName": "example.com/gpu"}}).encode()
        await cluster.api.request("PATCH", f"{CLASSES}/gpu", body=body, content_type=MERGE_PATCH)
        for number in range(3):
            pod = claimed(f"p{number}", 0, 2)
            for amounts in pod["spec"]["containers"][0]["resources"].values():
                amounts["example.com/gpu"] = "1"
            await cluster.create(pod)
            await cluster.until_bound(f"p{number}")
            claims = json.loads(await cluster.api.request("GET", CLAIMS))["items"]
            assert len(claims) == number + 1
            assert cluster.numa(f"p{number}") == {1}
        assert not cluster.refusals
