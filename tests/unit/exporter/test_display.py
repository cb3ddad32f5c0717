"""Readings and outcomes reach the log and the metrics."""

from __future__ import annotations

import logging

import pytest

from topowise import nrt
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.conditions import Condition, Conditions
from topowise_exporter.display import Display
from topowise_exporter.kubelet.allocations import Allocations
from topowise_exporter.machine.inventory import Machine
from topowise_exporter.metrics import Metrics
from topowise_exporter.observe import ConfigurationSource, Reading
from topowise_exporter.publish.topology import Observation
from topowise_exporter.publisher import Content, Drift, Outcome, Standing, Write
from topowise_exporter.zones import Accounts, Amount

NODE = Observation(Machine((), (), (), (), (), (), (), ()), KubeletConfiguration(), Allocations())
PREFIX = "topowise_exporter_"


class Shown(Display):
    """A display with its metrics."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        super().__init__(self.metrics, Conditions(), "n")

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(PREFIX + name, labels)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    shown = [(record.levelno, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return shown


def test_the_first_write_of_an_object_is_logged_and_later_writes_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    display, accounts = Shown(), Accounts({0: {"cpu": Amount(4000, 3000, 2000)}}, {}, frozenset(), ())
    content = Content(7, {("gpu.example.com", None): 2}, accounts)
    for is_first, result in ((True, "written"), (False, "written"), (False, "held-back")):
        write = Write(nrt.KIND, result, 0.25, is_first)  # type: ignore[arg-type]
        display.show_outcome(Outcome(Standing(is_published=True, is_current=True), writes=(write,), content=content))
        assert lines(caplog) == ([(logging.INFO, "Published")] if is_first else [])
    assert display.value("writes_total", kind=nrt.KIND, outcome="written") == 2
    assert display.value("writes_total", kind=nrt.KIND, outcome="held-back") == 1
    assert display.value("publish_duration_seconds_sum") == 0.5
    assert display.value("listed_pods") == 7
    assert display.value("claimed_devices", driver="gpu.example.com", zone="unknown") == 2
    assert display.value("zone_resource", zone="node-0", resource="cpu", amount="available") == 2
    assert display.value("last_publish_timestamp_seconds")


def test_conditions_drifts_and_other_writers_of_an_outcome_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    display = Shown()
    drifts = (Drift(nrt.KIND, "it was deleted", is_repeated=False), Drift(nrt.KIND, "it was changed", is_repeated=True))
    writers = {nrt.KIND: frozenset({"koordlet"})}
    display.show_outcome(Outcome(conditions={Condition.LARGE: ("holdings",)}, drifts=drifts, other_writers=writers))
    drift = "Published object is not as it was left, writing it anew"
    assert lines(caplog) == [(logging.WARNING, Condition.LARGE.value), (logging.WARNING, drift)]
    assert display.value("drifts_total", kind=nrt.KIND) == 2
    assert display.value("foreign_writer", kind=nrt.KIND, manager="koordlet") == 1
    # An outcome that did not look at the objects changes neither; a later outcome ends both.
    display.show_outcome(Outcome())
    assert display.value("foreign_writer", kind=nrt.KIND, manager="koordlet") == 1
    caplog.set_level(logging.INFO)
    display.show_outcome(Outcome(conditions={Condition.LARGE: ()}, other_writers={nrt.KIND: frozenset()}))
    assert lines(caplog) == [(logging.INFO, "Recovered")]
    assert display.value("foreign_writer", kind=nrt.KIND, manager="koordlet") is None


def test_problems_of_sources_begin_and_end_with_the_reading_that_has_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    display = Shown()
    source = ConfigurationSource("file", ("configz: refused",))
    display.show_reading(
        Reading(NODE, withheld=frozenset({("ns", "p")}), problems={Condition.NO_CLAIMS: "y"}, configuration=source)
    )
    assert vars(caplog.records[0])["kv"]["why"] == "configz: refused; using file"
    said = [Condition.CONFIGURATION.value, Condition.NO_CLAIMS.value]
    assert lines(caplog) == [(logging.WARNING, sentence) for sentence in said]
    assert (display.value("withheld_pods"), display.value("kubelet_config_source", source="file")) == (1, 1)
    display.show_reading(Reading(NODE))
    assert [line for _, line in lines(caplog)] == ["Recovered", "Recovered"]
    assert display.value("withheld_pods") == 0
