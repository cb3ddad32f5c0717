"""Serial decisions about pods as kube-scheduler makes them, about pods that the watch has delivered before.

An unknown pod gets no reservation, so that its decision would cost less than in production.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

import msgspec

from bench.scheduler import metal
from bench.scheduler.service import Caller, Service, fetch

NODES: Final = int(os.environ.get("BENCH_NODES", "5000"))
"""The nodes of the measured cluster."""
PART: Final = 500
"""Names in a question about a part of the nodes."""
# kube-scheduler does its own work between two calls, and the kernel counts the CPU of a thread when it rests.
_PAUSE_S: Final = 0.003


class Times(NamedTuple):
    """Milliseconds of the calls of a run: on the wall until the answer, and CPU time of the service including its work
    after the answer. `cpu` is per pod."""

    filter: list[float]
    prioritize: list[float]
    filter_cpu: list[float]
    prioritize_cpu: list[float]
    cpu: float


class Asking:
    """Sends pods serially, as kube-scheduler does. `gone` deletes all of them."""

    def __init__(self, service: Service, caller: Caller, api: str) -> None:
        self._service = service
        self.caller = caller
        self._api = api
        self._rng = Random(7)
        self._names = [f"metal-{number:05}" for number in range(NODES)]
        self._all = msgspec.json.encode(self._names)
        self._fitting: list[list[str]] = []
        self._asked: list[tuple[str, str]] = []
        self._number = 0

    def prepare(self) -> float:
        """Learns which nodes each shape fits on; the mean share of them."""
        for pod in self._come([(shape, 0) for shape in range(len(metal.SHAPES))]):
            _, answer = self._filter(pod, self._all)
            self._fitting.append(msgspec.json.decode(answer)["NodeNames"])
        self.gone()
        return statistics.mean(map(len, self._fitting)) / NODES

    def run(
        self,
        count: int,
        *,
        whole: bool = False,
        new_shapes: bool = False,
        per_second: float = 0.0,
    ) -> Times:
        """Decides `count` pods about all nodes or a part of them; `per_second` 0 is the maximum rate."""
        times = Times([], [], [], [], 0.0)
        shapes = [number % len(metal.SHAPES) for number in range(count)]
        pods = self._come([(shape, self._number + at if new_shapes else 0) for at, shape in enumerate(shapes)])
        cpu, since = self._service.cpu_ms(), time.perf_counter()
        for number, (shape, pod) in enumerate(zip(shapes, pods, strict=True)):
            if per_second:
                time.sleep(max(0.0, since + number / per_second - time.perf_counter()))
            all_fit = number // len(metal.SHAPES) % 2 == 1
            names = self._all if whole else self._window(self._fitting[shape] if all_fit else self._names)
            before = self._service.cpu_ms()
            took, answer = self._filter(pod, names)
            time.sleep(_PAUSE_S)
            times.filter.append(took)
            times.filter_cpu.append(self._service.cpu_ms() - before)
            fitting = msgspec.json.decode(answer)["NodeNames"]
            if len(fitting) > 1:
                body = arguments(pod, msgspec.json.encode(fitting))
                before = self._service.cpu_ms()
                took = self.caller.post("prioritize", body)[0]
                time.sleep(_PAUSE_S)
                spent = self._service.cpu_ms() - before
                if whole or len(fitting) > 0.9 * min(PART, NODES):
                    times.prioritize.append(took)
                    times.prioritize_cpu.append(spent)
        return times._replace(cpu=(self._service.cpu_ms() - cpu) / count)

    def place(self, count: int, part: int = 50) -> list[bytes]:
        """Decides pods and reserves room for them; their bind requests."""
        requests = []
        shapes = [shape for shape, names in enumerate(self._fitting) if len(names) > NODES // 4]
        drawn = [shapes[number % len(shapes)] for number in range(count)]
        for shape, pod in zip(drawn, self._come([(shape, 0) for shape in drawn]), strict=True):
            names = msgspec.json.encode(self._rng.sample(self._fitting[shape], min(part, len(self._fitting[shape]))))
            _, answer = self._filter(pod, names)
            fitting = msgspec.json.encode(msgspec.json.decode(answer)["NodeNames"])
            _, answer = self.caller.post("prioritize", arguments(pod, fitting))
            scores = msgspec.json.decode(answer)
            if scores:
                meta = msgspec.json.decode(pod)["metadata"]
                best = max(scores, key=lambda priority: int(priority["Score"]))["Host"]
                named = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
                requests.append(msgspec.json.encode({**named, "Node": best}))
        return requests

    def gone(self) -> float:
        """Deletes all pods, and returns the seconds until the service is idle again."""
        since = time.perf_counter()
        fetch(f"{self._api}/control/gone", msgspec.json.encode(self._asked))
        self._asked.clear()
        self._service.wait_until_idle(60.0)
        took, since = time.perf_counter() - since, time.perf_counter()
        # Metrics are rendered once a second, which is too seldom to measure by.
        while self._service.metric("open_reservations") and time.perf_counter() - since < 60:
            time.sleep(0.1)
        return took

    def _come(self, shapes: Sequence[tuple[int, int]]) -> list[bytes]:
        """Pods of these shapes, with so many bytes of memory on top, once the service has heard of them."""
        sent = []
        for shape, extra in shapes:
            self._number += 1
            name = f"bench-{shape}-{self._number:06}"
            sent.append(metal.extender_pod(shape, name, extra))
            self._asked.append((metal.uid_of(name), name))
        created = fetch(f"{self._api}/control/come", b"[%b]" % b",".join(sent))
        self._service.wait_until_idle()
        return list(map(bytes, msgspec.json.decode(created, type=list[msgspec.Raw])))

    def _window(self, names: list[str]) -> bytes:
        start = self._rng.randrange(len(names) + 1)
        return msgspec.json.encode((names[start:] + names[:start])[:PART])

    def _filter(self, pod: bytes, names: bytes) -> tuple[float, bytes]:
        return self.caller.post("filter", arguments(pod, names))


def arguments(pod: bytes, names: bytes) -> bytes:
    """ExtenderArgs as a nodeCacheCapable extender gets them."""
    return b'{"Pod":%s,"Nodes":null,"NodeNames":%s}' % (pod, names)
