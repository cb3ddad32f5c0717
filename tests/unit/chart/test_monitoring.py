"""Alerts and the dashboard speak of metrics that exist, by labels that they have, and every alert is explained."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from topowise_exporter.metrics import Metrics
from topowise_scheduler.configuration import Scoring
from topowise_scheduler.explain.cluster_view import ClusterView
from topowise_scheduler.ledger.answers import Answers
from topowise_scheduler.ledger.ledger import Ledger
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.ledger.pods.records import Records
from topowise_scheduler.overlay.trial import Trial
from topowise_scheduler.serve import metrics
from topowise_scheduler.serve.extender import http
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.engine import Engine

Document = dict[str, Any]

# Of Prometheus itself, and set by the chart's monitors.
_ALWAYS = {"job", "node", "pod", "le"}
_NAME = re.compile(r"\b(?:topowise|process)_[a-z_]+\b|\bup\b")
_GROUPING = re.compile(r"\bby \(([^)]*)\)")
_SELECTOR = re.compile(r"\b((?:topowise|process)_[a-z_]+|up)\{([^}]*)\}")
_TEXT = re.compile(r'"[^"]*"')


def registries() -> Iterator[CollectorRegistry]:
    yield Metrics().registry
    ledger = Ledger(Engine(), time.monotonic)
    strategy = strategies.make("TightFit", {"cpu": 1}, Scoring())
    answers = Answers(ledger, Records(), strategy)
    registry = metrics.registry(ledger, answers)
    metrics.watch_shortage(registry, ledger, ClusterView(Trial(ledger, answers, Nodes())))
    metrics.watch(registry, "synced", "As the daemon has it.", lambda: 1.0)
    http.Metrics(registry)
    yield registry


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """Name of a time series -> its labels."""
    labels_of: dict[str, set[str]] = {"up": set()}
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    for registry in registries():
        labels = {
            name: set(getattr(collector, "_labelnames", ()))
            for collector, names in registry._collector_to_names.items()
            for name in names
        }
        for family in registry.collect():
            own = set(getattr(family, "_labelnames", ())) | labels.get(family.name, set())
            for suffix in suffixes.get(family.type, ("",)):
                labels_of[family.name + suffix] = own
    return labels_of


@pytest.fixture(scope="module")
def alerts(chart: Path) -> list[Document]:
    groups = yaml.safe_load((chart / "alerts/topowise.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions(dashboard: Document) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if isinstance(variable["query"], dict):
            yield variable["query"]["query"]


def check(expression: str, known: dict[str, set[str]]) -> None:
    names = set(_NAME.findall(_TEXT.sub('""', expression)))
    assert names, f"no metric in {expression}"
    assert names <= known.keys(), f"no such metric: {names - known.keys()}"
    labels = set().union(*(known[name] for name in names)) | _ALWAYS
    for group in _GROUPING.findall(expression):
        assert {label.strip() for label in group.split(",")} <= labels, expression
    for name, selector in _SELECTOR.findall(expression):
        for matcher in selector.split(","):
            assert re.split(r"!?=~?|!~", matcher.strip())[0] in known[name] | _ALWAYS, expression


def test_alerts_speak_of_what_there_is(alerts: list[Document], known: dict[str, set[str]]) -> None:
    for alert in alerts:
        check(alert["expr"], known)


def test_the_dashboard_speaks_of_what_there_is(dashboard: Document, known: dict[str, set[str]]) -> None:
    for expression in expressions(dashboard):
        check(expression, known)


def test_every_metric_of_ours_is_on_the_dashboard(dashboard: Document, known: dict[str, set[str]]) -> None:
    shown = {name for expression in expressions(dashboard) for name in _NAME.findall(expression)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known if name.startswith("topowise_")}
    unshown = families - {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    # Only for alerts: the moment of the last look is not after that of the last publish for long.
    unshown -= {"topowise_exporter_last_sync_timestamp_seconds"}
    assert not unshown, f"give it a place in dashboards/topowise.json: {unshown}"


def test_an_alert_says_what_to_do(alerts: list[Document]) -> None:
    assert len({alert["alert"] for alert in alerts}) == len(alerts)
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert alert["alert"].startswith("Topowise")
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}


def test_every_alert_has_a_runbook_and_every_runbook_an_alert(alerts: list[Document], repository: Path) -> None:
    text = (repository / "docs/how-to/alerts.md").read_text()
    headings = re.findall(r"^## (Topowise\w+)$", text, re.MULTILINE)
    assert headings == [alert["alert"] for alert in alerts]
    # A forge makes anchors of headings by small letters; the page's own place is the rest of the address.
    page = "https://github.com/topowise/topowise/blob/main/docs/how-to/alerts.md"
    assert [alert["annotations"]["runbook_url"] for alert in alerts] == [
        f"{page}#{heading.lower()}" for heading in headings
    ]


def test_texts_use_labels_that_the_expression_leaves(alerts: list[Document]) -> None:
    for alert in alerts:
        used = set(re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values())))
        groups = [{label.strip() for label in group.split(",")} for group in _GROUPING.findall(alert["expr"])]
        if groups and not alert["expr"].startswith("max("):
            assert used <= groups[0], alert["alert"]
        elif alert["expr"].startswith(("max(", "absent(")):
            assert not used, alert["alert"]


def test_panels_do_not_overlap(dashboard: Document) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for left, right in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            left["x"] + left["w"] <= right["x"]
            or right["x"] + right["w"] <= left["x"]
            or left["y"] + left["h"] <= right["y"]
            or right["y"] + right["h"] <= left["y"]
        )
        assert apart, (left, right)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_alerts_can_be_left_out_and_get_links(render: Any, alerts: list[Document]) -> None:
    objects = render(
        "",
        "monitoring.prometheusRule.enabled=true",
        "monitoring.prometheusRule.disabled={TopowiseNodesUnreported}",
        "monitoring.prometheusRule.runbookBaseUrl=https://example.com/alerts.md",
    )
    groups = objects.named("PrometheusRule", "topowise")["spec"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["alert"] for rule in rules} == {alert["alert"] for alert in alerts} - {"TopowiseNodesUnreported"}
    assert rules[0]["annotations"]["runbook_url"] == "https://example.com/alerts.md#topowiseexporterdown"
    assert rules[0]["expr"] == alerts[0]["expr"]
    (group, *_) = render("", "monitoring.prometheusRule.enabled=true").named("PrometheusRule", "topowise")["spec"][
        "groups"
    ]
    assert group["rules"][0] == alerts[0]


@pytest.mark.parametrize(
    ("recipe", "groups", "is_missed"),
    [
        ("", {"topowise-exporter", "topowise-scheduler"}, True),
        ("exporter-only", {"topowise-exporter"}, False),
        ("kubeadm-static-pod", {"topowise-exporter", "topowise-scheduler"}, False),
    ],
)
def test_absence_alerts_only_cover_installed_components(
    render: Any, recipe: str, groups: set[str], is_missed: bool
) -> None:
    rules = render(recipe, "monitoring.prometheusRule.enabled=true").named("PrometheusRule", "topowise")
    rule_groups = rules["spec"]["groups"]
    assert {group["name"] for group in rule_groups} == groups
    assert is_missed == (
        "TopowiseSchedulerAbsent" in {rule["alert"] for group in rule_groups for rule in group["rules"]}
    )


def test_the_dashboard_arrives_whole(render: Any, dashboard: Document) -> None:
    objects = render("", "monitoring.dashboard.enabled=true").named("ConfigMap", "topowise-dashboard")
    assert json.loads(objects["data"]["topowise.json"]) == dashboard
    assert objects["metadata"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_monitors_select_what_they_are_to_scrape(render: Any, kind: str) -> None:
    objects = render("", "monitoring.monitor.enabled=true", f"monitoring.monitor.kind={kind}")
    for workload, component in (("DaemonSet", "exporter"), ("Deployment", "scheduler")):
        name = f"topowise-{component}"
        monitor = objects.named(kind, name)["spec"]
        target = objects.named(workload, name)["spec"]["template"]["metadata"]["labels"]
        if kind == "ServiceMonitor":
            service = objects.named("Service", f"{name}-metrics")
            assert service["spec"]["selector"].items() <= target.items()
            target = service["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= target.items()
