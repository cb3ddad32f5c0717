"""The service that most tests of the ledger begin with."""

from __future__ import annotations

import pytest

from scheduling import Service


@pytest.fixture
def service() -> Service:
    """A service without nodes and pods."""
    return Service()
