"""ExporterConfiguration, the file that `topowise-exporter run --config` reads."""

from __future__ import annotations

import os
import socket

import msgspec

from topowise.runtime.config import Configuration, Duration, Serving
from topowise_exporter.kubelet.podresources import DEFAULT_SOCKET


class ExporterConfiguration(Configuration, frozen=True, tag="ExporterConfiguration"):
    """One file serves every node: what differs per node has a default that finds it out."""

    node_name: str = ""
    """Name of the Node and of the object; empty: $NODE_NAME, else the host name."""
    sysfs_root: str = "/sys"
    """Where /sys of the host is mounted."""
    procfs_root: str = "/proc"
    """Where /proc of the host is mounted."""
    podresources_socket: str = DEFAULT_SOCKET
    """The kubelet's socket. Mount its directory: the kubelet makes the socket anew when it restarts."""
    kubelet_config_file: str = "/var/lib/kubelet/config.yaml"
    """The kubelet's --config; empty: kubelet's defaults are assumed, and said so in the log."""
    interval: Duration = Duration(10)
    """Between two looks at the node. A look that finds nothing new writes nothing."""
    serving: Serving = msgspec.field(default_factory=Serving)
    """Metrics and health."""

    def resolved_node_name(self) -> str:
        """The node's name, wherever it comes from."""
        return self.node_name or os.environ.get("NODE_NAME", "") or socket.gethostname().lower()
