"""An upgrade to the present code, and the rollback: daemons of earlier commits and of now over the same objects.

The earlier daemons run from their own tree, from the Git history, with today's libraries. The tests check
docs/development/releases.md: objects stay compatible both ways; a configuration is accepted or refused with a remedy.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from daemons import Daemon, Start, assert_eventually
from exporter_setup import FakeKubelet, published
from sandbox import controlplane
from sandbox.apiserver import ApiServer
from sandbox.processes import free_ports
from scheduler_process import Listener
from topowise.runtime import config as configuration
from topowise_exporter.configuration import ExporterConfiguration
from topowise_scheduler.configuration import SchedulerConfiguration
from whole_node import attributes

Document = dict[str, Any]

REPOSITORY = Path(__file__).parents[2]
# The last commits of the earlier development rounds, from the first round with these daemons to the newest round.
COMMITS = ["2fce195", "76a534f", "37358e1"]
# Its chart gave the service a token that does not expire, in a Secret.
WITH_SECRET = "91173d3"
_QUIET: dict[str, Any] = {"capture_output": True, "text": True}
PARTS = ("exporter", "plugin", "proto", "charts")
PODS: list[tuple[str, dict[str, str]]] = [
    ("1", {}),
    ("3", {}),
    ("4", {}),
    ("1", {"topowise.io/numa-policy": "restricted"}),
    ("4", {"topowise.io/numa-policy": "single-numa-node"}),
    # Metrics of requeueing, under both names, and of binds.
    ("3", {"topowise.io/woken": "2026-11-21T12:00:00Z", "topowise.io/requeued": "2026-11-22T12:00:00Z"}),
]


@pytest.fixture(scope="module", params=COMMITS)
def earlier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of a commit."""
    commit = request.param
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], check=False, cwd=REPOSITORY, stderr=subprocess.DEVNULL
    )
    if known.returncode:
        pytest.skip("the history is not here (a shallow clone, or an archive): no upgrade is tried")
    folder = tmp_path_factory.mktemp(commit)
    archive = subprocess.run(["git", "archive", commit, *PARTS], check=True, cwd=REPOSITORY, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", folder], check=True, input=archive.stdout)
    return folder


def of(tree: Path | None) -> tuple[str, ...]:
    """Command prefix that runs a daemon of that tree; empty for today's tree (None)."""
    if tree is None:
        return ()
    path = os.pathsep.join(str(tree / part) for part in ("exporter", "plugin", "proto"))
    return ("env", f"PYTHONPATH={path}")


def test_the_earlier_code_is_what_runs(earlier: Path) -> None:
    ask = "import topowise, topowise_exporter, topowise_scheduler as s; print(topowise.__file__, s.__file__)"
    said = subprocess.run([*of(earlier), sys.executable, "-c", ask], check=True, capture_output=True, text=True).stdout
    assert all(Path(path).is_relative_to(earlier) for path in said.split())


@pytest.fixture
def node(server: ApiServer, kubelet: FakeKubelet) -> None:
    server.create("nodes", {"metadata": {"name": "n1"}})
    kubelet.give("a", 2, 3)


def published_content(server: ApiServer) -> Document:
    """The content of an exporter's object, without times."""
    topology = published(server)
    if topology is None:
        return {}
    meta = topology["metadata"]
    return {
        "attributes": attributes(topology),
        "zones": topology["zones"],
        "labels": meta.get("labels"),
        "owners": meta.get("ownerReferences"),
        "annotations": sorted(meta.get("annotations", {})),
    }


async def export(server: ApiServer, start: Start, config: Document, tree: Path | None) -> Document:
    """The content of an exporter's object, without another exporter."""
    async with aiohttp.ClientSession() as session:
        await session.delete(f"{server.url}/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/n1")
    await stopped(await exporting(start, config, tree))
    return published_content(server)


async def exporting(start: Start, config: Document, tree: Path | None) -> Daemon:
    """An exporter that has published."""
    (port,) = free_ports(1)
    settings = {**config, "serving": {"address": "127.0.0.1", "port": port}}
    exporter = await start("topowise_exporter", "run", config=settings, under=of(tree))
    await assert_eventually(lambda: is_ready(port))
    return exporter


async def is_ready(port: int) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status == 200
    return False


async def stopped(daemon: Daemon) -> None:
    assert await daemon.stop() == 0, daemon.log


@pytest.mark.usefixtures("node")
async def test_exporters_take_over_an_object_from_each_other(
    server: ApiServer, start: Start, config: Document, earlier: Path
) -> None:
    now = await export(server, start, config, None)
    before = await export(server, start, config, earlier)
    assert before["zones"][0]["name"] == now["zones"][0]["name"] == "node-0"
    for tree, expected in ((None, now), (earlier, before), (None, now)):
        exporter = await exporting(start, config, tree)
        # No content of the earlier exporter is left, and no writer counts as another writer.
        await assert_eventually(lambda expected=expected: published_content(server) == expected)
        assert not exporter.lines("Another")
        await stopped(exporter)
    topology = published(server)
    assert topology is not None
    assert {entry["manager"] for entry in topology["metadata"]["managedFields"]} == {"topowise-exporter"}


def pod(cpu: str, annotations: dict[str, str]) -> Document:
    amounts = {"cpu": cpu, "memory": "64Mi"}
    containers = [{"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]
    meta = {"name": "p", "namespace": "default", "uid": "p", "annotations": annotations}
    return {"metadata": meta, "spec": {"containers": containers}}


@pytest.mark.usefixtures("node")
async def test_either_service_decides_alike_by_the_report_of_either_exporter(
    server: ApiServer, start: Start, config: Document, earlier: Path, tmp_path: Path
) -> None:
    verdicts = {}
    for written in (earlier, None):
        await export(server, start, config, written)
        for reader in (earlier, None):
            verdicts[written, reader] = await decided(server, start, tmp_path, reader)
    # Of 4 CPUs per NUMA node, 2 are allocated and 1 is reserved: 3 CPUs fit, 4 CPUs do not.
    assert verdicts[None, None] == [True, True, False, True, False, True]
    assert len(set(map(tuple, verdicts.values()))) == 1, verdicts


async def decided(server: ApiServer, start: Start, folder: Path, tree: Path | None) -> list[bool]:
    service = Listener(server.kubeconfig(folder / "kubeconfig"))
    if tree is not None:
        # The earlier service had no separate port for people.
        del service.config["readOnly"]
    process = await start("topowise_scheduler", "serve", config=service.config, under=of(tree))
    await assert_eventually(service.is_ready)
    answers = []
    async with aiohttp.ClientSession() as session:
        for cpu, annotations in PODS:
            body = {"Pod": pod(cpu, annotations), "Nodes": None, "NodeNames": ["n1"]}
            async with session.post(f"{service.prefix}/filter", json=body) as response:
                answer = await response.json(content_type=None)
            assert not answer["Error"], answer
            answers.append(answer["NodeNames"] == ["n1"])
    await stopped(process)
    return answers


RENAMED = re.compile(r"^  \| SchedulerConfiguration \| `(\w+)\.\w+` \| `(\w+)\.\w+` \|$", re.MULTILINE)


def test_the_configuration_of_the_earlier_chart_is_taken_or_refused_by_name(earlier: Path) -> None:
    values = yaml.safe_load((earlier / "charts/topowise/values.yaml").read_text())
    renamed = dict(RENAMED.findall((REPOSITORY / "CHANGELOG.md").read_text()))
    assert renamed["claims"] == "reservations"
    kinds: list[tuple[str, Callable[[bytes], Any]]] = [
        ("ExporterConfiguration", lambda text: configuration.parse(ExporterConfiguration, text)),
        ("SchedulerConfiguration", lambda text: configuration.parse(SchedulerConfiguration, text)),
    ]
    for kind, parse in kinds:
        settings = values[kind.removesuffix("Configuration").lower()]["config"]
        head = {"apiVersion": "topowise.io/v1alpha1", "kind": kind}
        old = sorted(settings.keys() & renamed.keys())
        if old:
            with pytest.raises(configuration.ConfigError) as refused:
                parse(yaml.safe_dump({**head, **settings}).encode())
            assert f"'{old[0]}'" in str(refused.value) and renamed[old[0]] in str(refused.value)
            assert "\n" not in str(refused.value)
        # With the renames of the change log it is accepted.
        parse(yaml.safe_dump({**head, **{renamed.get(name, name): value for name, value in settings.items()}}).encode())


async def test_going_back_with_the_configuration_of_today_is_one_line(
    server: ApiServer, start: Start, earlier: Path, tmp_path: Path
) -> None:
    service = Listener(server.kubeconfig(tmp_path / "kubeconfig"))
    process = await start("topowise_scheduler", "serve", config=service.config, under=of(earlier))
    assert await process.process.wait() != 0
    assert "readOnly" in process.log and "Traceback" not in process.log


HELM = REPOSITORY / "hack/helm"
ASSETS = controlplane.assets("kubectl")
KINDS = (
    "daemonsets,deployments,configmaps,secrets,services,serviceaccounts,roles,rolebindings,networkpolicies,"
    "poddisruptionbudgets"
)


@pytest.fixture(scope="module")
def plane() -> Iterator[controlplane.ControlPlane]:
    if ASSETS is None:
        pytest.skip("no etcd, kube-apiserver and kubectl in $KUBEBUILDER_ASSETS: no chart is upgraded")
    if subprocess.run([HELM, "--find"], check=False, capture_output=True).returncode:
        pytest.skip("no helm: set $HELM, or run hack/helm --fetch")
    with controlplane.ControlPlane(ASSETS) as plane:
        yield plane


@pytest.mark.parametrize("recipe", ["", "default-scheduler", "exporter-only"])
@pytest.mark.parametrize("earlier", [*COMMITS, WITH_SECRET], indirect=True)
def test_helm_upgrades_and_rolls_back(
    plane: controlplane.ControlPlane, earlier: Path, tmp_path: Path, recipe: str
) -> None:
    """The upgrade changes no immutable field, and a rollback restores the objects of before."""
    assert ASSETS is not None
    access = f"--kubeconfig={plane.kubeconfig(tmp_path / 'kubeconfig')}"
    name = f"r{earlier.name[:7]}-{recipe or 'own'}"[:20].rstrip("-")
    now = REPOSITORY / "charts/topowise"

    def helm(verb: str, *arguments: str) -> str:
        done = subprocess.run([HELM, verb, name, *arguments, f"--namespace={name}", access], check=False, **_QUIET)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def objects() -> Document:
        command = [ASSETS / "kubectl", access, f"--namespace={name}", "get", KINDS, "-o", "json"]
        listed = yaml.safe_load(subprocess.run(command, check=True, **_QUIET).stdout)["items"]
        return {
            f"{item['kind']} {item['metadata']['name']}": {
                part: item.get(part) for part in ("spec", "data", "rules", "roleRef", "subjects")
            }
            for item in listed
            # Helm's own Secret, per revision.
            if item.get("type") != "helm.sh/release.v1"
        }

    def values(chart: Path) -> list[str]:
        return [f"--values={chart}/recipes/{recipe}.yaml"] if recipe else []

    then = earlier / "charts/topowise"
    helm("install", str(then), "--create-namespace", *values(then))
    before = objects()
    said = helm("upgrade", str(now), *values(now))
    after = objects()
    # The exporter's objects are unchanged since the earlier charts.
    assert recipe == "exporter-only" or after != before
    helm("rollback", "1")
    assert objects() == before
    helm("upgrade", str(now), *values(now))
    assert objects() == after
    # Pods of the earlier chart use the token in the Secret until they are replaced; after that nothing needs it.
    tokens = {key for key in before if key.startswith("Secret ") and key.endswith("-token")}
    assert bool(tokens) == (earlier.name.startswith(WITH_SECRET) and not recipe)
    assert tokens <= after.keys()
    assert (f"kubectl -n {name} delete secret" in said) == bool(tokens)
    assert "delete secret" not in helm("upgrade", str(now), *values(now))
    assert objects() == {key: part for key, part in after.items() if key not in tokens}
    helm("uninstall")
