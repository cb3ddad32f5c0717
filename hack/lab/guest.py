"""A guest: commands over ssh, and its state as its agent reports it."""

from __future__ import annotations

import base64
import contextlib
import json
import shlex
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from google.protobuf.json_format import MessageToDict

from lab import api
from lab.errors import LabError
from lab.qemu import Ports
from topowise.wire import podresources_pb2 as pb

_OPTIONS: Final = {
    "StrictHostKeyChecking": "no",
    "UserKnownHostsFile": "/dev/null",
    "LogLevel": "ERROR",
    # A busy machine lets a guest wait for long.
    "ConnectTimeout": "60",
    "BatchMode": "yes",
    "ServerAliveInterval": "15",
    "ControlMaster": "auto",
    "ControlPersist": "60",
}
_MESSAGES: Final[dict[str, Any]] = {
    "list": pb.ListPodResourcesResponse,
    "allocatable": pb.AllocatableResourcesResponse,
}
_BOOT_S: Final = 400.0
_COMMAND_S: Final = 300.0


class Seen(NamedTuple):
    """What the agent tells, and by how many seconds the guest's clock is ahead of this machine's."""

    told: dict[str, Any]
    ahead: float


class Guest:
    """`work` is the lab's directory."""

    def __init__(self, name: str, work: Path, ports: Ports, key: Path) -> None:
        self.name, self.ports = name, ports
        options = {**_OPTIONS, "ControlPath": str(work / f"{name}.ssh")}
        spelt = [word for option, value in options.items() for word in ("-o", f"{option}={value}")]
        self._ssh = ["ssh", "-i", str(key), *spelt, "-p", str(ports.ssh), "root@127.0.0.1"]
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def run(self, command: str, stdin: str = "", seconds: float = _COMMAND_S) -> str:
        """Runs a shell command in the guest, and returns its output. Raises LabError."""
        done = self.attempt(command, stdin, seconds)
        if done.returncode:
            raise LabError(f"guest {self.name}: {command:.200} ended with {done.returncode}: {done.stderr[-600:]}")
        return done.stdout

    def attempt(self, command: str, stdin: str = "", seconds: float = _COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Runs a shell command in the guest, and returns the completed process whatever its status."""
        try:
            return subprocess.run(
                [*self._ssh, command], check=False, input=stdin, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"guest {self.name}: {command:.200} has not ended in {seconds:.0f} s") from None

    def write(self, files: Mapping[str, str]) -> None:
        """Files by path, with their folders."""
        for path, text in files.items():
            self.run(f"mkdir -p {shlex.quote(str(Path(path).parent))} && cat > {shlex.quote(path)}", text)

    def until_booted(self) -> None:
        """Waits until ssh succeeds."""
        api.wait(lambda: self._answers() or None, _BOOT_S, f"guest {self.name} boots", 0.5)

    def _answers(self) -> bool:
        with contextlib.suppress(LabError):
            return self.attempt("true", seconds=90).returncode == 0
        return False

    def forget_connection(self) -> None:
        """Closes the shared ssh connection, whose guest is gone; the next command opens another."""
        subprocess.run([*self._ssh[:-1], "-O", "exit", self._ssh[-1]], check=False, capture_output=True)

    def seen(self, path: str = "/") -> Seen:
        """Raises LabError; the agent is a container, and may be starting."""
        before = time.time()
        try:
            with self._open(f"http://127.0.0.1:{self.ports.agent}{path}", timeout=20) as answer:
                document = json.load(answer)
        except (OSError, ValueError) as exc:
            raise LabError(f"agent of guest {self.name}: {exc}") from exc
        return Seen(read(document), document["now"] - (before + time.time()) / 2)

    def relayed(self, url: str) -> str:
        """Returns the answer of an address in the guest's pod network."""
        query = urllib.parse.urlencode({"url": url})
        try:
            with self._open(f"http://127.0.0.1:{self.ports.agent}/relay?{query}", timeout=20) as answer:
                text: str = answer.read().decode()
        except OSError as exc:
            raise LabError(f"{url} in guest {self.name}: {exc}") from exc
        return text


def read(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the agent's answer, with podresources messages decoded."""
    return {
        name: MessageToDict(_MESSAGES[name].FromString(base64.b64decode(value)), preserving_proto_field_name=True)
        if name in _MESSAGES
        else value
        for name, value in document.items()
    }
