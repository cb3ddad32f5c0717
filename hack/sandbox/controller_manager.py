"""The real kube-controller-manager on loopback, against a `ControlPlane`, by default with a few controllers only.

`resourceclaim-controller` makes claims from templates, and frees them when their pods have ended. The garbage collector
deletes claims of deleted pods. `replicaset-controller` replaces evicted pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from sandbox.controlplane import ControlPlane
from sandbox.processes import Process, free_ports

BINARY: Final = "kube-controller-manager"
CONTROLLERS: Final = ("resourceclaim-controller", "garbage-collector-controller", "replicaset-controller")


class ControllerManager:
    """A context manager; the certificate and the log are files in the folder `work`."""

    def __init__(self, plane: ControlPlane, work: Path, controllers: Sequence[str] = CONTROLLERS) -> None:
        self._plane = plane
        self._controllers = controllers
        self._work = work
        self._stack = ExitStack()

    def __enter__(self) -> ControllerManager:
        self._work.mkdir(parents=True, exist_ok=True)
        kubeconfig = self._plane.kubeconfig(self._work / "kubeconfig")
        with ExitStack() as stack:
            (port,) = free_ports(1)
            arguments = [
                str(self._plane.folder / BINARY),
                f"--kubeconfig={kubeconfig}",
                f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}",
                f"--controllers={','.join(self._controllers)}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={self._work / 'certs'}",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
            ]
            child = stack.enter_context(Process(BINARY, arguments, self._work / f"{BINARY}.log"))
            child.wait_until_ready(f"https://127.0.0.1:{port}/healthz")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
