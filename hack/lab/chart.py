"""The chart, installed by Helm with its defaults; its daemons are processes of the lab."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from images.application import REPOSITORY
from lab.api import Api
from lab.errors import LabError

NAMESPACE: Final = "topowise-system"
_EXPORTER: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/topowise-exporter"
LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
# topowise-scheduler has the rights that the chart gives to kube-scheduler's user.
_VALUES: Final = ("scheduler.mode=static", "steering.enabled=true", "scheduler.config.resourceClaims.enabled=true")
_SECONDS: Final = 180


def install(kubeconfig: Path, api: Api) -> None:
    """Installs the release, and deletes the DaemonSet of the exporter. Raises LabError."""
    _helm("--fetch")
    values = [f"--set={value}" for value in _VALUES]
    where = [f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}", "--create-namespace"]
    _helm("install", "topowise", str(REPOSITORY / "charts/topowise"), *where, *values)
    api.delete(_EXPORTER)


def _helm(*arguments: str) -> None:
    command = [str(REPOSITORY / "hack/helm"), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise LabError(f"helm {' '.join(arguments)[:120]} ended with {done.returncode}: {done.stderr[-800:]}")
