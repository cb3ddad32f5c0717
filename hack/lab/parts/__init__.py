"""The parts of the test, each a function from a lab to what it has found, in the order in which they run.

The series run after the parts that only observe, and before the parts that disturb.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lab.cluster import Lab
from lab.parts import claims, disturbing, jobs, living, observing, steered_binds, steered_faults, steering, waits
from lab.results import Part
from lab.running import NATIVE

Run = Callable[[Lab], Part]

BEFORE: Final[dict[str, Run]] = {
    "object": observing.object_equals_truth,
    "latency": observing.latency,
    "idle": observing.idle,
    "memory": observing.memory,
}
AFTER: Final[dict[str, Run]] = {
    "restart": disturbing.kubelet_restart,
    "policy": disturbing.policy_change,
    "plugin": living.plugin_restart,
    "unhealthy": living.unhealthy_devices,
    "static": living.static_pods,
    "policy-with-pods": living.policy_with_pods,
    "resize": living.resize,
    "ephemeral": living.ephemeral_containers,
    "pressure": living.pressure,
    "reboot": disturbing.reboot,
    "upgrade": disturbing.exporter_upgrade,
    "drain": disturbing.drain,
    "rejoin": disturbing.rejoin,
    "steering": steering.steered_pods,
    "steered-binds": steered_binds.steered_binds,
    "steered-faults": steered_faults.steered_faults,
    "waits": waits.waits,
    "claims": claims.claims,
    jobs.MACHINE: jobs.p5,
}
# Parts that need containers, cgroups or the chart's pods, so an emulated guest.
EMULATED: Final = frozenset({"memory", "resize", "pressure", "upgrade", "rejoin", "steering"})


def is_possible(name: str, lab: Lab) -> bool:
    """Returns whether the lab has what the part needs: its machine, emulation or none, or devices of claims."""
    is_native = lab.plan.accelerator == NATIVE
    if name == jobs.MACHINE:
        return jobs.MACHINE in lab.guests
    if name == "claims":
        return is_native and any(machine.claims for machine in lab.machines.values())
    return not (is_native and name in EMULATED)
