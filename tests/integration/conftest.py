"""Fixtures of the integration tests; what they are made of is in daemons."""

from daemons import api, server, start

__all__ = ["api", "server", "start"]
