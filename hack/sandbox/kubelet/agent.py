"""An emulated kubelet with all that an exporter process looks at: its Node, its socket, its state files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from sandbox.kubelet import podresources, pods_api
from sandbox.kubelet.lifecycle import Lifecycle
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.pace import Pace
from sandbox.kubelet.root import Root
from topowise import pods
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector


class Agent:
    """`directory` has `sys`, `proc` and `kubelet/config.yaml`; the socket and the state files come into `kubelet`, and
    what is there of an earlier process is taken up."""

    def __init__(
        self, api: Api, name: str, directory: Path, *, pace: Pace | None = None, random: Random | None = None
    ) -> None:
        self._api = api
        self._name = name
        self._kubelet_dir = directory / "kubelet"
        self._pace = pace or Pace()
        config = self._kubelet_dir / "config.yaml"
        self._node = EmulatedNode.from_files(directory / "sys", directory / "proc", config)
        # Until it has read its files.
        self._node.is_blind = True
        self._pods_api = pods_api.PodsApi(self._node.holdings)
        root = Root(self._kubelet_dir)
        self._lifecycle = Lifecycle(api, name, self._node, root, self._pods_api.changed, pace=self._pace, random=random)

    @property
    def socket(self) -> Path:
        """Where podresources is served."""
        return self._kubelet_dir / "pod-resources/kubelet.sock"

    async def run(self) -> None:
        """Runs until cancelled. Raises SourceError for state files with which a kubelet does not start."""
        server = await podresources.start(self.socket, self._node.holdings)
        await self._pods_api.start(self._kubelet_dir / "pods-api/pods-api.sock")
        query = {"fieldSelector": f"spec.nodeName={self._name}"}
        reflector = Reflector(self._api, "/api/v1/pods", pods.decode, self, query=query)
        try:
            await self._lifecycle.start_up(self._pace.startup)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(reflector.run(), name=f"{self._name} watch")
                tasks.create_task(self._lifecycle.run(), name=f"{self._name} admissions")
        finally:
            await self._pods_api.stop()
            await server.stop(None)

    def replace(self, items: list[pods.Pod]) -> None:
        """As Consumer: everything that is bound here."""
        self._lifecycle.replace(items)

    def apply(self, event: EventType, item: pods.Pod) -> None:
        """As Consumer: applies a change."""
        self._lifecycle.put(event, item)
