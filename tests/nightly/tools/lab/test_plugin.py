"""The device plug-in of the lab, with the registration of a kubelet that starts at a bad moment."""

from __future__ import annotations

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from lab import plugin
from topowise.wire import deviceplugin_pb2 as pb
from topowise.wire.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_DevicePluginServicer_to_server,
    add_RegistrationServicer_to_server,
)

_ENDPOINT = "example.com_nic.sock"
_SECONDS = 30.0


class Kubelet(RegistrationServicer):
    """Registers plug-ins and watches their devices."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.registrations = folder, 0
        self.watches = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(2))
        add_RegistrationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix://{folder}/kubelet.sock")
        self._server.start()

    def Register(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.registrations += 1
        address = f"unix://{self._folder}/{request.endpoint}"
        self._channel = grpc.insecure_channel(address, [("grpc.default_authority", "localhost")])
        stub = DevicePluginStub(self._channel)  # type: ignore[no-untyped-call]
        self._watch = stub.ListAndWatch(pb.Empty())
        next(self._watch)
        self.watches.set()
        return pb.Empty()

    def stop(self) -> None:
        self._channel.close()
        self._server.stop(0).wait()


class EndedError(Exception):
    pass


def test_a_kubelet_that_starts_while_the_plug_in_does_gets_one_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, is_over = threading.Semaphore(0), threading.Event()

    def sleep(seconds: float) -> None:
        pauses.release()
        if is_over.wait(seconds / 10):
            raise EndedError

    monkeypatch.setattr(plugin, "FOLDER", tmp_path)
    # A registration that its kubelet does not survive is not waited for in vain.
    monkeypatch.setattr(plugin, "_WATCHED_S", 0.5)
    monkeypatch.setattr(plugin, "time", SimpleNamespace(sleep=sleep))
    before, after = Kubelet(tmp_path), list[Kubelet]()
    is_there = threading.Event()
    # Called whenever the server of the plug-in is about to start.
    meanwhile = list[Any]()

    def added(served: Any, server: grpc.Server) -> None:
        if meanwhile:
            meanwhile.pop()()
        add_DevicePluginServicer_to_server(served, server)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(plugin, "add_DevicePluginServicer_to_server", added)

    def serve() -> None:
        with contextlib.suppress(EndedError):
            plugin.serve("example.com/nic", plugin.Plugin({"nic-0": [0]}))

    def start() -> None:
        (tmp_path / "kubelet.sock").unlink()
        after.append(Kubelet(tmp_path))
        is_there.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert before.watches.wait(_SECONDS)
        before.stop()
        meanwhile.append(start)
        # A kubelet that is killed leaves its socket; the next one empties the directory in alphabetical order.
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(tmp_path / "kubelet.sock"))
        (tmp_path / _ENDPOINT).unlink(missing_ok=True)
        assert is_there.wait(_SECONDS)
        assert after[0].watches.wait(_SECONDS)
        for _ in range(3):
            while pauses.acquire(blocking=False):
                pass
            assert pauses.acquire(timeout=_SECONDS)
        assert after[0].registrations == 1
    finally:
        is_over.set()
        thread.join(_SECONDS)
        for kubelet in after:
            kubelet.stop()
