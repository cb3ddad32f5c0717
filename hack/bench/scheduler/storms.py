"""The service under load: hundreds of changed reports and a thousand pod events per second."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from bench import usage
from bench.figures import Figure
from bench.scheduler.asking import Asking
from bench.scheduler.calls import under_events
from bench.scheduler.extent import STORM_S
from bench.scheduler.loopback import fetch, say
from bench.scheduler.service import Service

_PODS_PER_SECOND: Final = 100
# For so long metrics may be behind.
_RENDERED_S: Final = 1.0
_REPORTS: Final = 'reports_total{precision="exact"}'


def storms(service: Service, asking: Asking, api: str) -> list[Figure]:
    """Measures events on the watches with and without a pod decision every 10 ms."""
    figures = []
    calm = asking.run(round(STORM_S / 2 * _PODS_PER_SECOND), per_second=_PODS_PER_SECOND)
    asking.gone()
    figures += under_events(f"500 names, {_PODS_PER_SECOND} pods/s, no events", calm)
    for unit, path, rate in (("NRT updates/s", "reports", 500), ("pod events/s", "pods", 1000)):
        for with_pods in (True, False):
            title = f"{rate:,} {unit}"
            taken = service.metric(_REPORTS)
            cpu, since = usage.cpu_seconds(service.pid), time.perf_counter()
            fetch(f"{api}/control/{path}?rate={rate}&seconds={STORM_S}", b"")
            if with_pods:
                times = asking.run(round(STORM_S * _PODS_PER_SECOND), per_second=_PODS_PER_SECOND)
                figures += under_events(f"500 names, {_PODS_PER_SECOND} pods/s, {title}", times)
            while (progress := msgspec.json.decode(fetch(f"{api}/control/sent")))["running"]:
                time.sleep(0.05)
            share = (usage.cpu_seconds(service.pid) - cpu) / (time.perf_counter() - since)
            since = time.perf_counter()
            if path == "pods":
                # A reservation, whose end is the last event of all.
                asking.run(1)
            else:
                service.wait_until_idle(60.0)
            behind = time.perf_counter() - since
            while path == "reports" and service.metric(_REPORTS) - taken < progress["sent"] and behind < 60:
                time.sleep(0.1)
                behind = max(behind, time.perf_counter() - since - _RENDERED_S)
            behind += asking.gone() if path == "pods" else 0.0
            asking.gone()
            title += f" with {_PODS_PER_SECOND} pods/s" if with_pods else " alone"
            figures += [
                Figure(f"{title}: CPU of the service", round(100 * share), "% of a core"),
                Figure(f"{title}: events taken", round(progress["sent"] / progress["seconds"]), "events/s"),
                Figure(f"{title}: until nothing is left to take", round(behind, 2), "s", on_wall=True),
            ]
            say(f"{title}: {share:.0%} CPU, {behind:.2f} s behind")
    return figures
