"""What is printed of a demo that keeps running: how it is reached, and three things to try.

The commands are those of the tour in docs/quick-start.md, so what is said to work is run by its test.
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
    """For a terminal in the checkout."""
    lines = [
        "The cluster keeps running, until: make demo-stop",
        f"  dashboard   {dashboard}",
        f"  logs        {directory}",
        "",
        "Reach it from this directory with",
        f"  {REACH}",
    ]
    for number, (what, commands) in enumerate(THINGS, start=1):
        lines += ["", f"{number}. {what}", *(f"  {command}" for command in commands)]
    return "\n".join(lines)
