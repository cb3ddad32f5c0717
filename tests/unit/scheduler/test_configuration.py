"""An invalid SchedulerConfiguration is refused, and the error names the field."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import msgspec
import pytest

from scheduling import NoApi, pod
from topowise.errors import ConfigError
from topowise.runtime import config
from topowise_scheduler.configuration import SchedulerConfiguration
from topowise_scheduler.ledger.pods.exporter_pods import LABELS
from topowise_scheduler.serve.core import Core
from topowise_scheduler.verdicts.refusals import Refusal

HEAD = b"apiVersion: topowise.io/v1alpha1\nkind: SchedulerConfiguration\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("scoring: {resources: [{name: cpu}, {name: memory}, {name: cpu, weight: 5}]}", "'cpu' more than once"),
        ("extender: {port: 99999}", "$.extender.port"),
        ("extender: {port: 0}", "$.extender.port"),
        ("readOnly: {port: 65536}", "$.readOnly.port"),
        ("grpc: {port: -1}", "$.grpc.port"),
        ("serving: {port: 70000}", "$.serving.port"),
        ("extender: {port: 8081}", "extender.port and readOnly.port are both 8081, expected different ports"),
        ("serving: {port: 8080}", "extender.port and serving.port are both 8080"),
        ("grpc: {port: 8081}", "readOnly.port and grpc.port are both 8081"),
        ("ui: {enabled: true}\nreadOnly: {port: 0}", "ui.enabled is true and readOnly.port 0"),
        ("resourceClaims: {drivers: [gpu.example.com]}", "resourceClaims.drivers is set and placement.enabled false"),
        ("resourceClaims: {drivers: ['gpu\"']}\nplacement: {enabled: true}", "$.resourceClaims.drivers[0]"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        config.parse(SchedulerConfiguration, HEAD + text.encode())


def test_a_port_may_be_used_on_two_addresses_or_disabled() -> None:
    for text in ("extender: {port: 8081, address: 10.0.0.1}", "readOnly: {port: 0}\nserving: {port: 0}"):
        config.parse(SchedulerConfiguration, HEAD + text.encode())


def test_the_service_recognises_the_exporters_that_are_configured() -> None:
    text = b"exporters: {namespace: monitoring, nodeSelector: {numa: 'yes'}}\n"
    core = Core(config.parse(SchedulerConfiguration, HEAD + text), NoApi())
    for namespace, labels, expected in (
        ("monitoring", {**LABELS, "more": "1"}, True),
        ("monitoring", {"app": "other"}, None),
        ("tenant", LABELS, None),
    ):
        document = pod("p", node="n1", labels=labels, conditions=[{"type": "Ready", "status": "True"}])
        document["metadata"]["namespace"] = namespace
        assert core.records.decode(msgspec.json.encode(document)).status.exporter_ready is expected
        core.ledger.put_pod(core.records.decode(msgspec.json.encode(document)))
    for name, labels in (("n2", {"numa": "yes"}), ("n3", {})):
        metadata = {"name": name, "labels": labels, "creationTimestamp": datetime.now(UTC).isoformat()}
        core.ledger.reports.put_node_object(core.nodes.decode(msgspec.json.encode({"metadata": metadata})), time.time())
    record = core.records.decode(msgspec.json.encode(pod("a", uid="uid-a")))
    assert [core.ledger.gates.all(record, name) for name in ("n2", "n3")] == [Refusal.NEW_NODE, None]
