"""ExporterConfiguration, the file that `topowise-exporter run --config` reads."""

from __future__ import annotations

import os
import socket
from typing import Annotated

import msgspec

from topowise.runtime.config import Configuration, Section, Serving
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.podresources import DEFAULT_SOCKET
from topowise_exporter.kubelet.settings import Kubelet
from topowise_exporter.publish.topology import Publishing


class MarkerPlugin(Section, frozen=True):
    """The marker plug-in (`topowise-exporter steer`), by which topowise-scheduler chooses the NUMA node of pods."""

    enabled: bool = False
    """Offer markers (`topowise.io/numa`) to the kubelet."""
    markers: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 512
    """Number of markers of a node; a container with a marker has one. At least maxPods times the containers of such a
    pod. Another number changes the node's allocatable resources."""


class ExporterConfiguration(Configuration, frozen=True, tag="ExporterConfiguration"):
    """The same file serves every node: the defaults find out what differs per node."""

    node_name: str = ""
    """Name of the Node and of the object; empty: $NODE_NAME, else the host name."""
    sysfs_root: str = "/sys"
    """Mount point of the host's /sys."""
    procfs_root: str = "/proc"
    """Mount point of the host's /proc."""
    podresources_socket: str = DEFAULT_SOCKET
    """The kubelet's podresources socket. Mount its directory: the kubelet recreates the socket when it restarts."""
    kubelet_root: str = "/var/lib/kubelet"
    """The kubelet's --root-dir, for its state files; empty: they are not read, and changes are found within
    a second."""
    kubelet: Kubelet = msgspec.field(default_factory=Kubelet)
    """Sources of the kubelet's configuration."""
    exclude: Exclusions = msgspec.field(default_factory=Exclusions)
    """Resources and pods that are left out."""
    publish: Publishing = msgspec.field(default_factory=Publishing)
    """Content of the object beyond zones."""
    resource_slices: bool = True
    """Count devices of resource claims (DRA) by NUMA node, from the node's ResourceSlices; they are left out while the
    slices cannot be read."""
    numatopology: bool = False
    """Publish Volcano's Numatopology as well."""
    pod_placements: bool = False
    """Annotate the node's pods with the NUMA nodes of their resources, as KAI's numa-placement-exporter does
    (`kai.scheduler/numa-placement-observed`); run only one of the two. Needs `list` and `patch` of pods."""
    steering: MarkerPlugin = msgspec.field(default_factory=MarkerPlugin)
    """Steering of pods to a NUMA node."""
    serving: Serving = msgspec.field(default_factory=Serving)
    """Metrics and health."""

    def resolved_node_name(self) -> str:
        """The name of the node, from the file, the environment or the host."""
        return self.node_name or os.environ.get("NODE_NAME", "") or socket.gethostname().lower()
