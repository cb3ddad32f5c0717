"""Emulated kubelets in a process: `python -m sandbox.kubelet --kubeconfig F --node NAME=DIRECTORY ...`.

Killed and started again, they go on from the files in their directories, as a restarted kubelet does.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from random import Random

from sandbox.kubelet.agent import Agent
from sandbox.kubelet.pace import Pace, Pause, Seconds, Startup
from topowise.errors import TopowiseError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.runtime import log, tasks


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
