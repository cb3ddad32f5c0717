"""`topowise-scheduler replay`: one result for each scenario, and one line on stderr for each that cannot be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from topowise_scheduler.replay import main_replay, replay

POD = {
    "metadata": {"name": "p", "namespace": "default", "uid": "p"},
    "spec": {"containers": [{"name": "c0", "image": "x", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}]},
}
SCENARIO: dict[str, Any] = {
    "id": "one",
    "machine": {
        "numa": [
            {
                "id": 0,
                "memory": 1 << 33,
                "distances": [10],
                "hugepages": {"2048": 0},
                "cores": [{"socket": 0, "threads": [0, 2]}, {"socket": 0, "threads": [1, 3], "uncore": 0}],
            }
        ],
        "devices": [],
    },
    "config": {
        "topologyManagerPolicy": "restricted",
        "cpuManagerPolicy": "static",
        "reservedSystemCPUs": "0",
        "systemReserved": {"memory": "1Gi"},
        "unheardOf": True,
    },
    "events": [
        {"op": "admit", "uid": "p", "pod": POD},
        {"op": "start", "uid": "p"},
        {"op": "devices", "resource": "x.io/nic", "devices": [{"id": "n0", "numa": [0]}]},
        {"op": "remove", "uid": "p"},
        {"op": "remove", "uid": "p"},
    ],
}
PLACED = {"kind": "app", "hint": {"numa": [0], "preferred": True}, "cpus": "1,3"}


def _lines(*objects: Any) -> list[bytes]:
    return [json.dumps(one).encode() for one in objects]


@pytest.mark.parametrize("line", _lines(SCENARIO, {"result": {"events": "ignored"}, "scenario": SCENARIO}))
def test_a_scenario_is_replayed_alone_or_wrapped(line: bytes) -> None:
    (result,) = replay([line])
    assert json.loads(json.dumps(result)) == {
        "id": "one",
        "events": [
            {"op": "admit", "uid": "p", "admitted": True, "qos": "Guaranteed", "containers": {"c0": PLACED}},
            {"op": "start", "uid": "p", "containers": {"c0": PLACED}},
            {"op": "devices", "resource": "x.io/nic"},
            {"op": "remove", "uid": "p"},
            {"op": "remove", "uid": "p", "error": "unknown uid"},
        ],
    }


def test_a_kubelet_that_does_not_start_says_why() -> None:
    config = SCENARIO["config"] | {"cpuManagerPolicyOptions": {"fast": "true"}}
    assert list(replay(_lines(SCENARIO | {"config": config}))) == [
        {
            "id": "one",
            "events": [],
            "configError": 'new static policy error: unknown CPU Manager Policy option: "fast"',
        }
    ]


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (b"{", "truncated"),
        (b"[]", "array"),
        (b"\xff", "line 2"),
        (b'{"id": 7}', "machine"),
        (json.dumps(SCENARIO | {"events": [{"op": "admit", "uid": "p"}]}).encode(), "expected a pod"),
        (json.dumps(SCENARIO | {"events": [{"op": "explode"}]}).encode(), "explode"),
        (json.dumps(SCENARIO | {"config": {"systemReserved": {"cpu": "much"}}}).encode(), "'much'"),
        (json.dumps(SCENARIO | {"machine": {"numa": []}}).encode(), "length >= 1"),
    ],
)
def test_a_malformed_line_is_named_and_the_next_one_replayed(
    broken: bytes, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps(SCENARIO).encode()
    assert len(list(replay([good, broken, b"", good]))) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: line 2: ")
    assert named in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("compress", [False, True])
def test_a_file_is_read_whether_it_is_compressed_or_not(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], compress: bool
) -> None:
    data = b"\n".join(_lines(SCENARIO, SCENARIO | {"id": 2})) + b"\n"
    file = tmp_path / "scenarios"
    file.write_bytes(gzip.compress(data) if compress else data)
    assert main_replay(str(file)) == 0
    assert [json.loads(line)["id"] for line in capfdbinary.readouterr().out.splitlines()] == ["one", 2]


def test_a_file_that_is_not_there_is_one_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_replay("no-such-file") == 1
    assert capsys.readouterr().err.startswith("error: no-such-file: ")
