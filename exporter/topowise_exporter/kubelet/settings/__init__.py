"""Sources of the kubelet's configuration: configz, files with drop-ins, or the exporter's own options."""

from topowise_exporter.kubelet.settings.sources import Configz, Kubelet, Source

__all__ = ["Configz", "Kubelet", "Source"]
