"""Servers as child processes on loopback: free ports, a log file each, waiting for readiness, an end with the block."""

from __future__ import annotations

import random
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
_PORTS: Final = (20_000, 32_000)


class Process:
    """A child that is ended with the block: asked first, then killed. Its output goes to `log`.

    In a session of its own, ^C in a terminal does not reach it."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, *, own_session: bool = False) -> None:
        self.name = name
        self.log = log
        self._arguments = arguments
        self._own_session = own_session
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Process:
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=self._own_session,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is None:
            return
        self._child.terminate()
        try:
            # Whatever the status: kube-scheduler, asked to stop, ends with 1.
            self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def wait_until_ready(self, url: str, *, token: str = "") -> None:
        """Polls until the URL answers 200. Raises RuntimeError when it does not in time, or the process ends."""
        context = ssl.create_default_context()
        # Self-signed, on loopback.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
        # No proxy from the environment: this is loopback.
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        opener = urllib.request.build_opener(*handlers)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            try:
                with opener.open(request, timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RuntimeError(f"{self.name} is not ready after {_START_SECONDS:.0f} s:\n{self.tail()}")

    @property
    def pid(self) -> int:
        """Its id, 0 outside the block."""
        return 0 if self._child is None else self._child.pid

    def tail(self) -> str:
        """Returns the end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def check(self) -> None:
        """Raises RuntimeError if the process has ended."""
        if self._child is not None and self._child.poll() is not None:
            raise RuntimeError(f"{self.name} ended with status {self._child.returncode}:\n{self.tail()}")


class Servers:
    """Servers that `_start` enters into a stack. They end with the block, and if `_start` fails in the middle."""

    _stack = ExitStack()

    def _start(self, stack: ExitStack) -> None:
        """Starts the servers, each in the stack."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def free_ports(count: int) -> list[int]:
    """Returns free ports. All are bound while choosing, so that they differ.

    They are below the kernel's range of ephemeral ports, so that no outgoing connection takes a port before its server.
    """
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            each = stack.enter_context(socket.socket())
            try:
                each.bind(("127.0.0.1", random.randrange(*_PORTS)))
            except OSError:
                continue
            ports.append(each.getsockname()[1])
        return ports
