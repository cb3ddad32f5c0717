"""From nothing to a lab in which pods can be placed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Final

from lab import controlplane, machine, node, running, series
from lab.api import LabError
from lab.cluster import Lab
from lab.running import Plan
from sandbox.processes import free_ports

PACKAGES: Final = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "pgrep": "procps",
    "pkill": "procps",
    "openssl": "openssl",
    "git": "git",
}


def check() -> None:
    """Raises LabError that names every missing program and the packages that have it."""
    if missing := [program for program in PACKAGES if not shutil.which(program)]:
        packages = dict.fromkeys(PACKAGES[program] for program in missing)
        raise LabError(
            f"{', '.join(missing)} not found on PATH, so the lab does not start; apt-get install {' '.join(packages)}"
        )


def up(names: Sequence[str]) -> Lab:
    """Starts the control plane and the nodes. Raises LabError; the caller then ends the started processes."""
    for name in names:
        machine.read(name)
    controlplane.binaries()
    check()
    node.mount_points()
    directory = running.new()
    own, kubelets = free_ports(4), dict(zip(names, free_ports(len(names)), strict=True))
    plan = Plan(own[0], own[1], own[2], own[3], kubelets)
    running.write(directory, plan)
    lab = Lab(directory, plan)
    controlplane.start(lab.processes, plan)
    controlplane.install(lab.kubeconfig, lab.api)
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
