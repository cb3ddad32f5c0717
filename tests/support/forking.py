"""Starts the product's commands by fork: a process that has imported them once starts each in some milliseconds.

A started command is a process of its own, with its own signals, descriptors, environment and exit status. It
differs from `python -m` in its modules, which were imported before, in the environment of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

from sandbox import simulated_time

_MODULES: Final = (
    "topowise_exporter.daemon",
    "topowise_exporter.steering.daemon",
    "topowise_scheduler.serve",
)
_MESSAGE_BYTES: Final = 1 << 18
# prctl(2): the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG: Final = 1


class Process:
    """A started command, with the methods of asyncio.subprocess.Process that tests need."""

    def __init__(self, pid: int, template: Template) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._template = template
        self._descriptor = os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError if the process has ended."""
        signal.pidfd_send_signal(self._descriptor, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Returns the exit status; -N after signal N."""
        if self.returncode is None:
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            # Each waiter watches a descriptor of its own.
            descriptor = os.dup(self._descriptor)
            loop.add_reader(descriptor, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
        if self.returncode is None:
            self.returncode = self._template.wait(self.pid)
        return self.returncode

    def __del__(self) -> None:
        os.close(self._descriptor)


class Template:
    """The process that forks. It serves one request after the other."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # One thread: a fork copies no other.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            (sys.executable, __file__, str(theirs.fileno())), pass_fds=(theirs.fileno(),), env=environment
        )
        theirs.close()

    def start(
        self, module: str, arguments: Sequence[str], output: int, environment: Mapping[str, str], shared: Sequence[int]
    ) -> Process:
        """Starts `python -m module arguments`, with stdout and stderr to `output`. `shared` are the descriptors of
        simulated_time.SHARED."""
        request = [module, list(arguments), dict(environment), str(Path.cwd())]
        socket.send_fds(self._socket, [json.dumps(request).encode()], [output, *shared])
        return Process(self._reply(), self)

    def wait(self, pid: int) -> int:
        self._socket.send(json.dumps(pid).encode())
        return self._reply()

    def _reply(self) -> int:
        return int(self._socket.recv(_MESSAGE_BYTES))


@cache
def template() -> Template:
    """Returns the template of this process; it ends with this process."""
    return Template()


def _serve(requests: socket.socket) -> None:
    for module in _MODULES:
        importlib.import_module(module)
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 8)
        if not data:
            return
        request = json.loads(data)
        if isinstance(request, int):
            _, status = os.waitpid(request, 0)
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if not pid:
            requests.close()
            # Tests that are killed stop no daemon.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _run(*request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())


def _run(
    module: str, arguments: list[str], environment: dict[str, str], directory: str, descriptors: list[int]
) -> NoReturn:
    status: Any = 1
    try:
        output, *shared = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        if shared:
            cell = environment[simulated_time.SHARED].rpartition(",")[2]
            os.environ[simulated_time.SHARED] = ",".join(map(str, (*shared, cell)))
            simulated_time.share()
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as exc:
        status = exc.code
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
            status = 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status or 0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
