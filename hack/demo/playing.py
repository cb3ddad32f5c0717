"""The instructions that `make demo KEEP=1` prints: how to reach the cluster, and three things to try.

The test of docs/quick-start.md runs the same commands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

REACH: Final = "export KUBECONFIG=$PWD/.demo/kubeconfig PATH=$PWD/.venv/bin:$PATH"
THINGS: Final = (
    (
        "A pod that is placed",
        ("kubectl apply -f hack/demo/try/placed.yaml", "kubectl get pod placed -o wide"),
    ),
    (
        "A pod that waits: sums are not enough",
        (
            "kubectl apply -f hack/demo/try/waiting.yaml",
            "kubectl get events --field-selector involvedObject.name=waiting",
            "kubectl topowise explain waiting",
        ),
    ),
    (
        "Room for it, which wakes it",
        ("kubectl delete pod database-2", "kubectl get pod waiting -o wide"),
    ),
)


def instructions(directory: Path, dashboard: str) -> str:
    """Returns the instructions, for a terminal in the checkout."""
    lines = [
        "The cluster keeps running until you run: make demo-stop",
        f"  dashboard   {dashboard}",
        f"  logs        {directory}",
        "",
        "Reach it from this directory with",
        f"  {REACH}",
    ]
    for number, (purpose, commands) in enumerate(THINGS, start=1):
        lines += ["", f"{number}. {purpose}", *(f"  {command}" for command in commands)]
    return "\n".join(lines)
