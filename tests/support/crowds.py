"""Clusters, pods and questions that are many or large, of any size: small in the tests, whole in tests/e2e."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from scheduling import WAITS, NoApi, Service, exact, kubelet, pod, scope
from topowise.kube.reflector import Consumer
from topowise.runtime.event_loop import sliced
from topowise_scheduler import report
from topowise_scheduler.controllers.requeue import Requeuer
from topowise_scheduler.dashboard import Dashboard, Decisions
from topowise_scheduler.ledger.budgets import Budgets
from topowise_scheduler.ledger.pods.records import PodRecord
from topowise_scheduler.ledger.watch import reflectors
from topowise_scheduler.serve.extender.callers import Callers
from topowise_scheduler.serve.extender.explaining import Explainer
from topowise_scheduler.serve.extender.http import Application, Metrics


def names(nodes: int) -> list[str]:
    """Of all nodes."""
    return [f"n{number:05}" for number in range(nodes)]


def reports(nodes: int, version: str = "1") -> Iterator[report.Report]:
    """Of all nodes, nothing held."""
    topology = exact(kubelet(), version)
    for name in names(nodes):
        yield report.read(
            msgspec.structs.replace(topology, metadata=msgspec.structs.replace(topology.metadata, name=name))
        )


def cluster(nodes: int) -> Service:
    """Returns a service with nodes of two NUMA nodes each, reported by topowise-exporter."""
    service = Service()
    for name, decoded in zip(names(nodes), reports(nodes), strict=True):
        service.ledger.reports.put_node(name)
        service.ledger.reports.put(decoded)
    return service


def records(service: Service, nodes: int, each: int, first: int = 0) -> list[PodRecord]:
    """Returns the records of `each` equal pods per node, as a list has them."""
    record = service.records.decode(msgspec.json.encode(pod("p", "1", node="n", phase="Running", startTime="2026")))
    return [
        msgspec.structs.replace(record, uid=f"uid-{name}-{number}", name=f"p-{name}-{number}", node=name)
        for name in names(nodes)
        for number in range(first, first + each)
    ]


def consumers(service: Service, budgets: Budgets | None = None) -> dict[str, Consumer[Any]]:
    """Returns the consumers of lists and watches, by collection."""
    sources = reflectors(NoApi(), service.ledger, service.records, budgets or Budgets(), service.nodes)
    return {source.name: source._consumer for source in sources}


async def relist(consumer: Consumer[Any], items: list[Any]) -> None:
    """A list has come, as the reflector hands it over."""
    await sliced(consumer.replace(items) or ())


def waiting(service: Service, kinds: int) -> None:
    """Adds waiting pods of `kinds` distinct shapes."""
    for number in range(kinds):
        service.put(pod(f"w{number}", "5", memory=f"{number + 1}Mi", conditions=WAITS))


async def requeueing(service: Service) -> asyncio.Task[None]:
    """Starts the requeuer; no pod fits anywhere, so that it makes no API call."""
    requeuer = Requeuer(
        NoApi(),
        service.ledger,
        service.answers.fits,
        interval=0.01,
        per_second=20.0,
        prepare=service.answers.fitting,
    )
    return asyncio.create_task(requeuer.run())


async def look(service: Service, *targets: str) -> list[bytes]:
    """What the dashboard shows at these addresses, each read anew."""
    decisions = Decisions(200, lambda: 1.0)
    explainer = Explainer(NoApi(), service.view, lambda: None)
    page = Dashboard(
        service.ledger,
        service.view,
        explainer.explanations,
        lambda: None,
        decisions,
        lambda _: None,
        monotonic=service.clock,
    )
    outcomes = []
    for target in targets:
        service.clock.now += 10
        outcomes.append(await _fetched(page, target))
    return outcomes


async def _fetched(page: Dashboard, target: str) -> bytes:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    path, _, query = target.partition("?")
    await page(scope(path, "GET", query=query.encode()), receive, send)
    return bytes(sent[1]["body"])


def many_containers(count: int, cpu: str = "1", memory: str = "1Gi") -> dict[str, Any]:
    """Returns a Guaranteed pod of so many containers."""
    document = pod("large", cpu, memory=memory)
    (container,) = document["spec"]["containers"]
    document["spec"]["containers"] = [{**container, "name": f"c{number}"} for number in range(count)]
    return document


async def ask(service: Service, verb: str, document: dict[str, Any], nodes: list[str], query: bytes = b"") -> Any:
    """What the service answers over HTTP."""
    application = Application(service.served(), Metrics(CollectorRegistry()), 64 << 20, Callers(()))
    body = document if verb == "explain" else {"Pod": document, "NodeNames": nodes}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": encoded}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    encoded = msgspec.json.encode(body)
    await asyncio.sleep(0)
    await application(scope(f"/{verb}", query=query), receive, send)
    await asyncio.sleep(0)
    return sent[1]["body"]
