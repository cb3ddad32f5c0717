"""The sandbox's kube-scheduler as a process: `python -m sandbox.kubescheduler --kubeconfig F --extender URL NAME ...`.

The process schedules the pods whose schedulerName is among the names, as a kube-scheduler with a profile per name, and
writes their events.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import aiohttp

from sandbox.kubescheduler.extender import Extender
from sandbox.kubescheduler.scheduler import KubeScheduler
from sandbox.kubescheduler.status import EventWriter
from topowise.errors import TopowiseError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.runtime import log, tasks


def main() -> int:
    """Runs until SIGTERM."""
    parser = argparse.ArgumentParser(prog="sandbox.kubescheduler", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, metavar="FILE")
    parser.add_argument("--extender", required=True, metavar="URL", help="urlPrefix of the extender")
    parser.add_argument("names", nargs="+", metavar="NAME", help="schedulerName of a profile")
    options = parser.parse_args()
    log.set_up()
    try:
        return asyncio.run(_run(options.kubeconfig, options.extender, options.names))
    except TopowiseError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1


async def _run(kubeconfig: str, extender: str, names: list[str]) -> int:
    async with Api(await credentials.load(kubeconfig), "sandbox-scheduler") as api, aiohttp.ClientSession() as session:
        name, *profiles = names
        events = EventWriter(api, name)
        scheduler = KubeScheduler(api, name, Extender(session, extender), profiles=profiles, events=events)
        return await tasks.run_until_stopped({"kube-scheduler": scheduler.run()})


if __name__ == "__main__":
    sys.exit(main())
