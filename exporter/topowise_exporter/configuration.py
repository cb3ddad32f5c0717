"""ExporterConfiguration, the file that `topowise-exporter run --config` reads."""

from __future__ import annotations

import os
import socket

import msgspec

from topowise.runtime.config import Configuration, PositiveDuration, Serving
from topowise_exporter.exclusions import Exclusions
from topowise_exporter.kubelet.podresources import DEFAULT_SOCKET
from topowise_exporter.kubelet.settings import Kubelet
from topowise_exporter.publish.topology import Publishing


class ExporterConfiguration(Configuration, frozen=True, tag="ExporterConfiguration"):
    """The same file serves every node: the defaults find out what differs per node."""

    node_name: str = ""
    """Name of the Node and of the object; empty: $NODE_NAME, else the host name."""
    sysfs_root: str = "/sys"
    """Where /sys of the host is mounted."""
    procfs_root: str = "/proc"
    """Where /proc of the host is mounted."""
    podresources_socket: str = DEFAULT_SOCKET
    """The kubelet's socket. Mount its directory: the kubelet makes the socket anew when it restarts."""
    kubelet_root: str = "/var/lib/kubelet"
    """The kubelet's --root-dir, for its state files; empty: they are not read, and changes are found by `interval`."""
    pods_api: bool = True
    """Watch the kubelet's Pods API (on from 1.37) where `kubelet_root` has its socket: the end of a pod, which writes
    no state file, is then seen at once."""
    kubelet: Kubelet = msgspec.field(default_factory=Kubelet)
    """Where the kubelet's configuration comes from."""
    notify_file: str = ""
    """A file that is touched when something changed, such as by a hook of the container runtime; empty: none."""
    interval: PositiveDuration = PositiveDuration(1)
    """Between two syncs if no event comes. A sync is two local calls, and writes only what is new."""
    machine_interval: PositiveDuration = PositiveDuration(60)
    """Between two readings of /sys, if no kernel event asks for one."""
    drift_interval: PositiveDuration = PositiveDuration(300)
    """Between two comparisons of the object on the API server with what should be there; spread by a fifth."""
    exclude: Exclusions = msgspec.field(default_factory=Exclusions)
    """What is left out."""
    publish: Publishing = msgspec.field(default_factory=Publishing)
    """What the object says beyond zones."""
    resource_slices: bool = True
    """Count the devices that pods get by resource claims (DRA) on their NUMA nodes, by the node's ResourceSlices; left
    out while those cannot be read."""
    numatopology: bool = False
    """Publish Volcano's Numatopology as well."""
    pod_placements: bool = False
    """Annotate the node's pods with the NUMA nodes of what they hold, as KAI's numa-placement-exporter does
    (`kai.scheduler/numa-placement-observed`); run only one of the two. Needs `list` and `patch` of pods."""
    serving: Serving = msgspec.field(default_factory=Serving)
    """Metrics and health."""

    def resolved_node_name(self) -> str:
        """The name of the node, from the file, the environment or the host."""
        return self.node_name or os.environ.get("NODE_NAME", "") or socket.gethostname().lower()
