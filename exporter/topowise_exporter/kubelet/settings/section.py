"""The `kubelet` section of an ExporterConfiguration: sources of the kubelet's configuration."""

from __future__ import annotations

from typing import Any

import msgspec

from topowise.kube.credentials import SERVICE_ACCOUNT
from topowise.runtime.config import Section


class Configz(Section, frozen=True):
    """The running kubelet's own answer: the configuration in use, with flags and defaults, whatever the files contain
    by now. Needs `get` on `nodes/configz` (1.33 and later; `nodes/proxy` before) and a serving certificate that can be
    verified. kubeadm's kubelets have such a certificate only with `serverTLSBootstrap: true`."""

    enabled: bool = False
    """Off by default, because of these two requirements; where they are met, this is the best source."""
    ca_file: str = str(SERVICE_ACCOUNT / "ca.crt")
    """PEM bundle that verifies the kubelet's certificate; the default is the cluster's CA. Read for each request."""


class Kubelet(Section, frozen=True):
    """Sources of the kubelet's configuration, in order of preference."""

    configz: Configz = msgspec.field(default_factory=Configz)
    """The kubelet's HTTPS endpoint."""
    config_file: str = "/var/lib/kubelet/config.yaml"
    """The kubelet's --config; empty: the kubelet has none, or the exporter cannot read it."""
    config_dir: str = ""
    """The kubelet's --config-dir with drop-ins (*.conf); empty: the kubelet has none. Mount it at the kubelet's path.
    """
    overrides: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of a KubeletConfiguration that override every source, as the kubelet's own flags do.

    With `topologyManagerPolicy` set they also replace a source that cannot be read.
    """
