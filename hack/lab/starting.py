"""From nothing to a lab in which pods can be placed."""

from __future__ import annotations

from collections.abc import Sequence

from lab import chart, controlplane, machine, node, programs, running, series
from lab.cluster import Lab
from lab.errors import LabError
from lab.running import Plan
from sandbox.processes import free_ports


def up(names: Sequence[str]) -> Lab:
    """Starts the control plane and the nodes. Raises LabError; the caller then ends the started processes."""
    for name in names:
        machine.read(name)
    controlplane.binaries()
    programs.check()
    node.mount_points()
    directory = running.new()
    own, kubelets = free_ports(4), dict(zip(names, free_ports(len(names)), strict=True))
    plan = Plan(own[0], own[1], own[2], own[3], kubelets)
    running.write(directory, plan)
    lab = Lab(directory, plan)
    controlplane.start(lab.processes, plan)
    chart.install(lab.kubeconfig, lab.api)
    lab.api.create("/apis/node.k8s.io/v1/runtimeclasses", series.runtime_class())
    controlplane.start_schedulers(lab.processes, plan)
    for name, each in lab.nodes.items():
        each.prepare(lab.machines[name])
        node.exporter(each, lab.kubeconfig)
        lab.power_on(name)
        lab.join(name)
    for name in lab.nodes:
        lab.until_ready(name)
        lab.until_devices(name)
    lab.watch()
    if different := lab.settle():
        raise LabError(f"objects differ from their nodes: {'; '.join(different)[:600]}")
    print(f"lab: is up; KUBECONFIG={lab.kubeconfig}, make lab ARGS=down ends it", flush=True)
    return lab


def again() -> Lab:
    """Returns the running lab. Raises LabError."""
    lab = Lab(*running.plan())
    lab.processes.check()
    lab.watch()
    return lab
