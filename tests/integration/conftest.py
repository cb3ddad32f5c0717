"""Fixtures of the integration tests; what they are made of is in tests/support."""

from daemons import api, server, start
from exporter_setup import config, kubelet

__all__ = ["api", "config", "kubelet", "server", "start"]
