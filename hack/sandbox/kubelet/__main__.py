"""Emulated kubelets in one process: `python -m sandbox.kubelet --kubeconfig F --node NAME=DIRECTORY ...`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from sandbox.kubelet.agent import Agent
from topowise.errors import TopowiseError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.runtime import log, tasks


def main() -> int:
    """Runs until SIGTERM."""
    parser = argparse.ArgumentParser(prog="sandbox.kubelet", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--node", action="append", required=True, metavar="NAME=DIRECTORY", dest="nodes")
    options = parser.parse_args()
    log.set_up()
    try:
        return asyncio.run(_run(options.kubeconfig, options.nodes))
    except TopowiseError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1


async def _run(kubeconfig: str, nodes: list[str]) -> int:
    async with Api(await credentials.load(kubeconfig), "sandbox-kubelet") as api:
        agents = {}
        for one in nodes:
            name, _, directory = one.partition("=")
            agents[f"kubelet {name}"] = Agent(api, name, Path(directory)).run()
        return await tasks.run_until_stopped(agents)


if __name__ == "__main__":
    sys.exit(main())
