"""No code of an option runs for a pod that does not name it, whether the option is on or off."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from scheduling import NoApi, Service, call, exact, kubelet, pod
from steering_pods import marked
from topowise_scheduler import options
from topowise_scheduler.options.claims.gate import ClaimOption
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.extender.callers import Callers

FOLDERS = ("claims", "device_affinity", "steering")
DIRECTORY = str(Path(str(options.__file__)).parent)


class Server(NoApi):
    async def request(self, method: str, path: str, **_: Any) -> bytes:
        return b"{}"


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts the calls of functions in the folders of options."""
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(DIRECTORY):
            calls[file[len(DIRECTORY) + 1 :].partition("/")[0]] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def cycle(service: Service, document: dict[str, Any]) -> str:
    """Filters, scores and binds a pod as kube-scheduler does; returns the error of the bind, or why no node fits."""
    app = http.Application(service.served(Server()), http.Metrics(CollectorRegistry()), 1 << 20, Callers(()))
    names = list(service.ledger.node_states.reported())
    question = json.dumps({"Pod": document, "NodeNames": names}).encode()
    answer = json.loads(call(app, "/filter", question)[1])
    if not answer["NodeNames"]:
        return str(answer)
    call(app, "/prioritize", question)
    meta = document["metadata"]
    args = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": answer["NodeNames"][0]}
    error: str = json.loads(call(app, "/bind", json.dumps(args).encode())[1])["Error"]
    return error


def made(**options: Any) -> Service:
    service = Service("TightFit", **options)
    for name in ("n1", "n2"):
        service.report(exact(kubelet(), name=name))
    return service


@pytest.mark.parametrize("steers", [False, True])
def test_a_pod_that_names_no_option_reaches_none(steers: bool) -> None:
    service = made(steers=steers, markers=lambda name: 8 if steers else None)
    assert service.ledger.gates.option(ClaimOption) is None
    with counted() as calls:
        assert cycle(service, pod("p", "2")) == ""
    # Where devices are shared by containers, their choice may refuse the pod: no annotation asks for that.
    assert set(calls) <= {"device_affinity"}
    assert calls["device_affinity"] <= 2


def test_a_pod_that_names_an_option_reaches_it() -> None:
    with counted() as calls:
        assert cycle(made(), marked("p", "2")) == ""
    assert calls["steering"]
    refused = pod("p", "2", annotations={"topowise.io/numa-node": "1"})
    assert "numa" in cycle(made(steers=False, markers=lambda name: None), refused).lower()
