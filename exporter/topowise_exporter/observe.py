"""One look at the node: reads every source anew, so that a look never depends on what was seen before."""

from __future__ import annotations

from topowise_exporter import machine
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.kubelet import configuration as kubelet_configuration
from topowise_exporter.kubelet.podresources import PodResources
from topowise_exporter.publish.topology import Observation


def kubelet_settings(path: str) -> kubelet_configuration.KubeletConfiguration:
    """The kubelet's configuration; its defaults if no file is named. Raises SourceError."""
    return kubelet_configuration.load(path) if path else kubelet_configuration.KubeletConfiguration()


async def observe(settings: ExporterConfiguration, podresources: PodResources) -> Observation:
    """Raises SourceError if the kubelet or its configuration cannot be read."""
    return Observation(
        machine=machine.scan(settings.sysfs_root, settings.procfs_root),
        kubelet=kubelet_settings(settings.kubelet_config_file),
        allocatable=await podresources.allocatable(),
        pods=await podresources.pods(),
    )
