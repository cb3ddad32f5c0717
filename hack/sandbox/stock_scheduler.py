"""The real kube-scheduler on loopback, against a `ControlPlane`.

It runs as the user system:kube-scheduler, with the rights the API server's own roles give it. Of a configuration only
what it is about need be said: the kubeconfig and leader election (off) are filled in. Flags hold for 1.26 to 1.36:

- who asks the scheduler itself is looked up at the API server, which wants kubeconfigs of its own (the log complains
  about a ConfigMap for client certificates that a cluster has; nothing here needs it);
- the serving certificate is made by the scheduler in `--cert-dir`; /readyz, which needs no token, waits until its
  informers have synced.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

import yaml

from sandbox.apiserver.errors import Json
from sandbox.controlplane import ControlPlane
from sandbox.processes import Process, free_ports

BINARY: Final = "kube-scheduler"
API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
USER: Final = "system:kube-scheduler"


def extender(url: str, **fields: object) -> Json:
    """An entry of `extenders` with every verb and the fields our documentation recommends, changed by `fields`."""
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": 5,
        "nodeCacheCapable": True,
        "httpTimeout": "2s",
        **fields,
    }


class StockScheduler:
    """kube-scheduler as a context manager. Its configuration, certificate and `log` are files in the folder `work`.

    `binary` is a kube-scheduler with other plug-ins.
    """

    def __init__(
        self, plane: ControlPlane, configuration: Json, work: Path, *, user: str = USER, binary: Path | None = None
    ) -> None:
        self._plane = plane
        self._user = user
        self._binary = binary or plane.folder / BINARY
        self._configuration = configuration
        self._work = work
        self._stack = ExitStack()
        self.log = work / f"{BINARY}.log"
        self.pid = 0
        """Its id, inside the block."""

    def __enter__(self) -> StockScheduler:
        self._work.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            (port,) = free_ports(1)
            child = stack.enter_context(Process(BINARY, self._arguments(port), self.log))
            child.wait_until_ready(f"https://127.0.0.1:{port}/readyz")
            self.pid = child.pid
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _arguments(self, port: int) -> list[str]:
        kubeconfig = self._plane.kubeconfig(self._work / "kubeconfig", self._user)
        gates = [f"--feature-gates={self._plane.gates}"] if self._plane.gates else []
        return [*arguments(self._binary, self._work, kubeconfig, self._configuration, port), *gates]


def arguments(binary: Path, work: Path, kubeconfig: Path, configuration: Json, port: int) -> list[str]:
    """Its command line; what is said of its configuration is made whole and written into `work`."""
    whole = {
        "apiVersion": API_VERSION,
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        **configuration,
        "clientConnection": {"kubeconfig": str(kubeconfig), **configuration.get("clientConnection", {})},
    }
    config = work / "scheduler.yaml"
    config.write_text(yaml.safe_dump(whole, sort_keys=False))
    return [
        str(binary),
        f"--config={config}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={work / 'certs'}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
    ]
