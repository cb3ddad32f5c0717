"""The instructions that `make demo KEEP=1` prints: how to reach the cluster, and what to try.

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
    (
        "Pods on a single node, while the other nodes are cordoned",
        (
            "kubectl cordon metal-2s metal-snc metal-uneven",
            "kubectl apply -f hack/demo/try/batch.yaml",
            "kubectl get pods -l app=batch -o wide",
            "kubectl uncordon metal-snc metal-uneven",
        ),
    ),
    (
        "A pod that waits for a whole NUMA node, and the plan that makes room",
        (
            "kubectl apply -f hack/demo/try/wide.yaml",
            "kubectl topowise explain wide",
            "kubectl topowise defrag -f hack/demo/try/wide.yaml",
        ),
    ),
    (
        "A pod with a priority: a pod is evicted for it, and comes again elsewhere",
        ("kubectl apply -f hack/demo/try/urgent.yaml", "kubectl get pods -o wide"),
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
