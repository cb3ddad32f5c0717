"""A hollow node: machine, kubelet and exporter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

from sandbox.hollow.reporter import Reporter, Reporting
from sandbox.kubelet.lifecycle import Lifecycle, Refused
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.pace import Pace, Startup
from sandbox.kubelet.registration import Taints, register
from sandbox.kubelet.root import Root
from topowise.kube.api import Api
from topowise.kubeletconfig import KubeletConfiguration, with_defaults
from topowise_exporter.machine import Machine
from topowise_scheduler.kubelet import DevicePlugin
from topowise_scheduler.kubelet.device_manager import Chooser


class HollowNode:
    """`directory` is the kubelet's root. Raises KubeletStartError if a kubelet would not start like this."""

    def __init__(
        self,
        api: Api,
        name: str,
        machine: Machine,
        config: KubeletConfiguration,
        directory: Path,
        *,
        pace: Pace,
        reporting: Reporting,
        devices: Sequence[DevicePlugin] | None = None,
        refused: Refused | None = None,
        seed: int = 0,
        chooser: Chooser | None = None,
    ) -> None:
        self._api = api
        self.name = name
        self.root = directory
        self.config = with_defaults(config)
        self.kubelet = EmulatedNode(machine, self.config, devices, chooser=chooser)
        random = Random(f"{name} {seed}")
        self.reporter = Reporter(
            api, name, machine, self.config, self.kubelet, directory, reporting=reporting, random=random
        )
        root = Root(directory)
        root.make_socket_file()
        self.lifecycle = Lifecycle(
            api, name, self.kubelet, root, self.reporter.note, pace=pace, refused=refused, random=random
        )
        self.lifecycle.checkpoint(devices=True)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing will happen by itself, and everything is published."""
        return not self.lifecycle.is_busy and self.reporter.is_current

    async def register(self, taints: Taints = ()) -> None:
        """Makes the Node object, with these taints (`registerWithTaints`)."""
        await register(self._api, self.name, self.kubelet, taints)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.lifecycle.run(), name=f"{self.name} kubelet")
            tasks.create_task(self.reporter.run(), name=f"{self.name} exporter")

    async def restart(self, startup: Startup) -> None:
        """Restarts the kubelet's process; returns when the kubelet knows its pods."""
        await self.lifecycle.restart(startup)
