"""The parts of the test, each a function from a lab to what it has found, in the order in which they run.

The series run after the parts that only observe, and before the parts that disturb.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lab.cluster import Lab
from lab.parts import claims, disturbing, living, observing, steered_binds, steered_faults
from lab.results import Part

Run = Callable[[Lab], Part]

BEFORE: Final[dict[str, Run]] = {
    "object": observing.object_equals_truth,
    "idle": observing.idle,
}
AFTER: Final[dict[str, Run]] = {
    "restart": disturbing.kubelet_restart,
    "plugin": living.plugin_restart,
    "unhealthy": living.unhealthy_devices,
    "static": living.static_pods,
    "policy-with-pods": living.policy_with_pods,
    "resize": living.resize,
    "ephemeral": living.ephemeral_containers,
    "reboot": disturbing.reboot,
    "drain": disturbing.drain,
    "rejoin": disturbing.rejoin,
    "steered-binds": steered_binds.steered_binds,
    "steered-faults": steered_faults.steered_faults,
    "claims": claims.claims,
}


def is_possible(name: str, lab: Lab) -> bool:
    """Returns whether the nodes have what the part needs: devices of claims."""
    return name != "claims" or all(machine.claims for machine in lab.machines.values())
