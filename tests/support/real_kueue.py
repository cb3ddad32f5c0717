"""The real Kueue on loopback, against a `ControlPlane`, with its CRDs and webhooks.

`kueue` is in $KUEUE or beside kube-apiserver. $KUEUE_MANIFESTS, by default /usr/local/kubebuilder/share/kueue, has
`crds/` and `webhooks.yaml` of the same version (docs/development/lab-binaries.md).
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import yaml

from pki import Authority
from real_cluster import ASSETS
from sandbox.apiserver import documents
from sandbox.controlplane import ControlPlane
from sandbox.processes import Process, Servers, free_ports

Json = dict[str, Any]
GROUP: Final = "/apis/kueue.x-k8s.io/v1beta1"
BINARY: Final = Path(os.environ.get("KUEUE") or (ASSETS or Path()) / "kueue")
MANIFESTS: Final = Path(os.environ.get("KUEUE_MANIFESTS") or "/usr/local/kubebuilder/share/kueue")
MISSING: Final = f"no kueue in $KUEUE or {ASSETS}, or no crds/ and webhooks.yaml in $KUEUE_MANIFESTS or {MANIFESTS}"
NAMESPACE: Final = "kueue-system"
_SECRET: Final = "kueue-webhook-server-cert"
# Kueue writes its own CA into the configurations of these names, so the webhooks are in others.
_INJECTED: Final = {
    "Mutating": "kueue-mutating-webhook-configuration",
    "Validating": "kueue-validating-webhook-configuration",
}
_KINDS: Final = frozenset(("batch", "kueue.x-k8s.io"))


def is_available() -> bool:
    return os.access(BINARY, os.X_OK) and (MANIFESTS / "crds").is_dir() and (MANIFESTS / "webhooks.yaml").is_file()


def definitions() -> list[Json]:
    """Returns the CRDs of Kueue."""
    return documents.load_all(MANIFESTS / "crds")


class Kueue(Servers):
    """A context manager. Its certificate, configuration and log are files in the folder `work`."""

    def __init__(self, plane: ControlPlane, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self._plane, self._work = plane, work
        self._health, self._webhooks = free_ports(2)
        self._authority = Authority(work / "pki", "kueue")

    def objects(self) -> Iterator[tuple[str, Json]]:
        """Yields what has to exist before the start: collection, object."""
        yield "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}}
        yield f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": _SECRET}}
        bundle = base64.b64encode(self._authority.certificate.read_bytes()).decode()
        for document in yaml.safe_load_all((MANIFESTS / "webhooks.yaml").read_text()):
            kind = document["kind"].removesuffix("WebhookConfiguration")
            path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
            webhooks = [
                webhook
                for webhook in document["webhooks"]
                if all(set(rule["apiGroups"]) <= _KINDS for rule in webhook["rules"])
            ]
            for webhook in webhooks:
                url = f"https://127.0.0.1:{self._webhooks}{webhook['clientConfig']['service']['path']}"
                webhook["clientConfig"] = {"url": url, "caBundle": bundle}
            yield path, {**document, "metadata": {"name": f"e2e-{kind.lower()}"}, "webhooks": webhooks}
            yield path, {**document, "metadata": {"name": _INJECTED[kind]}, "webhooks": []}

    def _start(self, stack: ExitStack) -> None:
        certificates = self._work / "certificates"
        certificates.mkdir(exist_ok=True)
        certificate, key = self._authority.issue("webhooks")
        (certificates / "tls.crt").write_bytes(certificate.read_bytes())
        (certificates / "tls.key").write_bytes(key.read_bytes())
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta1",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._webhooks, "certDir": str(certificates)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": True, "webhookSecretName": _SECRET},
            "integrations": {"frameworks": ["batch/job"]},
            # Its server would listen on all addresses.
            "featureGates": {"VisibilityOnDemand": False},
        }
        (self._work / "kueue.json").write_text(json.dumps(config))
        kubeconfig = self._plane.kubeconfig(self._work / "kubeconfig")
        arguments = [
            str(BINARY),
            f"--config={self._work / 'kueue.json'}",
            f"--kubeconfig={kubeconfig}",
            "--zap-log-level=2",
        ]
        child = stack.enter_context(Process("kueue", arguments, self._work / "kueue.log"))
        child.wait_until_ready(f"http://127.0.0.1:{self._health}/readyz")
