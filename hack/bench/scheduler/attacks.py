"""The effect of a hostile client on kube-scheduler: filters per second, with and without the attack."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Final, NamedTuple

import msgspec

from bench.figures import Figure
from bench.scheduler import attacker
from bench.scheduler.asking import Asking
from bench.scheduler.extent import STORM_S
from bench.scheduler.loopback import say
from bench.scheduler.service import Service

# Of the CPU time of a core: what the attack may take.
# The burst of the people's allowance is over by then.
_BURST_S: Final = 6.0
_START_S: Final = 0.5
_EXTENDER: Final = frozenset({"slow heads"})
_PAGES: Final = frozenset({"pipelined /explain", "/explain", "/ui", "unknown pages", "pipelined unknown pages"})


def attacks(service: Service, asking: Asking) -> list[Figure]:
    """Measures each attack between two runs without the attack."""
    seconds = STORM_S / 2
    body = asking.question()
    figures, before = [], _rate(service, asking, body, seconds)
    for kind in attacker.ATTACKS:
        port = service.port if kind in _EXTENDER else service.pages_port if kind in _PAGES else service.health_port
        # By its file: the package's imports cost more than the attack.
        command = [sys.executable, attacker.__file__, kind, str(port), str(_START_S + _BURST_S + 2 * seconds + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            time.sleep(_START_S + _BURST_S)
            cpu, since = service.cpu_ms(), time.perf_counter()
            time.sleep(seconds)
            taken = (service.cpu_ms() - cpu) / (time.perf_counter() - since) / 10
            during = _rate(service, asking, body, seconds)
            probed = service.seconds_of("/livez")
            got = msgspec.json.decode(process.communicate()[0], type=attacker.Got)
        after = _rate(service, asking, body, seconds)
        lost = 100 * (1 - 2 * during.of_cpu / (before.of_cpu + after.of_cpu))
        title = f"under {kind}"
        say(f"{title}: filters {before}, {during}, {after}; {lost:.1f} % lost; {taken:.1f} % of a core")
        say(f"{title}: /livez {probed:.3f} s; {got}")
        figures += [
            Figure(f"{title}: CPU of the service beside no filters", round(taken, 1), "% of a core"),
            Figure(f"{title}: filters lost, of a second of the service's CPU", round(lost, 1), "%"),
            Figure(f"{title}: /livez answers", round(1e3 * probed), "ms", on_wall=True),
        ]
        before = after
    return figures


class _Rate(NamedTuple):
    """Filters a second of CPU of the service, and a second on the wall."""

    of_cpu: float
    on_wall: float

    def __str__(self) -> str:
        return f"{self.of_cpu:.0f}/CPU s ({self.on_wall:.0f}/s)"


def _rate(service: Service, asking: Asking, body: bytes, seconds: float) -> _Rate:
    """Returns the rate of serial filters, while the service has no other work."""
    cpu, since, count = service.cpu_ms(), time.perf_counter(), 0
    while time.perf_counter() - since < seconds:
        asking.caller.post("filter", body)
        count += 1
    return _Rate(1e3 * count / (service.cpu_ms() - cpu), count / (time.perf_counter() - since))
