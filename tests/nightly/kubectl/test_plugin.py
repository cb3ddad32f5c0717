"""The plug-in as users start it: the real kubectl finds it on PATH, and it reads the API server through kubectl."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml

from api_objects import create_pod, publish
from daemons import Start, assert_eventually
from refusal_words import refusals
from sandbox.apiserver import ApiServer
from scheduler_process import Service
from scheduling import configuration, counts, machine, topology_of
from scheduling import pod as pod_of
from topowise import pods
from topowise.kube.api import Api
from topowise_scheduler.kubelet import Kubelet

SCRIPTS = Path(sys.executable).parent


class OncePerChange(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Awaitable[OncePerChange]]


@pytest.fixture
def run(server: ApiServer, tmp_path: Path) -> Run:
    """`kubectl topowise ...` against the server."""
    kubectl = shutil.which("kubectl")
    if kubectl is None or not (SCRIPTS / "kubectl-topowise").exists():
        pytest.skip("no kubectl on PATH, or no kubectl-topowise beside this Python")
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    path = f"{tmp_path}/bin:{SCRIPTS}:{Path(kubectl).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path), "NO_PROXY": "*"}
    # What kubectl starts is measured as well, where anything is.
    environment |= {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}

    async def start(*words: str, plugin: str = "topowise", stdin: str = "") -> OncePerChange:
        process = await asyncio.create_subprocess_exec(
            kubectl,
            plugin,
            *words,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
        return OncePerChange(process.returncode or 0, out.decode(), err.decode())

    return start


def create_node(server: ApiServer, name: str) -> None:
    status = {"allocatable": {"cpu": "7", "memory": "30Gi", "pods": "110"}}
    status["conditions"] = [{"type": "Ready", "status": "True"}]  # type: ignore[assignment]
    server.create("nodes", {"metadata": {"name": name}, "status": status})


@pytest.fixture
async def cluster(server: ApiServer, api: Api) -> None:
    """n1 and n2 have two zones of 4 CPUs each; n1's report includes pod `held`, and pod `late` is newer."""
    kubelet = Kubelet(machine(), configuration())
    pod = create_pod(server, "held", "3", node="n1")
    assert kubelet.admit(msgspec.convert(pod, pods.Pod)).admitted
    for name, node in (("n1", kubelet), ("n2", Kubelet(machine(), configuration()))):
        create_node(server, name)
        await publish(
            api, topology_of(machine(), configuration(), node, name=name, name_of=lambda uid: ("default", "held"))
        )
    create_pod(server, "late", "2", node="n1")


def manifest(tmp_path: Path, *documents: dict[str, Any]) -> str:
    file = tmp_path / "manifest.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return str(file)


async def test_kubectl_finds_it_and_nodes_lists_them(run: Run, cluster: None) -> None:
    assert "topowise" in (await run("list", plugin="plugin")).out
    answer = await run("nodes")
    assert answer.status == 0, answer.err
    head, first, second = answer.out.splitlines()
    assert head.split()[:2] == ["NODE", "POLICY"]
    assert first.split()[:5] == ["n1", "single-numa-node", "container", "exact", "2"]
    # The reported pod has the three CPUs of zone 0 that are not the system's.
    assert "0+4 of 7" in first
    assert "3+4 of 7" in second
    assert (await run("nodes", "-o", "name")).out == "node/n1\nnode/n2\n"
    listed = json.loads((await run("nodes", "-o", "json")).out)
    assert [(row["node"], row["free"]["cpu"]) for row in listed] == [("n1", "4"), ("n2", "7")]


async def test_explain_counts_pods_that_no_report_includes(
    run: Run, cluster: None, server: ApiServer, tmp_path: Path
) -> None:
    create_pod(server, "waits", "4")
    answer = await run("explain", "waits", "-o", "json")
    assert answer.status == 0, answer.err
    verdicts = {row["node"]: row["verdict"] for row in json.loads(answer.out)}
    # By the report alone zone 1 of n1 has four CPUs free.
    assert verdicts == {"n1": "not now", "n2": "fits"}
    assert (await run("explain", "waits", "--node", "n1")).status == 1
    file = manifest(tmp_path, {"kind": "Pod", **pod_of("x", "5")})
    answer = await run("explain", "-f", file)
    assert answer.status == 1
    assert "not even the empty node would do" in answer.out
    answer = await run("explain", "nobody")
    assert answer.status == 2
    assert answer.err.startswith("error: kubectl get --raw /api/v1/namespaces/default/pods/nobody: ")


async def test_explain_asks_the_service_and_says_the_same(
    run: Run, cluster: None, server: ApiServer, tmp_path: Path, start: Start
) -> None:
    service = Service(server, tmp_path)
    await start("topowise_scheduler", "serve", config=service.config)
    await assert_eventually(service.is_ready)
    create_pod(server, "waits", "4")
    url = service.pages
    remote = await run("explain", "waits", "--service", url, "-o", "json")
    assert remote.status == 0, remote.err
    local = await run("explain", "waits", "-o", "json")
    assert json.loads(remote.out) == json.loads(local.out)


async def test_global_flags_are_those_of_kubectl_and_come_before_the_command_too(
    run: Run, cluster: None, server: ApiServer
) -> None:
    create_pod(server, "waits", "4")
    expected = await run("explain", "waits")
    assert expected.status == 0, expected.err
    for words in (("-n", "default", "explain", "waits"), ("--namespace=default", "explain", "waits")):
        assert await run(*words) == expected
    assert (await run("-n", "elsewhere", "explain", "waits")).status == 2
    answer = await run("--context", "nosuch", "nodes")
    assert (answer.status, 'context "nosuch" does not exist' in answer.err) == (2, True), answer.err
    for flag in ("-s", "--server"):
        answer = await run("nodes", flag, "http://127.0.0.1:1")
        assert (answer.status, answer.out, "refused" in answer.err) == (2, "", True)
    answer = await run("--as", "alice", "--as-group", "a", "--as-group", "b", "nodes", "-o", "name", "-v=8")
    assert answer.out == "node/n1\nnode/n2\n"
    sent = [line.split("] ")[-1].strip() for line in answer.err.splitlines() if "Impersonate-" in line]
    assert {"Impersonate-User: alice", "Impersonate-Group: a", "Impersonate-Group: b"} <= set(sent), answer.err


async def test_kinds_are_those_of_the_api_server(run: Run, cluster: None, api: Api) -> None:
    template = {"metadata": {}, "spec": pod_of("x", "2")["spec"]}
    deployment = {"metadata": {"name": "web"}, "spec": {"replicas": 2, "template": template}}
    body = json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", **deployment}).encode()
    await api.request("POST", "/apis/apps/v1/namespaces/default/deployments", body=body)
    for name in ("deploy/web", "deployments.apps/web", "Deployment/web"):
        answer = await run("fits", name, "-o", "json")
        assert answer.status == 0, answer.err
        document = json.loads(answer.out)
        assert (document["pod"], document["fits"]) == ("default/web", 4)
    answer = await run("fits", "nosuchkind/web")
    assert (answer.status, 'the server doesn\'t have a resource type "nosuchkind"' in answer.err) == (2, True), (
        answer.err
    )
    answer = await run("fits", "node/n1")
    assert (answer.status, answer.err) == (2, "error: node/n1: is a Node, which has no pod template\n")


async def test_doctor(run: Run, cluster: None, server: ApiServer, api: Api) -> None:
    answer = await run("doctor", "--patience", "0")
    assert answer.status == 0, answer.out + answer.err
    assert "Looked at 2 reports, 2 nodes, 2 pods: no problem found." in answer.out
    create_node(server, "n3")
    await publish(api, counts("n2", ("8", "8")), "another-exporter")
    message = f"0/3 nodes are available: 3 {refusals.NOT_NOW}."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod = create_pod(server, "waits", "9")
    body = json.dumps({"status": {"conditions": [condition]}}).encode()
    path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
    await api.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    answer = await run("doctor", "--patience", "0")
    assert answer.status == 1, answer.out + answer.err
    assert "node n3: ready, without a NodeResourceTopology" in answer.out
    assert "pod default/waits: waits, cause " in answer.out


async def test_a_cluster_without_reports_and_one_without_an_api_server(
    run: Run, server: ApiServer, tmp_path: Path
) -> None:
    answer = await run("nodes")
    assert (answer.status, answer.out) == (0, "")
    assert "is an exporter running?" in answer.err
    answer = await run("doctor")
    assert answer.status == 1
    assert "cluster: without a NodeResourceTopology" in answer.out
    nowhere = tmp_path / "nowhere"
    nowhere.write_text((tmp_path / "kubeconfig").read_text().replace(server.url, "http://127.0.0.1:1"))
    for words in (("nodes",), ("doctor",), ("explain", "x", "-n", "default")):
        answer = await run(*words, "--kubeconfig", str(nowhere))
        assert answer.status == 2
        assert answer.out == ""
        assert "refused" in answer.err.splitlines()[-1]
