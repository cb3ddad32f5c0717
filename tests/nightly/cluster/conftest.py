"""Fixtures of the chart on a real API server, from tests/support."""

from rendered_chart import *  # noqa: F403
