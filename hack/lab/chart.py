"""The chart, installed as anybody would: by Helm, with its defaults, and the image of `make images`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from images.application import REPOSITORY
from lab.api import Api, Json, wait
from lab.errors import LabError

NAMESPACE: Final = "topowise-system"
RELEASE: Final = "topowise"
DAEMON_SETS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
# topowise-scheduler runs on this machine, with the rights that the chart gives to kube-scheduler's user.
_VALUES: Final = {"scheduler.mode": "static"}
# Not for the chart of an earlier commit, which may not know the values.
_OF_THIS_TREE: Final = {"steering.enabled": True, "scheduler.config.resourceClaims.enabled": True}
_SECONDS: Final = 180


def helm(kubeconfig: Path, *arguments: str) -> str:
    """Runs Helm, and returns its output. Raises LabError."""
    command = [str(REPOSITORY / "hack/helm"), *arguments, f"--kubeconfig={kubeconfig}", f"--namespace={NAMESPACE}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS, env=os.environ)
    if done.returncode:
        raise LabError(f"helm {' '.join(arguments)[:120]} ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def fetch_helm() -> None:
    """Fetches Helm unless it is installed. Raises LabError."""
    done = subprocess.run([str(REPOSITORY / "hack/helm"), "--fetch"], check=False, capture_output=True, text=True)
    if done.returncode:
        raise LabError(
            f"helm is not installed, and hack/helm --fetch ended with {done.returncode}: {done.stderr[-400:]}"
        )


def install(kubeconfig: Path, values: Mapping[str, str | bool] | None = None, tree: Path = REPOSITORY) -> None:
    """Installs or upgrades the release, with the chart in a tree."""
    spelt = [
        f"--set={key}={str(value).lower()}" if isinstance(value, bool) else f"--set-string={key}={value}"
        for key, value in {**_VALUES, **(_OF_THIS_TREE if tree == REPOSITORY else {}), **(values or {})}.items()
    ]
    # Not every API server that people run answers for its schema.
    helm(
        kubeconfig,
        "upgrade",
        "--install",
        RELEASE,
        str(tree / "charts/topowise"),
        "--create-namespace",
        "--disable-openapi-validation",
        *spelt,
    )


def roll_back(kubeconfig: Path) -> None:
    """Rolls back to the previous revision."""
    helm(kubeconfig, "rollback", RELEASE)


def until_rolled_out(api: Api, seconds: float = 600.0) -> None:
    """Waits until every node has a ready exporter of the present template. Raises LabError."""

    def done() -> bool:
        daemon_set = api.find(f"{DAEMON_SETS}/topowise-exporter") or {}
        status: Json = daemon_set.get("status") or {}
        desired = status.get("desiredNumberScheduled", 0)
        is_seen = status.get("observedGeneration") == daemon_set.get("metadata", {}).get("generation")
        ready = (status.get("updatedNumberScheduled"), status.get("numberReady"))
        return bool(desired) and is_seen and ready == (desired, desired)

    wait(done, seconds, "every node runs the exporter", 0.5)


def exporter_pod(api: Api, node: str) -> Json:
    """Returns the running exporter pod of a node. Raises LabError."""
    for pod in api.items(PODS):
        is_ready = any(container.get("ready") for container in pod["status"].get("containerStatuses", ()))
        if pod["spec"].get("nodeName") == node and is_ready and not pod["metadata"].get("deletionTimestamp"):
            return pod
    raise LabError(f"no exporter is ready on {node}")
