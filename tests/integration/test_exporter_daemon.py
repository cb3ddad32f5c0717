"""The exporter as a process: publishes at once, then only changes, and survives failures of its surroundings."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from daemons import CRD, Start, assert_eventually
from exporter_setup import NRT, FakeKubelet, available, published
from sandbox.apiserver import ApiServer
from sandbox.kubelet.holdings import Block, ContainerHoldings, PodHoldings
from sandbox.kubelet.podresources import PodsApi
from sandbox.kubelet.state_files import StateFiles
from sandbox.processes import free_ports
from topowise import fingerprint
from topowise_exporter.kubelet.pods_api import REASON as PODS_API
from whole_node import attributes

pytestmark = pytest.mark.own_time

EVENTS = {"logging": {"verbosity": 4}}
"""Logs the events that start a sync; a sync comes each second without them too."""


async def test_it_publishes_at_once_and_says_everything(
    server: ApiServer, start: Start, config: dict[str, Any]
) -> None:
    server.create("nodes", {"metadata": {"name": "n1"}})
    exporter = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: published(server))
    topology = published(server)
    assert topology is not None
    assert topology["apiVersion"] == "topology.node.k8s.io/v1alpha2"
    assert [zone["name"] for zone in topology["zones"] if "resources" in zone] == ["node-0", "node-4"]
    assert attributes(topology)["topologyManagerPolicy"] == "single-numa-node"
    assert topology["metadata"]["ownerReferences"][0]["kind"] == "Node"
    managers = {entry["manager"] for entry in topology["metadata"]["managedFields"]}
    assert managers == {"topowise-exporter"}
    assert available(server) == "3"
    assert await exporter.stop() == 0


@pytest.mark.parametrize("has_node", [True, False])
async def test_a_node_on_which_nothing_changes_makes_no_call(
    server: ApiServer, start: Start, config: dict[str, Any], has_node: bool
) -> None:
    if has_node:
        server.create("nodes", {"metadata": {"name": "n1"}})
    await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: published(server))

    async def is_quiet() -> bool:
        server.journal.clear()
        await asyncio.sleep(1)
        # Without a Node the exporter reads the owner a few times more, with growing intervals.
        return sum(server.requests().values()) <= (0 if has_node else 1)

    await assert_eventually(is_quiet)


@pytest.mark.real_time
async def test_a_kubelet_restart_is_survived_with_one_line(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet
) -> None:
    (port,) = free_ports(1)
    config["serving"] = {"address": "127.0.0.1", "port": port}
    exporter = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: available(server) == "3")
    await kubelet.stop()
    await assert_eventually(lambda: exporter.lines("no such socket"))
    kubelet.give("p", 1)
    await kubelet.start()
    await assert_eventually(lambda: available(server) == "2")
    # The new socket ends the wait, not only the back-off.
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        assert 'topowise_exporter_events_total{reason="kubelet.sock"}' in await response.text()
    assert len(exporter.lines("no such socket")) == 1
    assert len(exporter.lines("Recovered")) == 1


@pytest.mark.parametrize("status", [403, 409, 429, 500])
async def test_a_refused_write_is_tried_again_with_one_line(
    server: ApiServer, start: Start, config: dict[str, Any], status: int
) -> None:
    server.levers.answer(status, method="PATCH", path="*noderesourcetopologies*", count=2)
    exporter = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: published(server))
    (line,) = (line for line in exporter.lines("Cannot publish") if "Recovered" not in line)
    assert str(status) in line
    assert exporter.process.returncode is None


async def test_an_api_server_that_is_down_is_waited_for(
    server: ApiServer, start: Start, config: dict[str, Any]
) -> None:
    server.levers.down()
    exporter = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: exporter.lines("Cannot publish"))
    server.levers.up()
    await assert_eventually(lambda: published(server))


@pytest.mark.real_time
async def test_a_changed_policy_is_published_once_the_kubelet_has_read_it(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet
) -> None:
    exporter = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: published(server))

    def policies() -> set[str]:
        named = (published(server) or {}).get("attributes", [])
        return {attribute["value"] for attribute in named if attribute["name"] == "topologyManagerPolicy"}

    path = Path(config["kubelet"]["configFile"])
    path.write_text(path.read_text().replace("single-numa-node", "restricted"))
    await assert_eventually(lambda: exporter.lines("has changed since the kubelet started"))
    kubelet.give("p", 1)
    await assert_eventually(lambda: available(server) == "2")
    assert policies() == {"single-numa-node"}
    await kubelet.stop()
    await kubelet.start()
    await assert_eventually(lambda: policies() == {"restricted"})


async def test_a_state_file_is_an_event_and_its_finished_init_containers_count(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    files = StateFiles(tmp_path / "root")
    files.write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)
    exporter = await start(
        "topowise_exporter", "run", config={**config, **EVENTS, "kubeletRoot": str(tmp_path / "root")}
    )
    await assert_eventually(lambda: available(server) == "3")
    init = ContainerHoldings("setup", "init", frozenset({4}))
    app = ContainerHoldings("c", "app", frozenset({1}))
    kubelet.pods = (PodHoldings("u1", "default", "p", (init, app)),)
    files.write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)
    # CPU 4 is in the state file alone, because List does not show init containers.
    await assert_eventually(lambda: available(server) == "1")
    assert exporter.lines('"Event" reason="cpu_manager_state"')
    kubelet.pods = ()
    (tmp_path / "root/device-plugins/kubelet_internal_checkpoint").touch()
    await assert_eventually(lambda: available(server) == "3")
    assert exporter.lines('"Event" reason="kubelet_internal_checkpoint"')
    assert exporter.process.returncode is None


@pytest.mark.real_time
async def test_state_files_deleted_under_running_pods_never_make_the_node_look_free(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    running = (PodHoldings("u1", "default", "p", (ContainerHoldings("c", "app", frozenset({1, 4})),)),)
    without = (PodHoldings("u1", "default", "p", (ContainerHoldings("c", "app"),)),)
    later = PodHoldings("u2", "default", "q", (ContainerHoldings("c", "app", frozenset({5})),))
    for uid in ("u1", "u2"):
        (root / "pods" / uid).mkdir(parents=True)

    def restarted_with(pods: tuple[PodHoldings, ...]) -> None:
        kubelet.pods = pods
        StateFiles(root).write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)

    restarted_with(running)
    await start("topowise_exporter", "run", config={**config, "kubeletRoot": str(root)})
    await assert_eventually(lambda: available(server) == "1")
    watch = server.store.watch(NRT, server.store.number)
    await kubelet.stop()
    for name in ("cpu_manager_state", "memory_manager_state"):
        (root / name).unlink()
    # A kubelet that starts writes new files, lists nothing until it has received its pods, and admits them again.
    restarted_with(())
    await kubelet.start()
    await asyncio.sleep(1.5)
    kubelet.pods = without
    await asyncio.sleep(0.5)
    restarted_with((*running, later))
    await assert_eventually(lambda: available(server) == "0")
    objects = [event.revision.object for event in watch.take()]
    assert {_free_cpus(topology) for topology in objects} == {"1", "0"}
    assert "topowise.io/unconfirmed" not in attributes(objects[-1])


def _free_cpus(topology: dict[str, Any]) -> str:
    (zone,) = [zone for zone in topology["zones"] if zone["name"] == "node-0"]
    return str(next(amount["available"] for amount in zone["resources"] if amount["name"] == "cpu"))


@pytest.mark.parametrize("state_files", [False, True], ids=["by List alone", "with state files"])
async def test_a_pod_resized_in_place_keeps_its_name_and_changes_its_numbers(
    server: ApiServer,
    start: Start,
    config: dict[str, Any],
    kubelet: FakeKubelet,
    tmp_path: Path,
    state_files: bool,
) -> None:
    files = StateFiles(tmp_path / "root")

    def resized(cpus: set[int], memory: int) -> None:
        block = Block("memory", (0,), memory)
        container = ContainerHoldings("c", "app", frozenset(cpus), (block,))
        kubelet.pods = (PodHoldings("u1", "default", "p", (container,)),)
        # A kubelet writes its managers' state at a resize, and no device checkpoint.
        files.write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)

    def shown() -> tuple[str | None, str | None, str, list[Any]]:
        topology = published(server) or {}
        named = attributes(topology)
        holdings = json.loads(named.get("topowise.io/holdings", "[]"))
        containers = [container[:3] for container in holdings[0][2]] if holdings else []
        memory = available(server, resource="memory") if topology else None
        cpu = available(server) if topology else None
        return cpu, memory, named.get("nodeTopologyPodsFingerprint", ""), containers

    half = 1 << 28
    resized({1}, half)
    root = str(tmp_path / "root") if state_files else ""
    await start("topowise_exporter", "run", config={**config, "kubeletRoot": root})
    same_pods = fingerprint.of([("default", "p")])
    await assert_eventually(lambda: shown() == ("2", str(half), same_pods, [["c", "1", [["memory", "0", half]]]]))
    # Up, with InPlacePodVerticalScalingExclusiveCPUs and -Memory: more of both, the first CPU stays.
    resized({1, 4}, 2 * half)
    expected = ("1", "0", same_pods, [["c", "1,4", [["memory", "0", 2 * half]]]])
    await assert_eventually(lambda: shown() == expected, within=2.0)
    # And down again.
    resized({1}, half)
    await assert_eventually(lambda: shown()[:2] == ("2", str(half)), within=2.0)
    assert shown()[2:] == (same_pods, [["c", "1", [["memory", "0", half]]]])


@pytest.mark.real_time
async def test_the_end_of_a_pod_is_published_at_once_where_the_kubelet_has_a_pods_api(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "pods-api").mkdir(parents=True)
    pods_api = PodsApi(kubelet.holdings)
    kubelet.give("p", 1, 4)
    exporter = await start("topowise_exporter", "run", config={**config, **EVENTS, "kubeletRoot": str(root)})
    await assert_eventually(lambda: available(server) == "1")
    await pods_api.start(root / "pods-api/pods-api.sock")
    await assert_eventually(lambda: pods_api.watchers)
    await asyncio.sleep(0.2)
    kubelet.pods = ()
    pods_api.changed()
    await assert_eventually(lambda: available(server) == "3", within=1.0)
    assert exporter.lines(f'"Event" reason="{PODS_API}"')
    # A kubelet that restarts is watched again.
    await pods_api.stop()
    again = PodsApi(kubelet.holdings)
    await again.start(root / "pods-api/pods-api.sock")
    await assert_eventually(lambda: again.watchers)
    kubelet.give("q", 1)
    again.changed()
    await assert_eventually(lambda: available(server) == "2", within=1.0)
    assert await exporter.stop() == 0
    await assert_eventually(lambda: not again.watchers)
    await again.stop()


async def test_sighup_reads_the_machine_anew(server: ApiServer, start: Start, config: dict[str, Any]) -> None:
    exporter = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: published(server))
    pages = Path(config["sysfsRoot"]) / "devices/system/node/node0/hugepages/hugepages-2048kB"
    pages.mkdir(parents=True)
    (pages / "nr_hugepages").write_text("8\n")
    exporter.process.send_signal(signal.SIGHUP)

    def has_pages() -> bool:
        resources = (published(server) or {"zones": [{"resources": []}]})["zones"][0]["resources"]
        return {"hugepages-2Mi", str(8 * 2 << 20)} <= {text for resource in resources for text in resource.values()}

    # The next timed scan is a minute away.
    await assert_eventually(has_pages, within=30)


async def test_an_object_that_is_deleted_or_changed_is_written_anew(
    server: ApiServer, start: Start, config: dict[str, Any]
) -> None:
    exporter = await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: published(server))
    url = f"{server.url}/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n1"
    async with aiohttp.ClientSession() as session:
        await session.delete(url)
        await assert_eventually(lambda: exporter.lines("it was deleted"))
        await assert_eventually(lambda: published(server))
        replacement = {"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "zones": []}
        query = {"fieldManager": "resource-topology-exporter", "force": "true"}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        async with session.patch(url, params=query, data=json.dumps(replacement), headers=headers) as answer:
            assert answer.status == 200
    await assert_eventually(lambda: exporter.lines("Somebody else writes"))
    assert "resource-topology-exporter" in exporter.lines("Somebody else writes")[0]
    await assert_eventually(lambda: (published(server) or {"zones": []})["zones"])


def free_for_volcano(server: ApiServer) -> str | None:
    topologies = list(server.store.objects("numatopologies.nodeinfo.volcano.sh"))
    return topologies[0]["spec"]["numares"]["cpu"].get("allocatable", "") if topologies else None


@pytest.mark.real_time
async def test_volcanos_object_is_as_fresh_as_ours_and_as_silent(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    server.install_crds(CRD.with_name("numatopologies.yaml"))
    files = StateFiles(tmp_path / "root")
    files.write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)
    volcano = {**config, **EVENTS, "numatopology": True, "kubeletRoot": str(tmp_path / "root")}
    exporter = await start("topowise_exporter", "run", config=volcano)
    await assert_eventually(lambda: (available(server), free_for_volcano(server)) == ("3", "1-7"))
    stamps = set()
    for name, cpus, expected in (("p", (1, 4), ("1", "2-3,5-7")), ("q", (5,), ("0", "2-3,6-7"))):
        kubelet.give(name, *cpus)
        files.write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)
        await assert_eventually(lambda e=expected: (available(server), free_for_volcano(server)) == e, within=1.0)
        assert exporter.lines('"Event" reason="cpu_manager_state"')
        (numatopology,) = server.store.objects("numatopologies.nodeinfo.volcano.sh")
        assert [allocation["name"] for allocation in numatopology["spec"]["podAllocations"]][-1] == name
        stamps.add(numatopology["metadata"]["annotations"]["timestamp"])
    # The same state written again, a second later: nothing is new, so no timestamp either.
    before = server.writes()
    await asyncio.sleep(1.1)
    files.write(kubelet.holdings(), cpu_policy="static", memory_policy="None", admitted=True)
    await asyncio.sleep(0.5)
    assert server.writes() == before
    (numatopology,) = server.store.objects("numatopologies.nodeinfo.volcano.sh")
    assert numatopology["metadata"]["annotations"]["timestamp"] in stamps


async def test_a_configuration_that_cannot_be_used_ends_it_with_one_line(start: Start, config: dict[str, Any]) -> None:
    exporter = await start("topowise_exporter", "run", config={**config, "nodename": "x"})
    assert await exporter.process.wait() == 1
    assert exporter.log.startswith("error: ")
    assert "nodename" in exporter.log
    assert exporter.log.count("\n") == 1


@pytest.fixture
def checkpointed(tmp_path: Path, kubelet: FakeKubelet) -> FakeKubelet:
    """A kubelet with a pod, and with its state files beside the folder of its socket."""
    app, init = ContainerHoldings("c", "app", frozenset({1})), ContainerHoldings("setup", "init", frozenset({4}))
    kubelet.pods = (PodHoldings("u1", "default", "p", (app, init)),)
    files = StateFiles(tmp_path)
    files.write(kubelet.holdings(), cpu_policy="static", memory_policy="Static", admitted=True)
    return kubelet


@pytest.mark.parametrize("prefix", ["unix://", "unix:"])
async def test_once_reads_the_state_files_however_the_socket_is_spelled(
    start: Start, config: dict[str, Any], checkpointed: FakeKubelet, prefix: str
) -> None:
    arguments = ["--sysfs-root", config["sysfsRoot"], "--procfs-root", config["procfsRoot"], "-o", "json"]
    arguments += ["--kubelet-config", config["kubelet"]["configFile"], "--node-name", "x", "--podresources-socket"]
    printed = [
        await start("topowise_exporter", "once", *arguments, socket)
        for socket in (str(checkpointed.socket), f"{prefix}{checkpointed.socket}")
    ]
    assert [await daemon.process.wait() for daemon in printed] == [0, 0]
    objects = [json.loads(daemon.log) for daemon in printed]
    # List does not show init containers: only the state file shows that CPU 4 is allocated.
    cpu = next(resource for resource in objects[1]["zones"][0]["resources"] if resource["name"] == "cpu")
    assert cpu["available"] == "1"
    assert objects[1] == objects[0]


async def test_once_says_that_it_has_no_state_files(
    start: Start, config: dict[str, Any], kubelet: FakeKubelet, tmp_path: Path
) -> None:
    arguments = ["--sysfs-root", config["sysfsRoot"], "--procfs-root", config["procfsRoot"], "--node-name", "x"]
    arguments += ["--kubelet-config", config["kubelet"]["configFile"]]
    printed = await start("topowise_exporter", "once", *arguments, "--podresources-socket", str(kubelet.socket))
    assert await printed.process.wait() == 0
    said = f"warning: {tmp_path}/cpu_manager_state: missing; printing what the socket alone reports"
    assert printed.lines("cpu_manager_state") == [said]


@pytest.mark.usefixtures("checkpointed")
async def test_once_prints_what_run_would_publish_with_the_same_configuration(
    server: ApiServer, start: Start, config: dict[str, Any], tmp_path: Path
) -> None:
    config |= {"kubeletRoot": str(tmp_path), "exclude": {"resources": ["hugepages-*", "memory"]}}
    await start("topowise_exporter", "run", config=config)
    await assert_eventually(lambda: published(server))
    there = published(server)
    assert there is not None
    printed = await start("topowise_exporter", "once", "-o", "json", config=config)
    assert await printed.process.wait() == 0
    topology = json.loads(printed.log)
    assert topology["metadata"]["name"] == "n1"
    assert "memory" not in {resource["name"] for resource in topology["zones"][0]["resources"]}
    assert (topology["zones"], topology["attributes"]) == (there["zones"], there["attributes"])
    # The command line takes precedence over the file.
    named = await start("topowise_exporter", "once", "-o", "json", "--node-name", "other", config=config)
    assert await named.process.wait() == 0
    assert json.loads(named.log)["metadata"]["name"] == "other"


async def test_only_pods_of_the_own_node_are_annotated_with_their_placement(
    server: ApiServer, start: Start, config: dict[str, Any], kubelet: FakeKubelet
) -> None:
    for name, node in (("here", "n1"), ("elsewhere", "n2")):
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        server.create("pods", {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        kubelet.give(name, 1 if name == "here" else 4)
    await start("topowise_exporter", "run", config={**config, "podPlacements": True})

    def shown() -> dict[str, str | None]:
        return {
            pod["metadata"]["name"]: pod["metadata"].get("annotations", {}).get("kai.scheduler/numa-placement-observed")
            for pod in server.store.objects("pods")
        }

    placed = '[{"zone":"node-0","amount":{"cpu":"1"}}]'
    await assert_eventually(lambda: shown()["here"] == placed)
    # The list of the node's pods does not contain this pod; the exporter does not write to it again.
    await asyncio.sleep(1.5)
    assert shown()["elsewhere"] is None
    refused = [entry for entry in server.log() if entry.request.path.endswith("/pods/elsewhere")]
    assert {entry.status for entry in refused} == {422}
    assert len(refused) == 1
