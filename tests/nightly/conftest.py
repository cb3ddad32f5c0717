"""Fixtures of the nightly tests, from tests/support."""

from daemons import api, server, start
from exporter_setup import config, kubelet

__all__ = ["api", "config", "kubelet", "server", "start"]
