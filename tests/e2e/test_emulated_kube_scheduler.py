"""The emulated and the real kube-scheduler on the same API server: equal pods get equal messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from real_cluster import pod
from sandbox.apiserver.client import MERGE, NODES, PODS, Client, connect
from sandbox.controlplane import API_VERSION, ControlPlane, StockScheduler
from sandbox.kubescheduler import KubeScheduler
from topowise.kube import credentials
from topowise.kube.api import Api

pytestmark = pytest.mark.apiserver
STOCK, EMULATED = "stock", "emulated"
TAINT = {"key": "maintenance", "value": "disk", "effect": "NoSchedule"}
NODE_SPECS: dict[str, dict[str, Any]] = {
    "small": {},
    "cordoned": {"unschedulable": True},
    "tainted": {"taints": [TAINT]},
    "cordoned-and-tainted": {"unschedulable": True, "taints": [TAINT]},
}
TOLERATE_ALL = [{"operator": "Exists"}]


def affinity(**term: Any) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


REFUSED_PODS: dict[str, dict[str, Any]] = {
    "large": {"cpu": "16"},
    "large-tolerating": {"cpu": "16", "tolerations": TOLERATE_ALL},
    "selector": {"cpu": "1", "nodeSelector": {"pool": "b"}},
    "selector-tolerating": {"cpu": "1", "nodeSelector": {"pool": "b"}, "tolerations": TOLERATE_ALL},
    "selector-of-tainted": {"cpu": "1", "nodeSelector": {"kubernetes.io/hostname": "tainted"}},
    "affinity": {"cpu": "1", **affinity(matchExpressions=[requirement("pool", "In", "b", "c")])},
    "affinity-not-in": {"cpu": "1", **affinity(matchExpressions=[requirement("pool", "NotIn", "a")])},
    "other-toleration": {"cpu": "16", "tolerations": [{"key": "other", "operator": "Exists"}]},
    # As the DaemonSet controller pins its pods.
    "pinned": {"cpu": "1", **affinity(matchFields=[requirement("metadata.name", "In", "cordoned")])},
}


@pytest.fixture
async def api(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Client]:
    """Four nodes, the real kube-scheduler for pods of `STOCK`, the emulated kube-scheduler for pods of `EMULATED`."""
    profiles = {"apiVersion": API_VERSION, "profiles": [{"schedulerName": STOCK}]}
    kubeconfig = str(plane.kubeconfig(tmp_path / "kubeconfig"))
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(plane.url, plane.token))
        for name, spec in NODE_SPECS.items():
            labels = {"kubernetes.io/hostname": name, "pool": "a"}
            await client.ok("POST", NODES, {"metadata": {"name": name, "labels": labels}, "spec": spec})
            amounts = {"cpu": "8", "memory": "16Gi", "pods": "110"}
            status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
            await client.ok("PATCH", f"{NODES}/{name}/status", {"status": status}, MERGE)
        scheduler = StockScheduler(plane, profiles, tmp_path / "stock")
        await asyncio.to_thread(scheduler.__enter__)
        stack.push_async_callback(asyncio.to_thread, scheduler.__exit__, None, None, None)
        own = await stack.enter_async_context(Api(await credentials.load(kubeconfig), "test"))
        running = asyncio.create_task(KubeScheduler(own, EMULATED, None).run())
        stack.callback(running.cancel)
        yield client


async def message_of(api: Client, name: str, scheduler: str, **spec: Any) -> str:
    """Creates the pod, and returns the message of its condition."""
    await api.ok("POST", PODS, pod(name, **spec, schedulerName=scheduler))
    async with asyncio.timeout(120):
        while True:
            status = (await api.ok("GET", f"{PODS}/{name}"))["status"]
            for condition in status.get("conditions", ()):
                if condition["type"] == "PodScheduled":
                    assert condition["reason"] == "Unschedulable"
                    return str(condition["message"])
            await asyncio.sleep(0.05)


async def test_both_refuse_in_the_same_words(api: Client) -> None:
    messages = {}
    for name, spec in REFUSED_PODS.items():
        messages[name] = [
            await message_of(api, f"{name}-{scheduler}", scheduler, **spec) for scheduler in (STOCK, EMULATED)
        ]
    assert {name: emulated for name, (_, emulated) in messages.items()} == {
        name: stock for name, (stock, _) in messages.items()
    }
