"""The exporter's loop stays alive while it waits for its configured interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from topowise.attributes import confirmation
from topowise.errors import ApiError, SourceError
from topowise.kube import api
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime.backoff import Backoff
from topowise.runtime.config import API_VERSION
from topowise_exporter import daemon
from topowise_exporter.conditions import Conditions
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.daemon import Exporter
from topowise_exporter.kubelet.allocations import Allocations
from topowise_exporter.machine.inventory import Machine
from topowise_exporter.metrics import Metrics
from topowise_exporter.observe import Reading
from topowise_exporter.publish.topology import Observation
from topowise_exporter.publisher import Outcome, Standing
from topowise_exporter.triggers import Trigger

SEEN = Observation(Machine((), (), (), (), (), (), (), ()), KubeletConfiguration(), Allocations())


class Stub:
    """Observer, publisher and source: the reading fails with what it is given, or else the write."""

    def __init__(self, observe: Exception | None = None, write: ApiError | None = None, *reasons: str) -> None:
        self._observe, self._write = observe, write
        self.doubts = frozenset(reasons)
        self.checks = self.expired = self.observed = self.forgotten = 0
        self.admits = False
        self.wrote: tuple[str, frozenset[str]] | None = None

    async def check_drift(self) -> Outcome:
        self.checks += 1
        return Outcome()

    def expire(self) -> None:
        self.expired += 1

    async def recall(self) -> None:
        pass

    def is_admitting(self) -> bool:
        return self.admits

    def forget_allocatable(self) -> None:
        self.forgotten += 1

    def differs_from(self, version: str | None) -> bool:
        return False

    async def observe(self, node_version: str | None) -> Reading:
        self.observed += 1
        if self._observe:
            raise self._observe
        return Reading(SEEN, self.doubts)

    async def publish(self, seen: object, reasons: frozenset[str] = frozenset()) -> Outcome:
        self.wrote = "present", reasons
        return Outcome(Standing(is_published=True, is_current=True), error=self._write)

    async def keep(self, reasons: frozenset[str]) -> Outcome:
        self.wrote = "last", reasons
        return Outcome(Standing(is_published=True))


def exporter(stub: Any, metrics: Metrics | None = None, **settings: Any) -> Exporter:
    configuration = ExporterConfiguration(apiVersion=API_VERSION, node_name="n", **settings)
    return Exporter(
        configuration, stub, stub, stub, metrics or Metrics(), Conditions(), Trigger(), backoff=Backoff(0.01, 0.01)
    )


async def test_a_server_that_wants_us_to_wait_long_does_not_make_us_look_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_BEAT_S", 0.01)
    waiting = exporter(Stub(write=ApiError(429, "", "later", request="PATCH", retry_after=3600)))
    beats = []
    monkeypatch.setattr(waiting.heartbeat, "beat", lambda: beats.append(1))
    task = asyncio.create_task(waiting.run())
    await asyncio.sleep(0.2)
    task.cancel()
    assert len(beats) > 3


@pytest.mark.parametrize(
    ("reasons", "written"),
    [
        ((), "present"),
        ((confirmation.device("nic"),), "present"),
        ((confirmation.device("nic"), confirmation.PODS), "last"),
        ((confirmation.MEMORY_MANAGER,), "last"),
    ],
)
async def test_the_last_object_stays_for_doubts_of_more_than_devices(reasons: tuple[str, ...], written: str) -> None:
    stub, metrics = Stub(None, None, *reasons), Metrics()
    syncing = exporter(stub, metrics)
    await syncing.sync()
    assert stub.wrote == (written, frozenset(reasons))
    name = "topowise_exporter_unconfirmed"
    assert all(metrics.registry.get_sample_value(name, {"reason": reason}) == 1 for reason in reasons)
    stub.doubts = frozenset()
    await syncing.sync()
    assert all(metrics.registry.get_sample_value(name, {"reason": reason}) is None for reason in reasons)


def test_a_round_may_take_the_time_limits_of_all_its_requests() -> None:
    # The owner, the drift of two objects and two writes.
    assert exporter(Stub()).heartbeat.limit >= 5 * api.TIMEOUT_S


async def test_an_unreadable_machine_is_not_laid_to_the_kubelets_configuration() -> None:
    metrics = Metrics()
    await exporter(Stub(observe=SourceError("/sys/devices/system/cpu", "names no CPU")), metrics).sync()
    name = "topowise_exporter_source_errors_total"
    assert metrics.registry.get_sample_value(name, {"source": "machine"}) == 1
    assert metrics.registry.get_sample_value(name, {"source": "kubelet-config"}) is None


async def test_a_kubelet_that_was_restarted_may_have_made_its_node_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_CHECK_AFTER_RESTART_S", (0.05, 0.1))
    monkeypatch.setattr(daemon, "_INTERVAL_S", 0.02)
    stub = Stub()
    daemon_run = exporter(stub, podresources_socket="unix:///run/kubelet.sock")
    task = asyncio.create_task(daemon_run.run())
    daemon_run._trigger.notify("cpu_manager_state")
    await asyncio.sleep(0.2)
    assert stub.checks == 0
    daemon_run._trigger.notify("kubelet.sock")
    await asyncio.sleep(0.3)
    task.cancel()
    assert (stub.checks, stub.expired) == (1, 1)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def test_an_admission_is_read_after_the_kubelets_last_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_ADMISSION_S", 60.0)
    monkeypatch.setattr(daemon, "_INTERVAL_S", 60.0)
    stub = Stub()
    running = exporter(stub)
    task = asyncio.create_task(running.run())
    await until(lambda: stub.observed == 1)
    stub.admits = True
    for state_file in ("cpu_manager_state", "memory_manager_state"):
        running._trigger.notify(state_file)
        await asyncio.sleep(0.05)
    assert stub.observed == 1
    stub.admits = False
    running._trigger.notify("allocated_pods_state")
    await until(lambda: stub.observed == 2)
    assert stub.forgotten == 0
    task.cancel()


async def test_an_admission_without_an_end_delays_a_sync_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "_ADMISSION_S", 0.05)
    monkeypatch.setattr(daemon, "_INTERVAL_S", 60.0)
    stub = Stub()
    running = exporter(stub)
    task = asyncio.create_task(running.run())
    await until(lambda: stub.observed == 1)
    stub.admits = True
    running._trigger.notify("cpu_manager_state")
    await until(lambda: stub.observed == 2)
    task.cancel()


async def test_an_event_of_devices_makes_the_next_sync_ask_for_what_is_allocatable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemon, "_INTERVAL_S", 60.0)
    stub = Stub()
    running = exporter(stub)
    task = asyncio.create_task(running.run())
    await until(lambda: stub.observed == 1)
    running._trigger.notify("kubelet_internal_checkpoint")
    await until(lambda: stub.observed == 2)
    assert stub.forgotten == 1
    task.cancel()
