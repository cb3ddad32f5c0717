"""The demo's cluster, played with kubectl: `explain` predicts what the scheduler then does with each pod."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from demo.cluster import REPOSITORY, Cluster

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
TRY = REPOSITORY / "hack/demo/try"
NODES = {"metal-2s", "metal-snc", "metal-uneven", "metal-cxl"}
# kube-scheduler's reasons that depend on the Node object alone.
EXCLUDED = re.compile(r"(\d+) node\(s\) (?:were unschedulable|had untolerated taint|didn't match Pod's node affinity)")


class Player:
    """Runs kubectl and its plug-in against the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "HOME": str(cluster.directory)}

    async def run(self, *command: str) -> str:
        self._cluster.processes.check()
        ran = await asyncio.to_thread(
            subprocess.run, command, env=self._environment, cwd=REPOSITORY, capture_output=True, text=True, timeout=120
        )
        # `explain` ends with 1 for a pod that fits nowhere.
        assert ran.returncode == 0 or ran.stdout.startswith("["), f"{command}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    async def kubectl(self, *arguments: str) -> str:
        return await self.run("kubectl", *arguments)

    async def topowise(self, *arguments: str) -> str:
        return await self.run(sys.executable, "-m", "topowise_scheduler.presentation.kubectl", *arguments)

    async def pods(self) -> dict[str, Any]:
        items = json.loads(await self.kubectl("get", "pods", "-o", "json"))["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    async def until(self, check: Callable[[dict[str, Any]], bool], event: str) -> dict[str, Any]:
        """Returns the pods once `check` accepts them."""
        try:
            async with asyncio.timeout(120):
                while not check(pods := await self.pods()):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{event}: {json.dumps(pods, indent=1)}") from None
        return pods

    async def create(self, path: Path) -> str:
        """Creates the pod of a manifest; asserts that its node is a node that `explain` names, and returns it."""
        explained = json.loads(await self.topowise("explain", "-f", str(path), "-o", "json"))
        fitting = {entry["node"] for entry in explained if entry["verdict"] == "fits"}
        excluded = sum(entry["verdict"] == "excluded" for entry in explained)
        name = yaml.safe_load(path.read_text())["metadata"]["name"]
        await self.kubectl("apply", "-f", str(path))
        pod = (await self.until(lambda pods: bool(_decision(pods[name])), f"a decision about {name}"))[name]
        node: str = pod["spec"].get("nodeName", "")
        if fitting:
            assert node in fitting, explained
        else:
            assert not node, explained
            message = _decision(pod)["message"]
            assert sum(map(int, EXCLUDED.findall(message))) == excluded, message
        return node


def _decision(pod: dict[str, Any]) -> dict[str, Any]:
    """Returns the condition PodScheduled, empty before the first attempt."""
    conditions = pod["status"].get("conditions", ())
    return next((entry for entry in conditions if entry["type"] == "PodScheduled"), {})


def _running(pods: dict[str, Any], prefix: str) -> dict[str, str]:
    """Returns the nodes of the running pods whose names begin with `prefix`."""
    return {
        name: pod["spec"]["nodeName"]
        for name, pod in pods.items()
        if name.startswith(prefix)
        and pod["status"]["phase"] == "Running"
        and "deletionTimestamp" not in pod["metadata"]
    }


@pytest.fixture
async def player() -> AsyncIterator[Player]:
    # The path of a socket must be short.
    directory = tempfile.TemporaryDirectory(prefix="demo-", dir="/tmp")
    cluster = Cluster(Path(directory.name))
    try:
        await cluster.start_api_server()
        await cluster.start_kubelets()
        await cluster.start_scheduler()
        await cluster.start_exporters()
        await cluster.start_control_plane()
        async with await cluster.api() as api:
            await cluster.until_reported(api)
        yield Player(cluster)
    finally:
        await cluster.processes.stop()
        directory.cleanup()


def _manifest(folder: Path, name: str, cpu: int, **spec: Any) -> Path:
    pod = yaml.safe_load((TRY / "placed.yaml").read_text())
    amounts = {"cpu": cpu, "memory": "1Gi"}
    pod["metadata"]["name"] = name
    pod["spec"] |= spec
    pod["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(pod))
    return path


async def test_explain_and_the_scheduler_agree(player: Player, tmp_path: Path) -> None:
    # Cordon and taint: a pod goes elsewhere, or waits.
    await player.kubectl("cordon", "metal-2s")
    assert await player.create(_manifest(tmp_path, "cordoned", 30)) == ""
    await player.kubectl("taint", "node", "metal-snc", "metal-uneven", "maintenance=disk:NoSchedule")
    assert await player.create(_manifest(tmp_path, "tainted", 24)) == "metal-cxl"
    tolerations = [{"key": "maintenance", "operator": "Exists"}]
    assert await player.create(_manifest(tmp_path, "tolerating", 24, tolerations=tolerations)) == ""
    for label, node in (("metal-snc", ""), ("metal-cxl", "metal-cxl"), ("metal-2s", "")):
        selector = {"kubernetes.io/hostname": label}
        assert await player.create(_manifest(tmp_path, f"on-{label}", 2, nodeSelector=selector)) == node
    await player.kubectl("taint", "node", "metal-snc", "metal-uneven", "maintenance-")
    await player.until(lambda pods: "on-metal-snc" in _running(pods, "on-"), "the pod after the taint")
    await player.kubectl("delete", "pod", "--all")

    # A Deployment: its pods come again after a drain.
    await player.kubectl("create", "deployment", "api", "--image=registry.k8s.io/pause:3.10", "--replicas=2")
    first = _running(await player.until(lambda pods: len(_running(pods, "api-")) == 2, "two pods"), "api-")
    drained = next(iter(first.values()))
    assert drained != "metal-2s"
    await player.kubectl("drain", drained)
    pods = await player.until(lambda pods: len(_running(pods, "api-")) == 2, "two pods again")
    assert drained not in _running(pods, "api-").values()
    await player.kubectl("uncordon", drained)


async def test_the_plan_of_defrag_and_a_preemption_make_room(player: Player) -> None:
    await player.kubectl("cordon", *sorted(NODES - {"metal-cxl"}))
    await player.kubectl("apply", "-f", str(TRY / "batch.yaml"))
    await player.until(lambda pods: len(_running(pods, "batch-")) == 3, "three pods on metal-cxl")
    await player.kubectl("uncordon", "metal-snc", "metal-uneven")
    assert await player.create(TRY / "wide.yaml") == ""

    # By hand: the plan names a pod, and its replacement goes where the plan says.
    plan = await player.topowise("defrag", "-f", str(TRY / "wide.yaml"))
    step = re.search(r"^1 +default/(\S+) +metal-cxl +(\S+)", plan, re.MULTILINE)
    assert step is not None, plan
    await player.kubectl("delete", "pod", step[1], "--wait=false")
    pods = await player.until(
        lambda pods: len(_running(pods, "batch-")) == 3 and bool(_running(pods, "wide")), "the waiting pod"
    )
    assert _running(pods, "batch-")[step[1]] == step[2]
    assert _running(pods, "wide") == {"wide": "metal-cxl"}

    # The preemptor: less important pods leave for a pod that lacks only alignment, and come again elsewhere.
    await player.kubectl("delete", "pod", "wide")
    await player.kubectl("cordon", "metal-snc", "metal-uneven")
    await player.kubectl("delete", "pod", step[1], "--wait=false")
    await player.until(
        lambda pods: list(_running(pods, "batch-").values()) == ["metal-cxl"] * 3, "three pods on metal-cxl again"
    )
    await player.kubectl("uncordon", "metal-snc", "metal-uneven")
    await player.kubectl("apply", "-f", str(TRY / "urgent.yaml"))
    pods = await player.until(
        lambda pods: len(_running(pods, "batch-")) == 3 and bool(_running(pods, "urgent")), "the urgent pod"
    )
    assert _running(pods, "urgent") == {"urgent": "metal-cxl"}
    assert len(set(_running(pods, "batch-").values())) == 2
    events = await player.kubectl("get", "events")
    assert "Preempting" in events, events
