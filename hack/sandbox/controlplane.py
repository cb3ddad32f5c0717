"""A real control plane on loopback: etcd, kube-apiserver, kube-scheduler and kube-controller-manager.

The binaries are those of controller-runtime's envtest: in `$KUBEBUILDER_ASSETS`, or in /usr/local/kubebuilder/bin. They
need neither a container nor root. The flags are valid for kube-apiserver 1.31 to 1.36:

- a static token in `--token-auth-file` for each of `USERS`, and RBAC with the server's default roles, so
  kube-scheduler runs with its usual rights;
- the serving certificate is made by the server itself in `--cert-dir`, so clients skip verifying it (loopback only);
- service accounts need a signing key even when nothing uses them: made by the `openssl` command;
- the ServiceAccount admission plug-in is off, or every pod would wait for a controller that does not run, and so is
  TaintNodesByCondition, which taints every new node until a node controller takes that back;
- etcd does not sync to disk, as the data ends with the test;
- kube-scheduler runs as the user system:kube-scheduler; who asks it is looked up at the API server, which wants
  kubeconfigs of its own (the log complains about a ConfigMap for client certificates that nothing here needs). Its
  /readyz, which needs no token, waits until its informers have synced;
- of kube-controller-manager, `resourceclaim-controller` makes claims from templates, and frees them when their pods
  have ended, the garbage collector deletes claims of deleted pods, and `replicaset-controller` replaces evicted pods.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import yaml

from sandbox.apiserver import documents
from sandbox.apiserver.errors import Json
from sandbox.processes import Process, Servers, free_ports

_DEFAULT_ASSETS: Final = "/usr/local/kubebuilder/bin"
_BINARIES: Final = ("etcd", "kube-apiserver")
ADMIN: Final = "tester"
USERS: Final = {ADMIN: "system:masters", "system:kube-scheduler": ""}
"""Users and their group; a user's token is made of its name."""


def assets(*more: str) -> Path | None:
    """Returns the folder that holds etcd, kube-apiserver and the further binaries named, None when there is none."""
    folder = Path(os.environ.get("KUBEBUILDER_ASSETS") or _DEFAULT_ASSETS)
    return folder if all(os.access(folder / name, os.X_OK) for name in (*_BINARIES, *more)) else None


def token_of(user: str) -> str:
    return f"topowise-tests-{user.replace(':', '-')}"


class ControlPlane(Servers):
    """etcd and kube-apiserver as a context manager. `url`, `token` and `kubeconfig()` are for clients.

    `gates` and `apis` are what is off by default: feature gates, and API groups with their version.
    """

    token = token_of(ADMIN)

    def __init__(self, folder: Path, *, gates: Sequence[str] = (), apis: Sequence[str] = ()) -> None:
        self.folder = folder
        self.gates = ",".join(f"{gate}=true" for gate in gates)
        """As --feature-gates has them; kube-scheduler beside it gets the same."""
        self._apis = ",".join(f"{api}=true" for api in apis)
        self._port = 0
        self._apiserver: Process | None = None
        self._etcd: Process | None = None
        self.ca_file = Path()
        """What the serving certificate is signed by, within the block."""

    @property
    def apiserver_pid(self) -> int:
        """Of kube-apiserver, for signals; 0 outside the block."""
        return 0 if self._apiserver is None else self._apiserver.pid

    @property
    def etcd_pid(self) -> int:
        """Of etcd, while the block lasts."""
        assert self._etcd is not None
        return self._etcd.pid

    def restart_apiserver(self) -> None:
        """kube-apiserver again, at the same address and on the same etcd, after it was killed."""
        assert self._apiserver is not None
        self._apiserver.__enter__()
        self._apiserver.wait_until_ready(f"{self.url}/readyz", token=self.token)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def kubeconfig(self, path: Path, user: str = ADMIN) -> Path:
        """Writes a kubeconfig for a user of `USERS`."""
        return documents.write_kubeconfig(path, self.url, token=token_of(user), insecure=True)

    def _start(self, stack: ExitStack) -> None:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topowise-controlplane-")))
        etcd_port, self._port = free_ports(2)
        etcd_url = f"http://127.0.0.1:{etcd_port}"
        etcd = stack.enter_context(Process("etcd", etcd_arguments(self.folder, work, etcd_url), work / "etcd.log"))
        etcd.wait_until_ready(f"{etcd_url}/health")
        arguments = self._kube_apiserver(work, etcd_url)
        apiserver = stack.enter_context(Process("kube-apiserver", arguments, work / "kube-apiserver.log"))
        apiserver.wait_until_ready(f"{self.url}/readyz", token=self.token)
        self._apiserver, self._etcd = apiserver, etcd
        # The server appends the CA that it has made to its certificate.
        self.ca_file = work / "certs" / "apiserver.crt"

    def _kube_apiserver(self, work: Path, etcd_url: str) -> list[str]:
        own = ["--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"]
        own += [f"--feature-gates={self.gates}"] if self.gates else []
        own += [f"--runtime-config={self._apis}"] if self._apis else []
        return [*apiserver_arguments(self.folder, work, etcd_url, self._port, USERS), *own]


def etcd_arguments(folder: Path, work: Path, url: str) -> list[str]:
    """Its command line; its data goes into `work`."""
    return [
        str(folder / "etcd"),
        f"--data-dir={work / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        "--listen-peer-urls=http://127.0.0.1:0",
        "--unsafe-no-fsync",
    ]


def apiserver_arguments(folder: Path, work: Path, etcd_url: str, port: int, users: Mapping[str, str]) -> list[str]:
    """Its command line, but for who may do what; keys, tokens and certificates go into `work`."""
    private, public = _service_account_key(work)
    tokens = work / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text("".join(f'{token_of(user)},{user},{user},"{group}"\n' for user, group in users.items()))
    return [
        str(folder / "kube-apiserver"),
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={work / 'certs'}",
        f"--token-auth-file={tokens}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={private}",
        f"--service-account-key-file={public}",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--endpoint-reconciler-type=none",
        "--allow-privileged=true",
    ]


def _service_account_key(work: Path) -> tuple[Path, Path]:
    """Returns a fresh RSA key pair, as paths of the private and the public half."""
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


class StockScheduler(Servers):
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
        self.log = work / f"{BINARY}.log"
        self.pid = 0
        """Its id, inside the block."""

    def _start(self, stack: ExitStack) -> None:
        self._work.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        child = stack.enter_context(Process(BINARY, self._arguments(port), self.log))
        child.wait_until_ready(f"https://127.0.0.1:{port}/readyz")
        self.pid = child.pid

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


MANAGER_BINARY: Final = "kube-controller-manager"
CONTROLLERS: Final = ("resourceclaim-controller", "garbage-collector-controller", "replicaset-controller")


class ControllerManager(Servers):
    """A context manager; the certificate and the log are files in the folder `work`."""

    def __init__(self, plane: ControlPlane, work: Path, controllers: Sequence[str] = CONTROLLERS) -> None:
        self._plane = plane
        self._controllers = controllers
        self._work = work

    def _start(self, stack: ExitStack) -> None:
        self._work.mkdir(parents=True, exist_ok=True)
        kubeconfig = self._plane.kubeconfig(self._work / "kubeconfig")
        (port,) = free_ports(1)
        arguments = [
            str(self._plane.folder / MANAGER_BINARY),
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
        child = stack.enter_context(Process(MANAGER_BINARY, arguments, self._work / f"{MANAGER_BINARY}.log"))
        child.wait_until_ready(f"https://127.0.0.1:{port}/healthz")
