"""Slow proofs on real processes; `make e2e` runs them."""

from daemons import api, server, start
from exporter_setup import config, kubelet
from kept_demo import environment

__all__ = ["api", "config", "environment", "kubelet", "server", "start"]
