"""Sources of the kubelet's configuration: configz, files with drop-ins, or the exporter's own options."""

from topowise_exporter.kubelet.settings.section import Configz, Kubelet
from topowise_exporter.kubelet.settings.sources import Source

__all__ = ["Configz", "Kubelet", "Source"]
