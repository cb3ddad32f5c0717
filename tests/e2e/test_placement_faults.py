"""Faults while gated pods are placed, on a real control plane: no kubelet refuses a pod, no pod is bound elsewhere than
it was placed, and nothing stays booked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from daemons import assert_eventually
from faults import Fault
from gated_cluster import (
    BINDINGS,
    CONTROLLERS,
    JOBS,
    POLICIES,
    REPLICA_SETS,
    SOON_S,
    STATEFUL_SETS,
    GatedCluster,
    nodes_of,
    placed_of,
    workload,
)
from real_cluster import ASSETS, GATED, MISSING, PODS
from sandbox.controlplane import ControlPlane
from topowise.errors import ApiError
from topowise.placement import GATE

if ASSETS is None:
    pytest.skip(MISSING, allow_module_level=True)
pytestmark = pytest.mark.apiserver

JSON = {"Content-Type": "application/json"}
PATCHES = {"method": "PATCH", "path": f"{PODS}/*"}


@pytest.mark.parametrize("how", ["cordoned", "drained", "deleted", "filled"])
async def test_a_node_that_is_lost_between_patch_and_bind(plane: ControlPlane, tmp_path: Path, how: str) -> None:
    """The pod of a ReplicaSet is made anew elsewhere; a bare pod and a Job's pod stay, and the Job has not failed."""
    async with GatedCluster(plane, tmp_path, controllers=CONTROLLERS) as cluster:
        before: dict[str, str] = {}
        if how == "drained":
            await cluster.create(workload("ReplicaSet", "drained", "2"), REPLICA_SETS)
            before = await cluster.bound(1)
        await cluster.stop_scheduler()
        await cluster.add("bare", "4")
        await cluster.create(workload("Job", "job", "4", backoffLimit=0), JOBS)
        replica_set = workload("ReplicaSet", "set", "4")
        replica_set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 3600
        await cluster.create(replica_set, REPLICA_SETS)
        placed = await cluster.placed(3 + len(before))
        nodes = set(placed.values())
        assert len(nodes) < len(cluster.fleet.nodes)
        for number, node in enumerate(sorted(nodes)):
            if how == "deleted":
                await cluster.api.request("DELETE", f"/api/v1/nodes/{node}")
            elif how == "filled":
                await cluster.add(f"foreign-{number}", "", nodeName=node, containers=[burstable("13")])
            else:
                await cluster.cordon(node)
        for name in before:
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            await cluster.create(eviction, f"{PODS}/{name}/eviction")
        await cluster.start_scheduler()

        def elsewhere(pods: list[Any]) -> dict[str, str]:
            return {name: node for name, node in nodes_of(pods).items() if node not in nodes}

        pods = await cluster.until(lambda pods: len(elsewhere(pods)) == 1 + len(before))
        names = {pod["metadata"]["name"] for pod in pods}
        (job,) = (name for name in placed if name.startswith("job"))
        (of_set,) = (name for name in placed if name.startswith("set"))
        assert {"bare", job} <= names
        assert of_set not in names
        await assert_eventually(lambda: was_told(cluster, {"bare", job, of_set}), within=SOON_S)
        assert not json.loads(await cluster.api.request("GET", f"{JOBS}/job"))["status"].get("failed")
        # Their users delete the two others.
        await cluster.delete("bare")
        await cluster.api.request("DELETE", f"{JOBS}/job", query={"propagationPolicy": "Background"})
        await cluster.until(lambda pods: job not in {pod["metadata"]["name"] for pod in pods})
        await cluster.assert_nothing_left()
        assert (await cluster.outcomes())["remade"] == 1


def burstable(cpu: str) -> dict[str, object]:
    return {"name": "app", "image": "none", "resources": {"requests": {"cpu": cpu}}}


async def was_told(cluster: GatedCluster, names: set[str]) -> bool:
    """Whether each of the pods has one event PlacementLost."""
    events = await cluster.events("PlacementLost")
    assert max(events.values(), default=1) == 1
    return events.keys() == names


@pytest.mark.parametrize("moment", ["before the patch", "between nomination and patch", "before the bind"])
async def test_the_leader_is_killed(plane: ControlPlane, tmp_path: Path, moment: str) -> None:
    """The next leader places what was only booked, and places around what was written."""
    form = "nominated" if "nomination" in moment else "required"
    async with GatedCluster(plane, tmp_path, replicas=2, placement={"enabled": True, "form": form}) as cluster:
        leader = await cluster.leads()
        # Not of the status.
        held = Fault("PATCH", f"{PODS}/*[0-9]", swallow=True)
        if moment == "before the bind":
            await cluster.stop_scheduler()
        else:
            cluster.proxies[leader].spoil(held)
        for number in range(6):
            await cluster.add(f"early-{number}", "6")
        if moment == "before the bind":
            await cluster.placed(6)
        else:
            await assert_eventually(lambda: held.hits >= 6, within=SOON_S)
        await cluster.services[leader].kill()
        for number in range(4):
            await cluster.add(f"late-{number}", "6")
        placed = await cluster.placed(8)
        if moment == "before the bind":
            await cluster.start_scheduler()
        assert await cluster.bound(8) == placed
        await cluster.assert_nothing_left(gated=2)


async def test_a_leader_that_was_suspended_writes_nothing_more(plane: ControlPlane, tmp_path: Path) -> None:
    """Its successor cannot place, so that there is work for both when it continues."""
    async with GatedCluster(plane, tmp_path, replicas=2) as cluster:
        leader = await cluster.leads()
        old, new = cluster.proxies[leader], cluster.proxies[1 - leader]
        held = old.spoil(Fault(**PATCHES, swallow=True))
        new.spoil(Fault(**PATCHES, answer=(429, JSON, b'{"kind":"Status","code":429}')))
        for number in range(4):
            await cluster.add(f"early-{number}", "4")
        await assert_eventually(lambda: held.hits >= 4, within=SOON_S)
        os.kill(cluster.services[leader].pid, signal.SIGSTOP)
        await assert_eventually(lambda: leads(cluster, 1 - leader), within=SOON_S)
        for number in range(4):
            await cluster.add(f"late-{number}", "4")
        old.mend()
        resumed = time.monotonic()
        os.kill(cluster.services[leader].pid, signal.SIGCONT)
        await assert_eventually(lambda: cluster.lines("Lost the lease", leader), within=SOON_S)
        await asyncio.sleep(3.0)
        assert [call for call in old.asked if call.at >= resumed and call.method != "GET"] == []
        assert not placed_of(await cluster.pods())
        new.mend()
        await cluster.bound(8)
        await cluster.assert_nothing_left()


async def leads(cluster: GatedCluster, number: int) -> bool:
    return await cluster.leads() == number


async def test_kube_scheduler_preempts_for_a_placed_pod(plane: ControlPlane, tmp_path: Path) -> None:
    """The placed pod is not deleted while the victim takes longer to end than the time after which a pod is lost."""
    async with GatedCluster(plane, tmp_path, 1, controllers=CONTROLLERS) as cluster:
        await cluster.classes(high=10)
        await cluster.stop_scheduler()
        high = workload("ReplicaSet", "high", "6")
        high["spec"]["template"]["spec"]["priorityClassName"] = "high"
        await cluster.create(high, REPLICA_SETS)
        (name,) = await cluster.placed(1)
        await cluster.add(
            "foreign", "", {"finalizers": ["example.com/slow"]}, nodeName="n0", containers=[burstable("13")]
        )
        await cluster.start_scheduler()
        await cluster.until(lambda pods: any(pod["status"].get("nominatedNodeName") for pod in pods))
        await asyncio.sleep(35.0)
        await cluster.patch("foreign", {"metadata": {"finalizers": None}})
        assert await cluster.bound(1) == {name: "n0"}
        assert not await cluster.events("PlacementLost")
        await cluster.assert_nothing_left()


async def test_pods_are_evicted_for_a_gated_pod_of_high_priority(plane: ControlPlane, tmp_path: Path) -> None:
    """In a full cluster; the room that becomes free is kept for the pod."""
    async with GatedCluster(plane, tmp_path, 2, preemptor={"enabled": True}) as cluster:
        await cluster.classes(high=10)
        for number in range(4):
            await cluster.add(f"low-{number}", "6")
        await cluster.bound(4)
        await cluster.add("high", "6", priorityClassName="high")
        await cluster.add("low-4", "6")
        pods = await cluster.until(lambda pods: "high" in nodes_of(pods), within=30.0)
        assert sum(pod["metadata"]["name"].startswith("low") for pod in pods) == 4
        await cluster.assert_nothing_left(gated=1)


async def test_thousands_of_pods_are_placed_in_the_order_of_their_priorities(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """2,000 pods of twenty priorities for 140 places: no pod is placed before one of a higher priority."""
    async with GatedCluster(plane, tmp_path, 20) as cluster:
        priorities = [1 + number * 7 % 20 for number in range(2000)]
        await cluster.classes(**{f"class-{priority}": priority for priority in range(1, 21)})
        await cluster.service.kill()
        pods = [(f"p-{number}", f"class-{priority}") for number, priority in enumerate(priorities)]
        for first in range(0, 2000, 50):
            few = pods[first : first + 50]
            await asyncio.gather(*(cluster.add(name, "2", priorityClassName=of_class) for name, of_class in few))
        await cluster.service.start()
        placed = await cluster.bound(140)
        written = [call.path.rpartition("/")[2] for call in cluster.proxy.asked if call.method == "PATCH"]
        assert sorted(written) == sorted(placed)
        assert [priorities[int(name[2:])] for name in written] == [20] * 100 + [19] * 40
        await cluster.settle()
        assert not cluster.refusals
        assert not cluster.takers((await cluster.waiting())[0])
        await cluster.assert_counts(gated=1860)


async def test_an_api_server_that_is_slow_and_then_throttles(plane: ControlPlane, tmp_path: Path) -> None:
    """What is not written is not booked, and the pods follow within seconds."""
    async with GatedCluster(plane, tmp_path) as cluster:
        cluster.proxy.spoil(Fault(**PATCHES, count=8, delay=1.0))
        cluster.proxy.spoil(Fault(**PATCHES, count=8, delay=3.0))
        refused = Fault(
            **PATCHES, count=20, answer=(429, {**JSON, "Retry-After": "1"}, b'{"kind":"Status","code":429}')
        )
        cluster.proxy.spoil(refused)
        for number in range(24):
            await cluster.add(f"p-{number}", "2")
        await cluster.bound(24)
        assert refused.hits == 20
        assert len(cluster.lines("Cannot place a pod")) <= 3
        await cluster.assert_nothing_left()


async def test_a_patch_that_is_forbidden(plane: ControlPlane, tmp_path: Path) -> None:
    """A policy refuses all placements, and then those of a single pod: a line in the log, few requests, nothing booked,
    and other pods are placed."""
    async with GatedCluster(plane, tmp_path) as cluster:
        await cluster.add("first", "4", schedulingGates=[{"name": GATE}, {"name": "example.com/other"}])
        await refuse(cluster, "true")
        await cluster.patch("first", {"spec": GATED})
        await assert_eventually(lambda: cluster.lines("Cannot place a pod"), within=SOON_S)
        await cluster.add("second", "4")
        since = time.monotonic()
        await asyncio.sleep(5.0)
        assert len(cluster.lines("Cannot place a pod")) == 1
        assert cluster.proxy.count(since, PATCHES["path"]) <= 4
        await cluster.assert_counts(gated=2)
        await refuse(cluster, "object.metadata.name == 'first'")
        for number in range(4):
            await cluster.add(f"more-{number}", "4")
        assert "first" not in await cluster.bound(5)
        await refuse(cluster, "false")
        await cluster.patch("first", {"metadata": {"labels": {"changed": "now"}}})
        await cluster.bound(6)
        await cluster.assert_nothing_left()


async def refuse(cluster: GatedCluster, which: str) -> None:
    """A policy refuses to open the gates of pods that match an expression, from now on."""
    opens = "has(oldObject.spec.schedulingGates) && !has(object.spec.schedulingGates)"
    validations = [{"expression": f"!({opens} && ({which}))", "reason": "Forbidden"}]
    if which == "true":
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}
        spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": validations}
        binding = {"policyName": "p", "validationActions": ["Deny"]}
        for kind, path, fields in (("", POLICIES, spec), ("Binding", BINDINGS, binding)):
            kind = f"ValidatingAdmissionPolicy{kind}"
            document = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "p"}}
            await cluster.create({**document, "spec": fields}, path)
    else:
        await cluster.patch(f"{POLICIES}/p", {"spec": {"validations": validations}})

    async def is_in_force() -> bool:
        refused = {}
        for name in ("first", "second"):
            try:
                await cluster.patch(name, {"spec": {"schedulingGates": None}}, dryRun="All")
            except ApiError as exc:
                refused[name] = exc.status
        return refused.get("first") == (None if which == "false" else 403) and refused.get("second") != 403

    await assert_eventually(is_in_force, within=SOON_S)


async def test_a_patch_that_is_never_valid(plane: ControlPlane, tmp_path: Path) -> None:
    """A tenant's pod whose annotations have no room for another costs a request in half a minute."""
    async with GatedCluster(plane, tmp_path) as cluster:
        await cluster.add("full", "4", {"annotations": {"a": "x" * ((256 << 10) - 1)}})
        await assert_eventually(lambda: cluster.proxy.count(0.0, f"{PODS}/full"), within=SOON_S)
        for number in range(4):
            await cluster.add(f"more-{number}", "4")
        await cluster.bound(4)
        await asyncio.sleep(3.0)
        assert cluster.proxy.count(0.0, f"{PODS}/full") <= 2
        await cluster.delete("full")
        await cluster.assert_nothing_left()


async def test_gates_of_others_and_pods_that_change_while_they_wait(plane: ControlPlane, tmp_path: Path) -> None:
    async with GatedCluster(plane, tmp_path, 2) as cluster:
        for name, cpu, other in (("kueues", "2", "kueue.x-k8s.io/admission"), ("unknown", "8", "example.com/unknown")):
            await cluster.add(name, cpu, schedulingGates=[{"name": GATE}, {"name": other}])
        for name in ("full-a", "full-b"):
            await cluster.add(name, "8")
        await cluster.bound(2)
        # No NUMA node has 8 CPUs any more.
        for name in ("by-hand", "deleted", "edited", "resized"):
            await cluster.add(name, "8")
        query = {"pod": "default/unknown", "view": "waiting"}
        async with cluster.session.get(f"{cluster.service.pages}/explain", params=query) as response:
            assert "gates of other controllers come first: example.com/unknown" in (await response.json())["nextStep"]
        await cluster.patch("kueues", {"spec": {"schedulingGates": [{"name": GATE}]}})
        assert (await cluster.bound(3)).keys() == {"full-a", "full-b", "kueues"}
        await cluster.delete("deleted")
        await cluster.patch("edited", {"metadata": {"labels": {"a": "b"}}, "spec": {"nodeSelector": {"no": "node"}}})
        small = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
        resize = {"spec": {"containers": [{"name": "app", "resources": small}]}}
        await cluster.api.request(
            "PATCH",
            f"{PODS}/resized/resize",
            body=json.dumps(resize).encode(),
            content_type="application/strategic-merge-patch+json",
        )
        await cluster.bound(4)
        await cluster.patch("by-hand", {"spec": {"schedulingGates": None}})
        await cluster.delete("full-a")
        assert (await cluster.bound(4)).keys() == {"by-hand", "full-b", "kueues", "resized"}
        # kube-scheduler alone binds it, and may do so before the kubelet has ended full-a.
        cluster.refusals[:] = [refusal for refusal in cluster.refusals if refusal.pod.metadata.name != "by-hand"]
        await cluster.assert_nothing_left(gated=1)


async def test_pods_that_are_edited_while_they_are_placed(plane: ControlPlane, tmp_path: Path) -> None:
    """Each edit makes a write fail that is under way; none is lost."""
    async with GatedCluster(plane, tmp_path) as cluster:
        cluster.proxy.spoil(Fault(**PATCHES, delay=0.2))

        async def edited(name: str) -> None:
            await cluster.add(name, "2")
            for number in range(4):
                await cluster.patch(name, {"metadata": {"labels": {"edit": str(number)}}})
                await asyncio.sleep(0.05)

        await asyncio.gather(*(edited(f"p-{number}") for number in range(20)))
        await cluster.bound(20)
        assert (await cluster.outcomes())["conflict"] > 0
        await cluster.assert_nothing_left()


async def test_an_ordered_stateful_set(plane: ControlPlane, tmp_path: Path) -> None:
    async with GatedCluster(plane, tmp_path, 2, controllers=CONTROLLERS) as cluster:
        await cluster.create(workload("StatefulSet", "s", "6", replicas=4, serviceName="s"), STATEFUL_SETS)
        assert (await cluster.bound(4)).keys() == {f"s-{number}" for number in range(4)}
        await cluster.assert_nothing_left()
