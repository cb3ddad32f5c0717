"""Fixtures of the integration tests; what they are made of is in integration_support."""

from integration_support import api, server, start

__all__ = ["api", "server", "start"]
