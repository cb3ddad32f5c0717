"""Where the exporter gets the kubelet's configuration from: configz, files with drop-ins, or its own options."""

from topowise_exporter.kubelet.settings.section import Configz, Kubelet
from topowise_exporter.kubelet.settings.sources import Source

__all__ = ["Configz", "Kubelet", "Source"]
