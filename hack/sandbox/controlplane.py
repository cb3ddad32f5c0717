"""A real etcd and kube-apiserver on loopback, for the contract tests that keep the embedded server honest.

The binaries are those controller-runtime's envtest uses: in `$KUBEBUILDER_ASSETS`, or in /usr/local/kubebuilder/bin. No
container, no root. Flags hold for kube-apiserver 1.31 to 1.36:

- one static token in `--token-auth-file`; `AlwaysAllow`, under which the server turns anonymous requests off;
- the serving certificate is made by the server itself in `--cert-dir`, so clients skip verifying it (loopback only);
- service accounts need a signing key even when nothing uses them: made by the `openssl` command;
- the ServiceAccount admission plug-in is off, or every pod would wait for a controller that does not run, and so is
  TaintNodesByCondition, which taints every new node until a node controller takes that back.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from sandbox.apiserver import kubeconfig as kubeconfigs

_DEFAULT_ASSETS: Final = "/usr/local/kubebuilder/bin"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
_TOKEN: Final = "topowise-contract-tests"


def assets() -> Path | None:
    """The folder that holds both binaries, None when there is none."""
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS") or _DEFAULT_ASSETS)
    wanted = [folder / "etcd", folder / "kube-apiserver"]
    return folder if all(os.access(binary, os.X_OK) for binary in wanted) else None


class ControlPlane:
    """etcd and kube-apiserver as a context manager. `url`, `token` and `kubeconfig()` are for clients."""

    token = _TOKEN

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._port = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def kubeconfig(self, path: Path) -> Path:
        return kubeconfigs.write(path, self.url, token=self.token, insecure=True)

    def __enter__(self) -> ControlPlane:
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topowise-controlplane-")))
            etcd_port, self._port = _free_ports(2)
            etcd_url = f"http://127.0.0.1:{etcd_port}"
            etcd = stack.enter_context(_Process("etcd", self._etcd(work, etcd_url), work / "etcd.log"))
            _wait_until_ready(f"{etcd_url}/health", etcd)
            arguments = self._kube_apiserver(work, etcd_url)
            apiserver = stack.enter_context(_Process("kube-apiserver", arguments, work / "kube-apiserver.log"))
            _wait_until_ready(f"{self.url}/readyz", apiserver)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _etcd(self, work: Path, url: str) -> list[str]:
        return [
            str(self._folder / "etcd"),
            f"--data-dir={work / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            "--listen-peer-urls=http://127.0.0.1:0",
        ]

    def _kube_apiserver(self, work: Path, etcd_url: str) -> list[str]:
        private, public = _service_account_key(work)
        tokens = work / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self.token},tester,tester-uid,"system:masters"\n')
        return [
            str(self._folder / "kube-apiserver"),
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={work / 'certs'}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=AlwaysAllow",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={private}",
            f"--service-account-key-file={public}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
        ]


class _Process:
    """A child that is ended with the block: asked first, then killed. Its output goes to a file."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._arguments = arguments
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Process:
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                self._arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def check(self) -> None:
        """Raises RuntimeError with the end of the log when the process is no longer there."""
        if self._child is not None and self._child.poll() is not None:
            raise RuntimeError(f"{self.name} ended with status {self._child.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])


def _service_account_key(work: Path) -> tuple[Path, Path]:
    """A fresh RSA key pair, as paths of the private and the public half."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise RuntimeError("openssl is not on PATH, expected it for the service-account key")
    private, public = work / "service-account.key", work / "service-account.pub"
    for arguments in (
        ["genrsa", "-out", str(private), "2048"],
        ["rsa", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        subprocess.run([openssl, *arguments], check=True, capture_output=True)
    return private, public


def _free_ports(count: int) -> list[int]:
    """Ports nobody listens on now. Held together while choosing, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _wait_until_ready(url: str, process: _Process) -> None:
    """Polls until the URL answers 200. Raises RuntimeError when it does not in time, or the process ends."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {_TOKEN}"})
    # No proxy from the environment: this is loopback.
    handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        process.check()
        try:
            with opener.open(request, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"{process.name} is not ready after {_START_SECONDS:.0f} s:\n{process.tail()}")
