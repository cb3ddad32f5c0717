"""`kubelet` of an ExporterConfiguration: which sources of the kubelet's configuration are asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from topowise.errors import ConfigError
from topowise.kube.credentials import SERVICE_ACCOUNT
from topowise.runtime.config import Port, PositiveDuration, Section

ADDRESS_VARIABLE: Final = "NODE_ADDRESS"


class Configz(Section, frozen=True):
    """The running kubelet's own answer: what it uses, with its flags and defaults, whatever the files say by now.

    Needs `get` on `nodes/configz` (1.33 and later; `nodes/proxy` before) and a serving certificate that can be
    verified, which kubeadm's kubelets have only with `serverTLSBootstrap: true`.
    """

    enabled: bool = False
    """Off, because it needs the two things above; where they are given, the best source."""
    address: str = ""
    """IP address or name of the node; empty: $NODE_ADDRESS, to be set from `status.hostIP`."""
    port: Port = 10250
    """The kubelet's HTTPS port."""
    ca_file: str = str(SERVICE_ACCOUNT / "ca.crt")
    """PEM bundle that the kubelet's certificate must be signed by; the default is the cluster's CA. Read each time."""
    server_name: str = ""
    """Name the certificate must be for; empty: `address`. For certificates with a node name and no IP address."""
    token_file: str = str(SERVICE_ACCOUNT / "token")
    """Bearer token; read again every minute and after a 401."""
    interval: PositiveDuration = PositiveDuration(60)
    """Between two requests: a kubelet changes its configuration only by a restart."""
    timeout: PositiveDuration = PositiveDuration(5)
    """Bound of one request."""

    def resolved_address(self, environment: Mapping[str, str]) -> str:
        """The address, wherever it comes from. Raises ConfigError if there is none."""
        address = self.address or environment.get(ADDRESS_VARIABLE, "")
        if not address:
            raise ConfigError("$.kubelet.configz.address", f"is empty and ${ADDRESS_VARIABLE} is not set")
        return address


class Kubelet(Section, frozen=True):
    """Sources of the kubelet's configuration, in the order in which they are preferred."""

    configz: Configz = msgspec.field(default_factory=Configz)
    """The kubelet's HTTPS endpoint."""
    config_file: str = "/var/lib/kubelet/config.yaml"
    """The kubelet's --config; empty: it has none, or it cannot be read here."""
    config_dir: str = ""
    """The kubelet's --config-dir with drop-ins (*.conf); empty: it has none. Mount it where the kubelet sees it."""
    overrides: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields of a KubeletConfiguration that hold whatever the sources say, as the kubelet's own flags do.

    With `topologyManagerPolicy` among them they also stand in for a source that cannot be read.
    """
