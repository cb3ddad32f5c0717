"""What holds for all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A machine that is busy with other processes takes any time for an example.
settings.register_profile("topowise", deadline=None)
settings.load_profile("topowise")


@pytest.fixture(scope="session", autouse=True)
def kubectl_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps what kubectl remembers of API servers, by port, out of the home: the next server there is another."""
    os.environ["KUBECACHEDIR"] = str(tmp_path_factory.mktemp("kubectl"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Takes back what a program that ran inside a test did to the root logger: its stream is closed with the test, and
    each later line of a log would be an error."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        return (yield)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
