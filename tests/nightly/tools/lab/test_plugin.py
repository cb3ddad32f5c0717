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

from lab.inside import plugin

_ENDPOINT = "example.com_nic.sock"
_SECONDS = 30.0


class Kubelet:
    """Registers plug-ins and watches their devices."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.registrations = folder, 0
        self.watches = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(2))
        register: Any = grpc.unary_unary_rpc_method_handler(
            self._register, plugin.KINDS["RegisterRequest"].FromString, lambda reply: reply.SerializeToString()
        )
        methods = {"Register": register}
        handlers = grpc.method_handlers_generic_handler(f"{plugin.PACKAGE}.Registration", methods)
        self._server.add_generic_rpc_handlers((handlers,))
        self._server.add_insecure_port(f"unix://{folder}/kubelet.sock")
        self._server.start()

    def _register(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.registrations += 1
        address = f"unix://{self._folder}/{request.endpoint}"
        self._channel = grpc.insecure_channel(address, [("grpc.default_authority", "localhost")])
        call: Any = self._channel.unary_stream(
            f"/{plugin.PACKAGE}.DevicePlugin/ListAndWatch",
            request_serializer=lambda sent: sent.SerializeToString(),
            response_deserializer=plugin.KINDS["ListAndWatchResponse"].FromString,
        )
        self._watch = call(plugin.KINDS["Empty"]())
        next(self._watch)
        self.watches.set()
        return plugin.KINDS["Empty"]()

    def stop(self) -> None:
        self._channel.close()
        self._server.stop(0).wait()


class Starting(plugin.Plugin):
    """Calls `meanwhile` whenever its server is about to start."""

    def __init__(self) -> None:
        super().__init__({"nic-0": [0]})
        self.meanwhile = list[Any]()

    def handler(self) -> Any:
        if self.meanwhile:
            self.meanwhile.pop()()
        return super().handler()


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
    starting, before, after = Starting(), Kubelet(tmp_path), list[Kubelet]()
    is_there = threading.Event()

    def serve() -> None:
        with contextlib.suppress(EndedError):
            plugin.serve("example.com/nic", starting)

    def start() -> None:
        (tmp_path / "kubelet.sock").unlink()
        after.append(Kubelet(tmp_path))
        is_there.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert before.watches.wait(_SECONDS)
        before.stop()
        starting.meanwhile.append(start)
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
