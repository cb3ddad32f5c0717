"""The scheduler service as a child process."""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import yaml

from bench import usage
from sandbox.apiserver import kubeconfig
from sandbox.processes import Process, free_ports

_START_LIMIT_S: Final = 180.0
_IDLE_S: Final = 0.1
# No proxy from the environment: this is loopback.
_opener: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(url: str, body: bytes | None = None) -> bytes:
    """Sends a GET, or a POST with a body, and returns the answer. Raises URLError and OSError."""
    with _opener.open(urllib.request.Request(url, data=body), timeout=10) as response:
        answer: bytes = response.read()
        return answer


class Service:
    """The scheduler service as a child process. `start_s` is the time from its start until it was ready."""

    def __init__(self, stack: ExitStack, work: Path, api: str) -> None:
        self.port, self.health_port = free_ports(2)
        name = f"service-{self.port}"
        access = kubeconfig.write(work / f"{name}.kubeconfig", api)
        document = {
            "apiVersion": "topowise.io/v1alpha1",
            "kind": "SchedulerConfiguration",
            "client": {"kubeconfig": str(access)},
            "extender": {"port": self.port},
            "serving": {"address": "127.0.0.1", "port": self.health_port},
        }
        file = work / f"{name}.yaml"
        file.write_text(yaml.safe_dump(document))
        # As the container image has it: gRPC's threads would have an arena of the allocator each.
        serve = [sys.executable, "-m", "topowise_scheduler", "serve", "--config", str(file)]
        arguments = ["env", "MALLOC_ARENA_MAX=2", *serve]
        process = Process(name, arguments, work / f"{name}.log")
        since = time.perf_counter()
        stack.enter_context(process)
        self.pid = process.pid
        while self._get("/readyz") is None:
            process.check()
            if time.perf_counter() - since > _START_LIMIT_S:
                raise RuntimeError(f"{name} is not ready:\n{process.tail()}")
            time.sleep(0.05)
        self.start_s = time.perf_counter() - since

    def cpu_ms(self) -> float:
        """Returns the CPU time since the start, in milliseconds."""
        return usage.cpu_seconds(self.pid) * 1e3

    def wait_until_idle(self, most_s: float = 5.0) -> None:
        """Waits until the service is nearly idle."""
        until, before = time.perf_counter() + most_s, self.cpu_ms()
        while time.perf_counter() < until:
            time.sleep(_IDLE_S)
            now = self.cpu_ms()
            if now - before < _IDLE_S * 1e3 / 20:
                return
            before = now

    def metric(self, name: str) -> float:
        """Returns a sample by its name with labels, without the common prefix; at most a second old."""
        while (text := self._get("/metrics")) is None:
            time.sleep(_IDLE_S)
        for line in text.decode().splitlines():
            if line.startswith(f"topowise_scheduler_{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def _get(self, path: str) -> bytes | None:
        try:
            return fetch(f"http://127.0.0.1:{self.health_port}{path}")
        except (urllib.error.URLError, OSError):
            return None
