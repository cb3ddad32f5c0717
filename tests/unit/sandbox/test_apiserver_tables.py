"""The table that `kubectl get` prints."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from sandbox.apiserver import builtin, jsonpath, printers, tables
from sandbox.apiserver.errors import Json
from sandbox.apiserver.resources import Column
from sandbox.apiserver.strategy import Site

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
TOPOLOGY: Json = {
    "zones": [{"name": "node-0", "n": 1}, {"name": "node-1", "n": 2}],
    "attributes": [{"name": "policy", "value": "none"}],
    "metadata": {"labels": {"example.com/a": "b"}},
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".zones[*].name", ["node-0", "node-1"]),
        (".zones[1].name", ["node-1"]),
        (".zones[-1].name", ["node-1"]),
        (".zones[0:1].name", ["node-0"]),
        ('.zones[?(@.name=="node-1")].n', [2]),
        ('.zones[?(@.name!="node-1")].n', [1]),
        (".zones[?(@.n==2)].name", ["node-1"]),
        ("$.zones[0].n", [1]),
        (".metadata.labels.example\\.com", []),
        (".metadata.labels['example.com/a']", ["b"]),
        (".nothing.at.all", []),
        (".attributes[*].missing", []),
    ],
)
def test_paths_find_what_they_name(path: str, expected: list[Any]) -> None:
    assert jsonpath.find(path, TOPOLOGY) == expected


@pytest.mark.parametrize("path", [".zones[9]", ".metadata[0]", ".zones[", ".a/b"])
def test_a_path_that_does_not_fit_is_an_error(path: str) -> None:
    with pytest.raises(jsonpath.PathError):
        jsonpath.find(path, TOPOLOGY)


@pytest.mark.parametrize(
    ("kind", "path", "shown"),
    [
        ("string", ".zones[*].name", "node-0"),
        ("string", ".zones[0].n", "1"),
        ("string", ".zones[0]", '{"n":1,"name":"node-0"}'),
        ("string", ".zones[9].name", None),
        ("string", ".nothing", None),
        ("integer", ".zones[*].n", 1),
        ("integer", ".zones[0].name", None),
        ("boolean", ".zones[0].n", None),
        ("date", ".zones[0].name", "<invalid>"),
    ],
)
def test_a_cell_is_the_first_result_of_the_right_type(kind: str, path: str, shown: Any) -> None:
    assert tables.cell(Column("C", kind, path), TOPOLOGY, NOW) == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (121, "2m1s"), (599, "9m59s"),
        (600, "10m"), (10799, "179m"), (10800, "3h"), (25200, "7h"), (28799, "7h59m"), (28800, "8h"),
        (172799, "47h"), (172800, "2d"), (176400, "2d1h"), (691200, "8d"), (63071999, "729d"), (63072000, "2y"),
        (63158400, "2y1d"), (252288000, "8y"),
    ],
)  # fmt: skip
def test_ages_are_rounded_as_kubectl_shows_them(seconds: int, text: str) -> None:
    assert printers.human_duration(seconds) == text


def cells(resource: str, obj: Json) -> dict[str, Any]:
    """The row of a built-in object by column name."""
    site = Site(builtin.catalog()[resource], "v1")
    table = tables.table(site, [obj], {})
    names = [column["name"] for column in table["columnDefinitions"]]
    return dict(zip(names, table["rows"][0]["cells"], strict=True))


def test_a_rejected_pod_shows_the_kubelets_reason() -> None:
    status = {"phase": "Failed", "reason": "TopologyAffinityError"}
    row = cells("pods", {"metadata": {"name": "p"}, "spec": {"containers": [{}], "nodeName": "n"}, "status": status})
    assert (row["Status"], row["Ready"], row["Node"], row["Age"]) == ("TopologyAffinityError", "0/1", "n", "<unknown>")


def test_a_running_pod_shows_its_containers() -> None:
    statuses = [{"ready": True, "restartCount": 2}, {"ready": False, "state": {"waiting": {"reason": "ErrImagePull"}}}]
    status = {"phase": "Running", "containerStatuses": statuses, "podIP": "10.0.0.1"}
    row = cells("pods", {"metadata": {"name": "p"}, "spec": {"containers": [{}, {}]}, "status": status})
    assert (row["Status"], row["Ready"], row["Restarts"], row["IP"]) == ("ErrImagePull", "1/2", "2", "10.0.0.1")


def test_a_node_shows_its_state_and_roles() -> None:
    labels = {"node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/gpu": ""}
    status = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    }
    node = {"metadata": {"name": "n", "labels": labels}, "spec": {"unschedulable": True}, "status": status}
    row = cells("nodes", node)
    assert (row["Status"], row["Roles"]) == ("NotReady,SchedulingDisabled", "gpu,worker")
    assert row["Internal-IP"] == "10.0.0.1"
    assert cells("nodes", {"metadata": {"name": "n"}})["Status"] == "Unknown"


@pytest.mark.parametrize("resource", [resource.key for resource in builtin.BUILTIN])
def test_every_builtin_kind_prints_an_object_with_nothing_but_a_name(resource: str) -> None:
    site = Site(builtin.catalog()[resource], "v1")
    table = tables.table(site, [{"metadata": {"name": "x"}}], {})
    assert len(table["rows"][0]["cells"]) == len(table["columnDefinitions"])
