"""A lab whose nodes are not emulated."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Final

from lab import chart, controlplane, kubelet, programs, running, series
from lab.cluster import Lab
from lab.errors import LabError
from lab.guest import Guest
from lab.native import nodes
from lab.native.nodes import Node
from lab.qemu import Ports
from lab.running import NATIVE, Plan, Processes
from sandbox.controlplane import token_of
from sandbox.processes import free_ports

# After a reboot the kubelet starts the containers of device plug-ins some seconds after it has admitted its pods.
_CONTAINERS_S: Final = 5.0


class NativeLab(Lab):
    """The parts of the test run on it as on emulated guests; `restart` of a guest ends all its processes."""

    def guest(self, name: str, ports: Ports) -> Guest:
        """Returns the node of this name."""
        return Node(name, self.directory, ports)

    def power_on(self, name: str) -> None:
        """Starts the name spaces, the runtime and the agent."""
        node = self.guests[name]
        assert isinstance(node, Node)
        self.processes.start(f"guest-{name}", nodes.first_process(node))
        node.until_booted()
        for service in ("runtime", "agent"):
            self._serve(name, service)
        node.until_runtime()

    def join(self, name: str) -> None:
        """Starts the kubelet, and then the services that are containers on a real node."""
        user = controlplane.node_user(name)
        config = kubelet.kubeconfig(self.plan.api, controlplane.certificate(self.directory), token_of(user))
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.plan.api}"
        self.configure(name)
        self.guests[name].write({kubelet.KUBECONFIG: json.dumps(config)})
        self.guests[name].run("systemctl start kubelet")
        time.sleep(_CONTAINERS_S)
        for service in self._services(name):
            if service not in ("runtime", "agent"):
                self._serve(name, service)

    def configure(self, name: str) -> None:
        """Writes the configuration of the kubelet."""
        own = kubelet.configuration(self.machines[name], {**self.setting, **self.changed[name]})
        fields = {**own, **nodes.configuration(self.guests[name].ports)}
        self.guests[name].write({kubelet.CONFIG: json.dumps(fields, indent=1)})

    def reboot(self, name: str) -> None:
        """Ends all processes of the node, and starts it with another boot id and without containers."""
        node = self.guests[name]
        assert isinstance(node, Node)
        self.processes.stop(f"guest-{name}")
        node.boot()
        self.power_on(name)
        since = self.now(name)
        self.join(name)
        self.until_ready(name, since)
        self.until_devices(name)

    def plugin_starts(self, name: str) -> int:
        """Returns how often the device plug-ins have started, by their logs."""
        logs = self.directory.glob(f"{name}-plugin-*.log")
        return sum(log.read_text().count("devices {") for log in logs)

    def runtime_versions(self) -> dict[str, str]:
        """There is no container runtime."""
        return {}

    def _services(self, name: str) -> dict[str, list[str]]:
        node = self.guests[name]
        assert isinstance(node, Node)
        return nodes.services(node, self.machines[name], node.folder / "exporter.yaml")

    def _serve(self, name: str, service: str) -> None:
        node = self.guests[name]
        assert isinstance(node, Node)
        command = nodes.kept(node, service, self._services(name)[service])
        self.processes.start(f"{name}-{service}", command)


def up(names: Sequence[str]) -> Lab:
    """Starts the control plane and the nodes. Raises LabError; the caller then ends the started processes."""
    programs.check(programs.NATIVE)
    chart.fetch_helm()
    nodes.mount_points()
    directory = running.new()
    own, remaining = free_ports(4), iter(free_ports(3 * len(names)))
    guests = {name: Ports(*(next(remaining) for _ in range(3))) for name in names}
    plan = Plan(own[0], own[1], own[2], own[3], NATIVE, guests)
    running.write(directory, plan)
    controlplane.start(Processes(directory), plan)
    lab = NativeLab(directory, plan)
    chart.install(lab.kubeconfig)
    # The exporter is a process of the node.
    lab.api.delete(f"{chart.DAEMON_SETS}/topowise-exporter")
    lab.api.create("/apis/node.k8s.io/v1/runtimeclasses", series.runtime_class())
    controlplane.start_schedulers(lab.processes, plan)
    for name, node in lab.guests.items():
        assert isinstance(node, Node)
        node.prepare(lab.machines[name])
        nodes.exporter(node, lab.kubeconfig)
        lab.power_on(name)
        lab.join(name)
    for name in lab.guests:
        lab.until_ready(name)
        lab.until_devices(name)
    lab.watch()
    if different := lab.settle():
        raise LabError(f"objects differ from their nodes: {'; '.join(different)[:600]}")
    print(f"lab: is up; KUBECONFIG={lab.kubeconfig}, make lab ARGS=down ends it", flush=True)
    return lab
