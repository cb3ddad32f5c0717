"""The two walks of docs/architecture.md match the calls of the code, and are as short as the page says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from prometheus_client import CollectorRegistry

import topowise
import topowise_exporter
import topowise_scheduler
from exporter_setup import KUBELET_FILE, MACHINE, FakeKubelet
from sandbox import machines
from scheduling import NoApi, Service, exact, kubelet, pod, scope
from topowise import pods
from topowise.errors import ApiError
from topowise.runtime.config import API_VERSION
from topowise_exporter.conditions import Conditions
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.daemon import Exporter
from topowise_exporter.kubelet.podresources import PodResources
from topowise_exporter.kubelet.settings import Kubelet, Source
from topowise_exporter.metrics import Metrics
from topowise_exporter.observe import Observer
from topowise_exporter.publisher import Publisher
from topowise_exporter.triggers import Trigger
from topowise_scheduler.ledger import watch
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.extender.callers import Callers

PAGE = (Path(__file__).resolve().parents[3] / "docs/architecture.md").read_text()
PACKAGES = [str(Path(str(package.__file__)).parent) for package in (topowise, topowise_exporter, topowise_scheduler)]


class Call(NamedTuple):
    file: str
    function: str


class Walk:
    """The functions of the product that are called while it is entered, in order.

    A coroutine that goes on is no call, and neither is a comprehension, which later Pythons do not call.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._frames: set[Any] = set()

    def __enter__(self) -> Walk:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        package = next((directory for directory in PACKAGES if file.startswith(directory)), None)
        if event == "call" and package is not None and frame not in self._frames:
            self._frames.add(frame)
            if frame.f_code.co_name in ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"):
                return
            self.calls.append(Call(file[len(package) + 1 :], frame.f_code.co_qualname))

    @property
    def files(self) -> int:
        return len({call.file for call in self.calls})


class Server(NoApi):
    """Takes what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    async def request(self, method: str, path: str, *, body: bytes = b"", **_: Any) -> bytes:
        if method == "GET" and "/nodes/" not in path:
            raise ApiError(404, "NotFound", "none", request=path)
        self.written.append(body)
        return b'{"metadata":{"name":"n1","uid":"u"}}'


def chain(title: str) -> list[Call]:
    """The lines of a walk on the page: file, function, and what it is for."""
    match = re.search(rf"^\*\*{re.escape(title)}.*?```text\n(.*?)^```", PAGE, re.M | re.S)
    assert match is not None, title
    return [Call(*line.split()[:2]) for line in match[1].splitlines()]


def figures(title: str) -> tuple[int, int]:
    """Calls and files of a walk on the page."""
    match = re.search(rf"^\| {re.escape(title)} \| (\d+) calls in (\d+) files \|", PAGE, re.M)
    assert match is not None, title
    return int(match[1]), int(match[2])


def missing(expected: list[Call], walked: Iterator[Call]) -> Call | None:
    """The first expected call that does not follow its predecessors."""
    return next((call for call in expected if call not in walked), None)


def assert_as_written(title: str, walk: Walk) -> None:
    assert missing(chain(title), iter(walk.calls)) is None
    calls, files = figures(title)
    assert len(walk.calls) == pytest.approx(calls, rel=0.1)
    assert walk.files == pytest.approx(files, abs=2)


async def call_verb(app: http.Application, verb: str, document: dict[str, Any]) -> Any:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(document).encode()}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope(f"/{verb}"), receive, send)
    return json.loads(sent[-1]["body"])


async def test_a_pod_from_filter_to_bind() -> None:
    """Of three nodes that our exporter reports; a pod of another shape has been asked about before."""
    service, server = Service("TightFit"), Server()
    names = ["n1", "n2", "n3"]
    for name in names:
        service.report(exact(kubelet(), name=name))
    app = http.Application(service.served(server), http.Metrics(CollectorRegistry()), 1 << 20, Callers(()))
    ask: Callable[[str, str], Awaitable[Any]] = lambda verb, cpu: call_verb(  # noqa: E731
        app, verb, {"Pod": pod(f"p{cpu}", cpu), "NodeNames": names}
    )
    await ask("filter", "1")
    await ask("prioritize", "1")
    service.ledger.drop_pod("uid-p1")
    with Walk() as filtering:
        answer = await ask("filter", "2")
    assert answer["NodeNames"] == names
    with Walk() as scoring:
        scores = await ask("prioritize", "2")
    best = max(scores, key=lambda score: score["Score"])["Host"]
    args = {"PodName": "p2", "PodNamespace": "default", "PodUID": "uid-p2", "Node": best}
    with Walk() as binding:
        assert await call_verb(app, "bind", args) == {"Error": ""}
    assert json.loads(server.written[-1])["target"]["name"] == best
    assert_as_written("`POST /filter`", filtering)
    assert_as_written("`POST /prioritize`", scoring)
    assert_as_written("`POST /bind`", binding)


def test_a_watch_event_of_a_report() -> None:
    """Of a node with one pod more than in the report before, and of a node without any change."""
    service, node = Service("TightFit"), kubelet()
    consumer = watch._Reports(service.ledger, Nodes())
    list(consumer.release())

    def apply(version: str) -> Walk:
        raw = msgspec.json.encode(exact(node, version))
        with Walk() as walk:
            consumer.apply("MODIFIED", consumer.decode(raw))
        return walk

    apply("1")
    unchanged = apply("2")
    node.admit(pods.decode(msgspec.json.encode(pod("p", "2"))))
    service.put(pod("p", "2", node="n1"))
    for title, walk in (
        ("watch event of a report, a pod more", apply("3")),
        ("watch event of a report, another resourceVersion alone", unchanged),
    ):
        calls, files = figures(title)
        assert len(walk.calls) == pytest.approx(calls, rel=0.1)
        assert walk.files == pytest.approx(files, abs=2)


def give(node: FakeKubelet, root: Path) -> None:
    """The kubelet admits a pod with CPU 1, as a whole."""
    (root / "pods/u").mkdir(parents=True)
    state = {"policyName": "static", "defaultCpuSet": "0,2-7", "entries": {"u": {"c": "1"}}, "checksum": 0}
    (root / "cpu_manager_state").write_text(json.dumps(state))
    node.give("p", 1)


async def test_the_bytes_of_list_to_the_object(tmp_path: Path) -> None:
    """A pod comes to a node of two NUMA nodes that is watched already."""
    sysfs, procfs = machines.write_tree(MACHINE, tmp_path / "machine")
    config = tmp_path / "kubelet.yaml"
    config.write_text(KUBELET_FILE + "topologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\n")
    node = FakeKubelet(tmp_path / "kubelet.sock")
    settings = ExporterConfiguration(
        apiVersion=API_VERSION,
        node_name="n1",
        sysfs_root=str(sysfs),
        procfs_root=str(procfs),
        podresources_socket=str(node.socket),
        kubelet_root=str(tmp_path),
        kubelet=Kubelet(config_file=str(config)),
    )
    server, metrics, conditions, source = Server(), Metrics(), Conditions(), Source(settings.kubelet)
    await node.start()
    async with PodResources(settings.podresources_socket) as podresources:
        exporter = Exporter(
            settings,
            Observer(settings, podresources, source),
            Publisher(settings, server),
            source,
            metrics,
            conditions,
            Trigger(),
        )
        await exporter.sync()
        give(node, tmp_path)
        with Walk() as walk:
            await exporter.sync()
    await node.stop()
    (zone, *_) = json.loads(server.written[-1])["zones"]
    assert zone["resources"][0] == {"name": "cpu", "capacity": "4", "allocatable": "3", "available": "2"}
    assert_as_written("`List` to the object", walk)
