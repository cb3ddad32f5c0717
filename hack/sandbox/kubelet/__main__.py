"""Emulated kubelets in a process: `python -m sandbox.kubelet --kubeconfig F --node NAME=DIRECTORY ...`.

Each has all that an exporter process looks at: its Node, its socket, its state files. Killed and started again, they go
on from the files in their directories, as a restarted kubelet does.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from random import Random

from sandbox.kubelet import podresources
from sandbox.kubelet.lifecycle import Lifecycle
from sandbox.kubelet.node import EmulatedNode
from sandbox.kubelet.pace import Pace, Pause, Seconds, Startup
from sandbox.kubelet.state_files import Root
from topowise import pods
from topowise.errors import TopowiseError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime import log, tasks


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
        self._pods_api = podresources.PodsApi(self._node.holdings)
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


def main() -> int:
    """Runs until SIGTERM."""
    parser = argparse.ArgumentParser(prog="sandbox.kubelet", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--node", action="append", required=True, metavar="NAME=DIRECTORY", dest="nodes")
    parser.add_argument("--seed", default="0", help="seed of all random choices")
    pause, startup = Pause().usual, Startup(blind=(0.2, 0.8), plugins=(0.05, 0.3))
    for option, default, meaning in (
        ("--pause", pause, "between two checkpoints of an admission"),
        ("--stop", Pace().stop, "between the deletion of a pod and the end of its containers"),
        ("--blind", startup.blind, "from the start until pods and resources are known"),
        ("--plugins", startup.plugins, "between the registrations of two device plugins"),
    ):
        parser.add_argument(option, type=_seconds, default=default, metavar="FROM-TO", help=f"seconds {meaning}")
    options = parser.parse_args()
    log.set_up()
    pace = Pace(stop=options.stop, pause=Pause(options.pause), startup=Startup(options.blind, options.plugins))
    try:
        return asyncio.run(_run(options.kubeconfig, options.nodes, pace, options.seed))
    except TopowiseError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1


def _seconds(text: str) -> Seconds:
    shortest, _, longest = text.partition("-")
    return float(shortest), float(longest or shortest)


async def _run(kubeconfig: str, nodes: list[str], pace: Pace, seed: str) -> int:
    async with Api(await credentials.load(kubeconfig), "sandbox-kubelet") as api:
        agents = {}
        for node in nodes:
            name, _, directory = node.partition("=")
            agent = Agent(api, name, Path(directory), pace=pace, random=Random(f"{name} {seed}"))
            agents[f"kubelet {name}"] = agent.run()
        return await tasks.run_until_stopped(agents)


if __name__ == "__main__":
    sys.exit(main())
