"""What holds for all tests."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import settings

from examples import examples
from hang_report import HangReport
from sandbox import simulated_time

# A machine that is busy with other processes takes any time for an example. `make nightly` tries more examples.
settings.register_profile("topowise", deadline=None, max_examples=examples())
settings.load_profile("topowise")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests with the marker `own_time` own the time of what they wait for: it passes where nothing runs."""
    if item.get_closest_marker("own_time") and not item.get_closest_marker("real_time"):
        return {"own": simulated_time.Loop}
    return {"real": asyncio.new_event_loop}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Looks for no garbage among the modules and tests, which live as long as the process: neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def running_grpc() -> None:
    """Keeps gRPC's queue of events. With the last object of grpc.aio its destructor waits until the queue is empty, for
    ever if a call of a loop that is closed is still in it; and the garbage collector may run it in any test."""
    # Not at the top: most runs of a single test use no gRPC.
    if "grpc" in sys.modules:
        importlib.import_module("grpc.aio").init_grpc_aio()


@pytest.fixture(scope="session", autouse=True)
def kubectl_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps what kubectl remembers of API servers, by port, out of the home: the next server there is another."""
    os.environ["KUBECACHEDIR"] = str(tmp_path_factory.mktemp("kubectl"))


@pytest.fixture(scope="session", autouse=True)
def own_namespace() -> None:
    """Gives daemons a namespace, as outside of a pod they do not find their own."""
    os.environ["POD_NAMESPACE"] = "default"


_HANG_REPORT: pytest.StashKey[HangReport] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Reports a test at half of the time after which faulthandler ends it; output is not captured here."""
    config.stash[_HANG_REPORT] = HangReport(float(config.getini("faulthandler_timeout")) / 2, os.dup(2))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Takes back what a program that ran inside a test did to the root logger: its stream is closed with the test, and
    each later line of a log would be an error."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    item.config.stash[_HANG_REPORT].began(item.nodeid)
    try:
        return (yield)
    finally:
        item.config.stash[_HANG_REPORT].ended()
        root.handlers[:] = handlers
        root.setLevel(level)
