"""Fixtures of the chart's tests, from tests/support."""

from rendered_chart import *  # noqa: F403
