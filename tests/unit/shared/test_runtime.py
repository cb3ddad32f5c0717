"""What a daemon is made of: configuration, logging, back-off, health, tasks."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import aiohttp
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from topowise import documents
from topowise.errors import ConfigError, SourceError
from topowise.runtime import config, health, listening, log, tasks
from topowise.runtime.backoff import Backoff
from topowise.runtime.config import Configuration, Duration, Port, PortOrNone, PositiveDuration, Section, Serving
from topowise.runtime.log import V2, kv
from topowise.text import escaped


class ExampleConfiguration(Configuration, frozen=True, tag="ExampleConfiguration"):
    interval: Duration = Duration(10)
    node_name: str = ""
    pause: PositiveDuration = PositiveDuration(1)
    port: PortOrNone = 1
    chosen: Port = 1


HEAD = b"apiVersion: topowise.io/v1alpha1\nkind: ExampleConfiguration\n"


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("500ms", 0.5), ("1m30s", 90), ("2h", 7200), ("0", 0), ("1.5s", 1.5)]
)
def test_durations_are_written_as_go_writes_them(text: str, seconds: float) -> None:
    read = config.parse(ExampleConfiguration, HEAD + f"interval: '{text}'\npause: 2m\n".encode())
    assert (read.interval, read.pause) == (seconds, 120)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.001, "1.001s"), (0.0005, "0.5ms"), (0.02, "20ms"), (0.9999, "999.9ms"), (1.5, "1.5s"), (90, "90s"),
        (7200, "7200s"), (0, "0s"), (1e-7, "0.0001ms"), (0.1, "100ms"), (0.3, "300ms"),
    ],
)  # fmt: skip
def test_durations_are_printed_as_they_are(seconds: float, text: str) -> None:
    assert str(Duration(seconds)) == text


def test_decimals_without_an_end_are_no_duration() -> None:
    with pytest.raises(ValueError, match=r"'9999.* is not a duration"):
        Duration.parse("9" * 2_000_000 + "h")


@given(st.floats(0, 3e9, allow_nan=False))
def test_a_printed_duration_is_read_back_as_the_same_number(seconds: float) -> None:
    assert Duration.parse(str(Duration(seconds))) == seconds


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (HEAD + b"intervall: 1s\n", "intervall"),
        (HEAD + b"interval: 10\n", "10 is not a duration"),
        (HEAD + b"interval: " + b"9" * 300 + b"h\n", "longer than 100 years"),
        (HEAD + b"interval: soon\n", r"'soon'.*\$\.interval"),
        (HEAD + b"logging: {verbosity: loud}\n", r"\$\.logging\.verbosity"),
        (b"apiVersion: v1\nkind: ExampleConfiguration\n", r"\$\.apiVersion"),
        (b"apiVersion: topowise.io/v1alpha1\nkind: Other\n", r"\$\.kind"),
        (b"kind: ExampleConfiguration\n", "apiVersion"),
        (b"apiVersion: 2001-99-99", "'2001-99-99'.*apiVersion"),
        (b"a: [\n", "not YAML"),
        (b"", "object"),
    ],
)
def test_a_configuration_error_names_the_file_and_the_field(text: bytes, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        config.parse(ExampleConfiguration, text, source="/etc/x.yaml")
    assert str(caught.value).startswith("/etc/x.yaml: ")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("pause: 0s", "$.pause"),
        ("pause: '0'", "$.pause"),
        ("pause: 0ms", "$.pause"),
        ("logging: {verbosity: -5}", "$.logging.verbosity"),
        ("logging: {verbosity: 11}", "$.logging.verbosity"),
        ("port: 65536", "$.port"),
        ("port: 99999", "$.port"),
        ("port: -1", "$.port"),
        ("chosen: 0", "$.chosen"),
        ("chosen: 65536", "$.chosen"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_and_not_wrapped(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        config.parse(ExampleConfiguration, HEAD + text.encode())


class Part(Section, frozen=True):
    mode: Literal["fast", "slow"] = "slow"


class ChoosyConfiguration(Configuration, frozen=True, tag="ChoosyConfiguration"):
    parts: tuple[Part, ...] = ()
    one: Part | None = None
    named: Mapping[str, Part] = msgspec.field(default_factory=dict)
    level: Literal[10, 100] = 10


@pytest.mark.parametrize(
    ("text", "problem", "expected", "meant", "path"),
    [
        ("logging: {format: jsno}", "'jsno' is not known", "one of json, text", "json", ".logging.format"),
        ("logging: {Format: x}", "unknown field 'Format'", "one of format, verbosity", "format", ".logging"),
        ("parts: [{mode: FAST}]", "'FAST' is not known", "one of fast, slow", "fast", ".parts[0].mode"),
        ("parts: [{mood: fast}]", "unknown field 'mood'", "mode", "", ".parts[0]"),
        ("one: {mode: xyz}", "'xyz' is not known", "one of fast, slow", "", ".one.mode"),
        ("named: {a: {mode: xyz}}", "'xyz' is not known", "one of fast, slow", "", ".named[...].mode"),
        ("level: 11", "11 is not known", "one of 10, 100", "", ".level"),
        ("kind: ChosyConfiguration", "'ChosyConfiguration' is not known", "ChoosyConfiguration", "", ".kind"),
        ("apiVersion: v1", "'v1' is not known", "topowise.io/v1alpha1", "", ".apiVersion"),
    ],
)
def test_a_wrong_choice_is_answered_with_the_valid_choices(
    text: str, problem: str, expected: str, meant: str, path: str
) -> None:
    whole = yaml.safe_load("{apiVersion: topowise.io/v1alpha1, kind: ChoosyConfiguration}") | yaml.safe_load(text)
    with pytest.raises(ConfigError) as caught:
        config.parse(ChoosyConfiguration, json.dumps(whole).encode(), source="/etc/x.yaml")
    near = f"; did you mean {meant}?" if meant else ""
    assert str(caught.value) == f"/etc/x.yaml: {problem}, expected {expected}{near} - at `${path}`"


def test_a_wrong_name_at_the_top_is_answered_too() -> None:
    with pytest.raises(ConfigError, match=r"unknown field 'lvel', expected one of .*; did you mean level\?$"):
        config.parse(ChoosyConfiguration, b"{apiVersion: topowise.io/v1alpha1, kind: ChoosyConfiguration, lvel: 1}")


@pytest.mark.parametrize(
    "text",
    [
        HEAD + b"logging: {verbosity: 4}\nlogging: {format: json}\n",
        HEAD + b"logging:\n  verbosity: 4\n  verbosity: 2\n",
        b'{"apiVersion": "topowise.io/v1alpha1", "kind": "ExampleConfiguration", "logging": {}, "logging": {}}',
    ],
)
def test_a_key_that_is_there_twice_is_named_and_not_half_ignored(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"/etc/x.yaml: duplicate key '(logging|verbosity)'"):
        config.parse(ExampleConfiguration, text, source="/etc/x.yaml")


def test_a_key_may_be_there_in_two_sections_and_again_by_an_alias() -> None:
    text = HEAD + b"logging: &logging {verbosity: 4}\nclient: {kubeconfig: verbosity}\n"
    assert config.parse(ExampleConfiguration, text).logging.verbosity == 4
    assert documents.repeated_key(b"a: &a {c: 1}\nb: *a\nd:\n- <<: *a\n  c: 2\n- c: 3\n") == ""


def test_files_that_a_configuration_names_are_looked_at(tmp_path: Path) -> None:
    """A configuration may be checked where it is not used, so what is missing there is said and no error."""
    (tmp_path / "key").touch()
    tls = config.ServingTls(cert_file=str(tmp_path / "cert"), key_file=str(tmp_path / "key"))
    serving = Serving(tls=tls)
    assert config.missing_files(serving) == [
        f"{tmp_path / 'cert'}: cannot be read on this machine - at `$.tls.certFile`"
    ]
    client = config.KubeClient(kubeconfig="/nosuch")
    assert config.missing_files(client) == ["/nosuch: cannot be read on this machine - at `$.kubeconfig`"]
    assert not config.missing_files(config.default(ChoosyConfiguration))


def test_an_unreadable_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config.load(ExampleConfiguration, str(tmp_path / "none.yaml"))


def test_the_effective_configuration_shows_every_default() -> None:
    shown = json.loads(config.effective(config.default(ExampleConfiguration)))
    assert shown["interval"] == "10s"
    assert shown["kind"] == "ExampleConfiguration"
    assert shown["logging"] == {"format": "text", "verbosity": 0}


@contextmanager
def logging_to(form: log.Format = "text", verbosity: int = 0) -> Iterator[io.StringIO]:
    """What the daemons' logging writes."""
    root, out = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    try:
        log.set_up(verbosity, form, out)
        yield out
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])


def lines(form: log.Format, verbosity: int = 0) -> list[str]:
    with logging_to(form, verbosity) as out:
        logger = logging.getLogger("topowise.test")
        logger.info("Published", extra=kv(node="n 1", zones=2, ok=True))
        logger.log(V2, "Pass", extra=kv(took_ms=3))
        logger.warning('Odd "value"')
    return out.getvalue().splitlines()


def test_text_logs_are_klogs() -> None:
    first, second = lines("text")
    assert re.fullmatch(
        r'I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ test_runtime\.py:\d+\] "Published" node="n 1" zones=2 ok=true', first
    )
    assert second.startswith("W")
    assert second.endswith('] "Odd \\"value\\""')
    assert any('"Pass" took_ms=3' in line for line in lines("text", verbosity=2))


HOSTILE = "a\x1b[2J\x9b\u202e\r\nE1121 00:00:00.0 forged\u2028\x7f\ud800b"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_text_leaves_its_line_of_the_log(form: log.Format) -> None:
    logger = logging.getLogger("hostile")
    with logging_to(form) as out:
        logger.warning("Refused", extra=kv(why=HOSTILE, names=[HOSTILE], nested={HOSTILE: HOSTILE}))
        logger.warning(HOSTILE)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logger.exception("Failed")
    text = out.getvalue()
    assert text == escaped(text, keep="\n")
    assert sum(not line.startswith("  ") for line in text.split("\n")[:-1]) == 3
    if form == "json":
        assert [json.loads(line)["msg"] for line in text.splitlines()][::2] == ["Refused", "Failed"]
        assert json.loads(text.splitlines()[0])["why"] == HOSTILE


def test_a_label_of_a_metric_is_one_line_of_visible_characters() -> None:
    registry = CollectorRegistry()
    Gauge("topowise_test", "A test.", ["resource"], registry=registry).labels(HOSTILE[:-2] + 'ß"\\').set(1)
    text = health.Exposition(registry).text().decode()
    assert text == escaped(text, keep="\n")
    # A parser of Prometheus takes no other escapes than of a backslash, a quote and a line end.
    (sample,) = next(text_string_to_metric_families(text)).samples
    assert sample.labels == {"resource": escaped(HOSTILE[:-2], keep="\n").replace(r"\x0a", "\n") + 'ß"\\'}
    assert not re.search(r'(?<!\\)(\\\\)*\\[^\\"n]', text)


def test_of_each_message_a_few_warnings_a_minute_are_written() -> None:
    now, written = 0.0, []
    few = log.FewPerMinute(3, lambda: now)

    def warn(message: str, level: int = logging.WARNING, **values: object) -> None:
        record = logging.LogRecord("test", level, __file__, 1, message, (), None)
        record.kv = values
        if few.filter(record):
            written.append((message, record.kv))

    for number in range(1000):
        warn("Request refused", why=number)
        warn("News", logging.INFO)
    warn("Another")
    assert [entry for entry in written if entry[0] != "News"] == [
        ("Request refused", {"why": 0}),
        ("Request refused", {"why": 1}),
        ("Request refused", {"why": 2}),
        ("Another", {}),
    ]
    assert len(written) == 1004
    now, written[:] = 61.0, []
    warn("Request refused", why="later")
    assert written == [("Request refused", {"why": "later", "left_out_before": 997})]
    for number in range(5000):
        warn(f"no constant {number}")
    assert len(few._counts) <= 1000


def test_the_limit_is_in_what_daemons_write() -> None:
    with logging_to() as out:
        for number in range(3000):
            logging.getLogger("flood").warning("Request refused", extra=kv(why=number))
    assert len(out.getvalue().splitlines()) <= 60


def test_json_logs_have_component_bases_keys() -> None:
    first = json.loads(lines("json")[0])
    assert {key: first[key] for key in ("v", "msg", "node", "zones", "ok", "logger")} == {
        "v": 0,
        "msg": "Published",
        "node": "n 1",
        "zones": 2,
        "ok": True,
        "logger": "topowise.test",
    }
    assert first["ts"] > 1_600_000_000_000
    # Without a level a collector cannot select warnings: component-base's keys distinguish only info lines, by `v`.
    assert [json.loads(line)["level"] for line in lines("json", 2)] == ["info", "info", "warning"]


def test_delays_double_up_to_a_limit_and_start_over_after_a_success() -> None:
    backoff = Backoff(1.0, 8.0, uniform=lambda low, high: high)
    assert [backoff.next_delay() for _ in range(5)] == [1, 2, 4, 8, 8]
    backoff.reset()
    assert backoff.next_delay() == 1
    assert backoff.next_delay(at_least=30) == 30


def test_delays_are_spread_over_the_whole_range() -> None:
    ranges: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        ranges.append((low, high))
        return low

    backoff = Backoff(1.0, 8.0, uniform=uniform)
    backoff.next_delay()
    backoff.next_delay()
    assert ranges == [(0.5, 1.0), (0.5, 2.0)]


def test_a_loop_that_is_silent_for_too_long_is_not_alive() -> None:
    now = [0.0]
    heartbeat = health.Heartbeat(10, clock=lambda: now[0])
    now[0] = 9
    assert heartbeat.silence() is None
    now[0] = 21
    assert heartbeat.silence() == "no sign of life for 21s, at most 10s expected"
    heartbeat.beat()
    assert heartbeat.silence() is None


async def test_probes_name_what_is_not_met_and_metrics_are_served(unused_tcp_port: int) -> None:
    registry = CollectorRegistry()
    Counter("topowise_test", "A test.", registry=registry).inc()
    probes = health.Health()
    problem: list[str | None] = ["not yet listed: pods"]
    probes.ready["synced"] = lambda: problem[0]
    serving = Serving(address="127.0.0.1", port=unused_tcp_port)
    task = asyncio.create_task(health.serve(serving, probes, registry))

    async def get(path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{unused_tcp_port}{path}") as answer,
        ):
            return answer.status, await answer.text()

    await asyncio.sleep(0.1)
    assert await get("/readyz") == (503, "[-]synced failed: not yet listed: pods\nnot ok\n")
    problem[0] = None
    assert await get("/readyz") == (200, "[+]synced ok\nok\n")
    assert (await get("/livez"))[0] == 200
    assert "topowise_test_total 1.0" in (await get("/metrics"))[1]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize(("address", "reached_by"), [("::", ("127.0.0.1", "::1")), ("::1", ("::1",))])
def test_every_address_is_of_both_families(address: str, reached_by: tuple[str, ...], unused_tcp_port: int) -> None:
    """A kubelet probes a pod by its first address, which in some clusters is of IPv6."""
    with listening.listen(address, unused_tcp_port):
        for host in reached_by:
            socket.create_connection((host, unused_tcp_port), timeout=5).close()
        with pytest.raises(SourceError, match=rf"^\[{address}\]:{unused_tcp_port}: cannot be listened on"):
            listening.listen(address, unused_tcp_port)


async def test_a_task_that_ends_for_a_reason_says_it_in_one_line(
    caplog: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    with listening.listen("127.0.0.1", unused_tcp_port):
        serving = Serving(address="127.0.0.1", port=unused_tcp_port)
        work = {"health": health.serve(serving, health.Health(), CollectorRegistry())}
        assert await tasks.run_until_stopped(work) == 1
    (record,) = caplog.records
    assert record.exc_info is None
    assert str(record.kv["why"]).startswith(  # type: ignore[attr-defined]
        f"127.0.0.1:{unused_tcp_port}: cannot be listened on: Address already in use"
    )
    assert "\n" not in log.TextFormatter().format(record)


async def test_sigterm_ends_everything_with_success() -> None:
    cancelled = []

    async def works() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append("works")

    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
    assert await tasks.run_until_stopped({"steady": works()}) == 0
    assert cancelled == ["works"]
