"""The emulated kube-controller-manager as a process: `python -m sandbox.controllers --kubeconfig FILE`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from typing import Any, Final

import msgspec

from sandbox.controllers.workloads import COLLECTIONS, Cluster, Write, writes
from topowise.errors import ApiError, TopowiseError
from topowise.kube import credentials
from topowise.kube.api import MERGE_PATCH, Api
from topowise.kube.reflector import EventType, Reflector
from topowise.runtime import log, tasks
from topowise.runtime.log import kv

logger = logging.getLogger(__name__)

# Events that come together cause a single pass.
_PAUSE_S: Final = 0.05
_RETRY_S: Final = 1.0


class Manager:
    """Runs all controllers on fresh lists after every event, so that no decision precedes its own earlier writes.

    Suits clusters of some hundred objects.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._changed = asyncio.Event()

    def replace(self, items: list[Any]) -> None:
        """As Consumer: a new list is an event."""
        self._changed.set()

    def apply(self, event: EventType, item: Any) -> None:
        """As Consumer: the content is read from the next list."""
        self._changed.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for plural, prefix in COLLECTIONS.items():
                reflector = Reflector(self._api, f"{prefix}/{plural}", msgspec.json.decode, self)
                group.create_task(reflector.run(), name=f"watch of {plural}")
            while True:
                await self._changed.wait()
                self._changed.clear()
                await asyncio.sleep(_PAUSE_S)
                try:
                    for write in writes(await self._cluster()):
                        await self._send(write)
                except ApiError as exc:
                    logger.warning("Cannot list, the pass is repeated", extra=kv(why=exc))
                    await self._repeat()

    async def _cluster(self) -> Cluster:
        lists = {
            plural: msgspec.json.decode(await self._api.request("GET", f"{prefix}/{plural}"))["items"]
            for plural, prefix in COLLECTIONS.items()
        }
        return Cluster(lists)

    async def _send(self, write: Write) -> None:
        body = msgspec.json.encode(write.body)
        try:
            if write.method == "PATCH":
                await self._api.request("PATCH", write.path, body=body, content_type=MERGE_PATCH)
            else:
                await self._api.request(write.method, write.path, body=body)
        except ApiError as exc:
            # An object that has changed or is gone has an event, which causes the next pass.
            if exc.status not in (404, 409):
                logger.warning("Cannot write", extra=kv(path=write.path, why=exc))
                await self._repeat()

    async def _repeat(self) -> None:
        await asyncio.sleep(_RETRY_S)
        self._changed.set()


def main() -> int:
    """Runs until SIGTERM."""
    parser = argparse.ArgumentParser(prog="sandbox.controllers", description=__doc__)
    parser.add_argument("--kubeconfig", required=True, metavar="FILE")
    options = parser.parse_args()
    log.set_up()
    try:
        return asyncio.run(_run(options.kubeconfig))
    except TopowiseError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1


async def _run(kubeconfig: str) -> int:
    async with Api(await credentials.load(kubeconfig), "sandbox-controllers") as api:
        return await tasks.run_until_stopped({"controllers": Manager(api).run()})


if __name__ == "__main__":
    sys.exit(main())
