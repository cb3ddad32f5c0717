"""A burst of pods whose service sees the API server through a fault proxy."""

from __future__ import annotations

from pathlib import Path

from burst import Bench
from faults.proxy import FaultProxy
from topowise.kube import credentials


class SpoiltBench(Bench):
    """kube-scheduler, the kubelets and the exporters see the API server as it is."""

    proxy: FaultProxy

    async def service_kubeconfig(self, kubeconfig: Path) -> Path:
        """Returns the kubeconfig of the proxy, which all services share."""
        if not hasattr(self, "proxy"):
            access = await credentials.load(str(kubeconfig))
            self.proxy = await self.stack.enter_async_context(FaultProxy(access.server))
        return self.proxy.kubeconfig(self._directory / "proxied")
