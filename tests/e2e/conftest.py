"""Slow proofs on real processes; `make e2e` runs them."""

from daemons import api, server, start
from exporter_setup import config, kubelet

__all__ = ["api", "config", "kubelet", "server", "start"]
