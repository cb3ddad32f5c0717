"""`python syncs.py CONFIG COUNT`: runs the exporter's syncs without pauses between them.

A daemon syncs ten times a second at most, by which ten thousand syncs take a quarter of an hour. What a sync does is
the daemon's own: the kubelet's socket and files are read, and what is new is written. Prints what the process holds
after a tenth of the syncs and after all, a JSON list a line: RSS in bytes, descriptors, threads, tasks, syncs done.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys

from faults.usage import usage
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.runtime import config
from topowise_exporter.conditions import Conditions
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.daemon import Exporter
from topowise_exporter.kubelet.podresources import PodResources
from topowise_exporter.kubelet.settings import Source
from topowise_exporter.metrics import Metrics
from topowise_exporter.observe import Observer
from topowise_exporter.publisher import Publisher
from topowise_exporter.triggers import Trigger


async def main(file: str, syncs: int) -> None:
    settings = config.load(ExporterConfiguration, file)
    access = await credentials.load(settings.client.kubeconfig)
    metrics, conditions = Metrics(), Conditions()
    async with (
        PodResources(settings.podresources_socket) as podresources,
        Api(access, "topowise-exporter") as api,
    ):
        source = Source(settings.kubelet)
        observer = Observer(settings, podresources, source)
        publisher = Publisher(settings, api)
        exporter = Exporter(settings, observer, publisher, source, metrics, conditions, Trigger())
        gc.collect()
        gc.freeze()
        for number in range(1, syncs + 1):
            await exporter.sync()
            if number in (syncs // 10, syncs):
                gc.collect()
                used = usage(os.getpid())
                sys.stdout.write(json.dumps([*used, len(asyncio.all_tasks()), number]) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
