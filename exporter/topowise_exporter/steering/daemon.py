"""The marker plug-in as a process of its own: a restart of the exporter leaves the markers with the kubelet.

Two loops: `run` keeps the kubelet's labels as `Labels` has them, by local calls alone, so that a request ends in time
while the API server does not answer; the Lease's status is written by its own task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Final

from topowise import __version__, steering
from topowise.errors import ConfigError, ParseError, SourceError
from topowise.kube import credentials
from topowise.kube.api import Api
from topowise.kube.credentials import IN_CLUSTER
from topowise.runtime import clock, tasks
from topowise.runtime.backoff import Backoff
from topowise.runtime.log import V2, OncePerChange, kv
from topowise_exporter import landlock, machine
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.kubelet.podresources import PodResources
from topowise_exporter.steering.device_plugin import DevicePlugin, Registration
from topowise_exporter.steering.labels import Label, Labels
from topowise_exporter.steering.lease import SteeringLease

log = logging.getLogger(__name__)

DEVICE_PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
"""DevicePluginPath of the kubelet's device plug-in API."""
_PODRESOURCES_S: Final = 1.0
# A status has at most 512 characters, also if each of these is escaped.
_MOST_REASON: Final = 200


class Steering:
    """Joins the state machine with the kubelet and the Lease."""

    def __init__(
        self,
        settings: ExporterConfiguration,
        api: Api,
        podresources: PodResources,
        labels: Labels,
        namespace: str,
    ) -> None:
        """`namespace` has the Lease."""
        self._labels = labels
        self._podresources = podresources
        self._changed = asyncio.Event()
        self._poll = Backoff(0.004, 1.0)
        self._failure = OncePerChange()
        self._status: steering.Status | None = None
        self._label: Label = None
        self._plugin = DevicePlugin(settings.steering.markers, self._connected, self._disconnected, self._allocated)
        self.registration = Registration(_device_plugins(settings), self._plugin)
        self.lease = SteeringLease(api, namespace, settings.resolved_node_name(), self._requested)

    def _requested(self, text: str, is_new: bool) -> None:
        """The Lease has this text as its request."""
        try:
            request = steering.decode_request(text) if text else None
        except ParseError as exc:
            self._labels.reject(str(exc)[:_MOST_REASON], clock.monotonic())
        else:
            self._labels.request(request, clock.monotonic(), is_new=is_new)
        self._changed.set()

    def _connected(self) -> None:
        self._labels.connect(clock.monotonic(), is_new_kubelet=self.registration.connect())
        self._label = None
        log.info("The kubelet watches the markers", extra=kv(resource=steering.RESOURCE))
        self._changed.set()

    def _disconnected(self) -> None:
        self._labels.disconnect(clock.monotonic())
        self._label = None
        log.warning("The kubelet has closed its watch of the markers, registering again")
        self.registration.retry()
        self._changed.set()

    def _allocated(self, containers: int) -> None:
        self._labels.allocate(containers, clock.monotonic())
        self._changed.set()

    async def run(self) -> None:
        """Keeps the labels until cancelled."""
        while True:
            await self._wait()
            if self._labels.is_waiting:
                await self._compare()
            self._labels.step(clock.monotonic())
            self._apply()

    async def _wait(self) -> None:
        """Waits for a change, for the end of a request, and for the next question to the kubelet."""
        due = self._labels.wakes_at - clock.monotonic()
        if self._labels.is_waiting:
            due = min(due, self._poll.next_delay())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, due)):
                await self._changed.wait()
        self._changed.clear()

    async def _compare(self) -> None:
        try:
            answer = await self._podresources.allocatable_message()
        except SourceError as exc:
            if self._failure.is_change(str(exc)):
                log.warning("Cannot see which markers the kubelet has, trying again", extra=kv(why=exc))
            return
        self._failure.clear()
        topologies = [entry.topology.nodes for entry in answer.devices if entry.resource_name == steering.RESOURCE]
        self._labels.show({nodes[0].ID if nodes else None for nodes in topologies}, clock.monotonic())

    def _apply(self) -> None:
        if self._labels.label != self._label:
            self._label = self._labels.label
            self._plugin.send(self._label)
            self._poll.reset()
            log.log(V2, "Sent the markers", extra=kv(numa=self._label))
            self._changed.set()
        if self._labels.status != self._status and self._labels.status is not None:
            self._status = self._labels.status
            self.lease.put(self._status)
            log.info("Steering", extra=kv(request=self._status.id, state=self._status.state, why=self._status.reason))


def _device_plugins(settings: ExporterConfiguration) -> Path:
    """Returns the directory of the kubelet's socket for device plug-ins."""
    own = Path(settings.kubelet_root) / DEVICE_PLUGINS.name
    # Kubernetes' kubelet has the constant, whatever its --root-dir; other kubelets have the directory in their root.
    return own if settings.kubelet_root and own.is_dir() else DEVICE_PLUGINS


async def run(settings: ExporterConfiguration) -> int:
    """Runs the plug-in until a signal; returns its exit status. Raises ConfigError, SourceError and OSError."""
    if not settings.steering.enabled:
        raise ConfigError("steering.enabled", "is false, expected true: the marker plug-in is not wanted on this node")
    node, namespace = settings.resolved_node_name(), credentials.needed_namespace("steering")
    log.info("Starting the marker plug-in", extra=kv(version=__version__, node=node))
    numa_nodes = [numa.id for numa in machine.scan(settings.sysfs_root, settings.procfs_root).nodes]
    access = await credentials.load(settings.client.kubeconfig)
    async with (
        PodResources(settings.podresources_socket, timeout=_PODRESOURCES_S) as podresources,
        Api(access, "topowise-exporter") as api,
    ):
        daemon = Steering(settings, api, podresources, Labels(numa_nodes), namespace)
        server = await daemon.registration.serve()
        if IN_CLUSTER in os.environ and not settings.client.kubeconfig:
            # The socket stays while kubelets come and go, so nothing has to be written any more.
            landlock.apply()
        work = {
            "labels": daemon.run(),
            "registration": daemon.registration.run(),
            "kubelet socket watch": daemon.registration.watch().run(),
            "lease watch": daemon.lease.watch(),
            "lease status": daemon.lease.write(),
        }
        try:
            return await tasks.run_until_stopped(work)
        finally:
            await server.stop(None)
