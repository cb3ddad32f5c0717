"""Binding through the service."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from typing import Final

from bench import usage
from bench.figures import Figure, spread
from bench.scheduler.asking import Asking
from bench.scheduler.caller import Caller
from bench.scheduler.extent import CALLS, PART
from bench.scheduler.loopback import encode, fetch, say
from bench.scheduler.service import Service

_BINDERS: Final = 8
# A report for each pod comes as fast as this.
_REPORTS_PER_SECOND: Final = 100
_REPORTS: Final = 'reports_total{precision="exact"}'


def binds(service: Service, asking: Asking, api: str) -> list[Figure]:
    """Measures serial and concurrent binds, and the API server's own time."""
    count = CALLS // 2
    with Caller(int(api.rpartition(":")[2])) as direct:
        body = encode({"metadata": {"uid": "nobody"}, "target": {"name": "nowhere"}})
        own = [direct.post("api/v1/namespaces/team-0/pods/bench-0-0/binding", body)[0] for _ in range(CALLS // 4)]
    fetch(f"{api}/control/gone", encode([("nobody", "bench-0-0")]))
    requests = asking.place(count)
    times = [asking.caller.post("bind", body)[0] for body in requests]
    asking.gone()
    requests = asking.place(count)
    failed: list[bytes] = []

    def work(bodies: Sequence[bytes]) -> None:
        with Caller(service.port) as caller:
            failed.extend(answer for body in bodies if (answer := caller.post("bind", body)[1]) != b'{"Error":""}')

    threads = [threading.Thread(target=work, args=(requests[number::_BINDERS],)) for number in range(_BINDERS)]
    cpu, since = usage.cpu_seconds(service.pid), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, spent = time.perf_counter() - since, usage.cpu_seconds(service.pid) - cpu
    asking.gone()
    for answer in failed[:3]:
        say(f"bind: {answer!r}")
    return [
        Figure("bind: the API stand-in's own time, p50", round(statistics.median(own), 2), "ms"),
        *spread("bind, one at a time", times, "ms"),
        Figure(f"bind, {_BINDERS} at a time", round(len(requests) / took), "pods/s"),
        Figure("bind: CPU of the service, its watch events included", round(spent / len(requests) * 1e3, 2), "ms"),
        Figure("bind: refused", len(failed), "pods"),
    ]


def whole_pods(service: Service, asking: Asking, api: str) -> list[Figure]:
    """Measures the service's CPU time of a whole pod: filter, prioritize, bind, its events, and a report of a node."""
    count = CALLS // 4
    taken, cpu = service.metric(_REPORTS), usage.cpu_seconds(service.pid)
    for body in asking.place(count, PART):
        asking.caller.post("bind", body)
    fetch(f"{api}/control/reports?rate={_REPORTS_PER_SECOND}&seconds={count / _REPORTS_PER_SECOND}", b"")
    until = time.perf_counter() + count / _REPORTS_PER_SECOND + 10
    while service.metric(_REPORTS) - taken < count and time.perf_counter() < until:
        time.sleep(0.5)
    spent = usage.cpu_seconds(service.pid) - cpu
    asking.gone()
    name = f"{PART} names, a whole pod with its bind, events and report: CPU of the service"
    return [Figure(name, round(spent / count * 1e3, 2), "ms")]
