"""`topowise-scheduler replay` prints a result for each scenario, and an error line for each unreadable scenario."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from topowise_scheduler.__main__ import main
from topowise_scheduler.report.replay import main_replay, replay

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
    return [json.dumps(document).encode() for document in objects]


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


def test_a_kubelet_that_does_not_start_has_its_error() -> None:
    config = SCENARIO["config"] | {"cpuManagerPolicyOptions": {"fast": "true"}}
    assert list(replay(_lines(SCENARIO | {"config": config}))) == [
        {
            "id": "one",
            "events": [],
            "configError": 'new static policy error: unknown CPU Manager Policy option: "fast"',
        }
    ]


def _replayed(**changed: Any) -> dict[str, Any]:
    (result,) = replay(_lines(SCENARIO | changed))
    return json.loads(json.dumps(result))  # type: ignore[no-any-return]


def test_a_scenario_names_the_kubelet_that_decides() -> None:
    devices = [{"resource": "x.io/gpu", "devices": [{"id": "g0", "numa": [0]}]}]
    cores = [{"socket": 1, "threads": [4, 6]}, {"socket": 1, "threads": [5, 7]}]
    second = {"id": 1, "memory": 1 << 33, "distances": [21, 10], "cores": cores}
    first = SCENARIO["machine"]["numa"][0] | {"distances": [10, 21], "hugepages": {}}
    limits = {"cpu": "6", "memory": "1Gi", "x.io/gpu": "1"}
    pod = {"metadata": {"uid": "p"}, "spec": {"containers": [{"name": "c0", "resources": {"limits": limits}}]}}
    scenario = {
        "machine": {"numa": [first, second], "devices": devices},
        "config": SCENARIO["config"] | {"topologyManagerPolicy": "best-effort"},
        "events": [{"op": "admit", "uid": "p", "pod": pod}],
    }
    hints = {}
    for version in (None, "v1.35.6", "v1.36.2", "v1.35.6+7cf4c05"):
        result = _replayed(**scenario, kubeletVersion=version)
        hints[version] = result["events"][0]["containers"]["c0"]["hint"]["numa"]
        named = version or ""
        expected = {"v1.35.6": "1.35", "v1.36.2": "1.36", "v1.35.6+7cf4c05": "1.35 (OpenShift 4.22)"}.get(named)
        assert result.get("kubelet", {}).get("version") == expected
    assert hints == {None: [0], "v1.35.6": [0, 1], "v1.36.2": [0], "v1.35.6+7cf4c05": [0]}


def test_an_unproven_version_has_a_remark() -> None:
    assert _replayed(kubeletVersion="v1.99.0")["kubelet"] == {
        "version": "1.38",
        "certainty": "assumed",
        "remark": "kubelet 1.99 is newer than the proven versions (1.28 to 1.36); predicted as 1.38",
    }


def test_gates_of_options_count_as_on_unless_defaults_are_requested() -> None:
    changed = {"config": SCENARIO["config"] | {"cpuManagerPolicyOptions": {"align-by-socket": "true"}}}
    assert "configError" not in _replayed(**changed)
    assert "configError" not in _replayed(**changed, kubeletVersion="v1.33.0")
    refused = _replayed(**changed, kubeletVersion="v1.33.0", gateDefaults=True)
    assert refused["configError"].endswith('Alpha-level Options not enabled, but option "align-by-socket" provided')


def test_a_draft_is_listed_and_no_released_kubelet_has_it() -> None:
    options = {"topologyManagerPolicyOptions": {"prefer-most-allocated-numa-node": "true"}}
    changed = {"config": SCENARIO["config"] | options}
    assert _replayed(**changed)["drafts"] == ["prefer-most-allocated-numa-node"]
    assert "unknown Topology Manager Policy option" in _replayed(**changed, kubeletVersion="v1.36.2")["configError"]


def test_a_kubelet_that_never_answers_ends_the_scenario() -> None:
    cores = [
        {"socket": node, "threads": [3 * node + core, 3 * node + core + 12]} for node in range(4) for core in range(3)
    ]
    numa = [{"id": node, "memory": 1 << 33, "cores": cores[3 * node : 3 * node + 3]} for node in range(4)]
    limits = {"cpu": "14", "memory": "1Gi"}
    pod = {"metadata": {"uid": "p"}, "spec": {"containers": [{"name": "c0", "resources": {"limits": limits}}]}}
    options = {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"}
    config = {"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": options, "systemReserved": {"memory": "1Gi"}}
    result = _replayed(
        machine={"numa": numa},
        config=config | {"reservedSystemCPUs": "0,3,6,9-10,18,21"},
        events=[{"op": "remove", "uid": "x"}, {"op": "admit", "uid": "p", "pod": pod}, {"op": "remove", "uid": "p"}],
    )
    assert [event["op"] for event in result["events"]] == ["remove"]
    assert result["hang"].startswith("the kubelet would search forever")


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
        (json.dumps(SCENARIO | {"kubeletVersion": 1.33}).encode(), "kubeletVersion"),
    ],
)
def test_a_malformed_line_is_an_error_and_the_next_line_is_replayed(
    broken: bytes, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps(SCENARIO).encode()
    assert len(list(replay([good, broken, b"", good]))) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: line 2: ")
    assert named in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("compress", [False, True])
def test_compressed_and_plain_files_are_read(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], compress: bool
) -> None:
    data = b"\n".join(_lines(SCENARIO, SCENARIO | {"id": 2})) + b"\n"
    file = tmp_path / "scenarios"
    file.write_bytes(gzip.compress(data) if compress else data)
    progress: list[str] = []
    assert main_replay(str(file), progress.append) == 0
    assert [json.loads(line)["id"] for line in capfdbinary.readouterr().out.splitlines()] == ["one", 2]
    assert [line.partition(",")[0] for line in progress] == ["1 scenarios done", "2 scenarios done"]
    assert progress[-1].endswith(f", 100 % of {file}")


def test_a_missing_file_is_a_single_line_and_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_replay("no-such-file") == 1
    assert capsys.readouterr().err.startswith("error: no-such-file: ")


@pytest.mark.parametrize("data", [b"", b"\n", b"hello\n{}\n", gzip.compress(b"{}" * 9, mtime=0)[:-9]])
def test_a_file_without_readable_lines_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    file = tmp_path / "scenarios"
    file.write_bytes(data)
    assert main_replay(str(file)) == 1
    assert f"error: {file}: " in capsys.readouterr().err


@pytest.mark.parametrize("compress", [False, True])
def test_scenarios_are_read_from_stdin(compress: bool) -> None:
    data = b"\n".join(_lines(SCENARIO))
    command = [sys.executable, "-m", "topowise_scheduler", "replay", "-"]
    ran = subprocess.run(command, input=gzip.compress(data) if compress else data, capture_output=True, check=True)
    assert json.loads(ran.stdout)["id"] == "one"


def test_the_configuration_of_the_service_is_checked_without_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("{apiVersion: topowise.io/v1alpha1, kind: SchedulerConfiguration}")
    assert main(["serve", "--config", str(file), "--check"]) == 0
    assert capsys.readouterr().out == f"{file}: valid\n"
    file.write_text("{apiVersion: topowise.io/v1alpha1, kind: SchedulerConfiguration, scoring: {strategy: tightfit}}")
    assert main(["serve", "--config", str(file), "--check"]) == 1
    assert "did you mean TightFit? - at `$.scoring.strategy`" in capsys.readouterr().err
