"""`kubectl topowise plan`: options, traces, and every form of the answer."""

from __future__ import annotations

import json
import os
import signal
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from topowise.errors import SourceError
from topowise_scheduler.kubectl.plan import changes
from topowise_scheduler.overlay import plan

from .conftest import Ask, Save, pod

WIDE = pod("wide", cpu="40", memory="80Gi")


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    file = tmp_path / "wide.json"
    file.write_text(json.dumps(WIDE))
    return str(file)


def test_today_equals_simulate(ask: Ask, saved: Save, tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    file.write_text(json.dumps({"kind": "List", "items": [pod(f"p{at}", cpu="6", memory="8Gi") for at in range(9)]}))
    simulated = json.loads(ask("simulate", "--nodes-file", saved(), "-f", str(file), "-o", "json").text)
    planned = json.loads(ask("plan", "--nodes-file", saved(), "-f", str(file), "-o", "json").text)
    today = planned["scenarios"][0]
    assert (today["placed"], today["refused"]) == (simulated["placed"], simulated["refused"])


def test_a_refused_pod_is_status_1(ask: Ask, saved: Save, manifest: str) -> None:
    shown = ask("plan", "--nodes-file", saved(), "-f", manifest)
    assert shown.status == 1 and "1 pod would have no node today." in shown.text
    assert "Why not, today:" in shown.text


def test_forms_for_programs(ask: Ask, saved: Save, manifest: str) -> None:
    words = ("plan", "--nodes-file", saved(), "-f", manifest, "--count", "2", "--change", "policy=none")
    document = json.loads(ask(*words, "-o", "json").text)
    assert document == yaml.safe_load(ask(*words, "-o", "yaml").text)
    assert [scenario["name"] for scenario in document["scenarios"]] == ["today", "policy=none"]
    assert document["complete"] and document["scenarios"][0]["workloads"][0]["asked"] == 2


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]


def test_the_page_needs_no_network_and_no_script(ask: Ask, saved: Save, manifest: str) -> None:
    hostile = "name='<script>alert(1)</script>' policy=restricted selector=pool=metal"
    shown = ask("plan", "--nodes-file", saved(), "-f", manifest, "--change", hostile, "-o", "html")
    page = _Page()
    page.feed(shown.text)
    assert "script" not in page.tags and page.addresses == []
    assert page.tags.count("svg") >= 2 and "details" in page.tags and "h2" in page.tags
    assert "url(http" not in shown.text and "@import" not in shown.text


def test_the_smallest_change(ask: Ask, saved: Save, manifest: str) -> None:
    change = ("--change", "scope=pod", "--change", "policy=restricted selector=pool=metal")
    shown = ask("plan", "--nodes-file", saved(), "-f", manifest, "--existing", "ignore", "--smallest", *change)
    assert shown.status == 0 and "The smallest change after which all pods fit: policy=restricted" in shown.text


def test_a_change_that_is_not_possible(ask: Ask, saved: Save) -> None:
    shown = ask("plan", "--nodes-file", saved(), "--change", "numa=4")
    assert shown.status == 1
    assert "The change is not possible: numa: a node is reported by amounts only" in shown.text


def test_restarts_are_forecast(ask: Ask, saved: Save) -> None:
    words = ("plan", "--nodes-file", saved(), "--existing", "restart", "-o", "json", "--change")
    document = json.loads(ask(*words, "reserved-cpus=0-3 selector=pool=metal").text)
    outcomes = {entry["node"]: entry["outcome"] for entry in document["scenarios"][1]["restarts"]}
    assert outcomes == {"metal-a": "does not start", "metal-b": "does not start"}


def test_ctrl_c_shows_what_is_known(ask: Ask, saved: Save, manifest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from topowise_scheduler.kubectl.plan import command

    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(command, "Progress", lambda: interrupt)
    # What runs in a shell's background ignores the signal, and so would the tests.
    before = signal.getsignal(signal.SIGINT)
    shown = ask(
        "plan", "--nodes-file", saved(), "-f", manifest, "--change", "policy=none selector=pool=metal", "--fill"
    )
    assert shown.status == 130
    assert any("incomplete" in note for note in shown.notes)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_trace_of_shapes_and_of_manifests(ask: Ask, saved: Save, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time,shape,duration,count\n0,cpu=2 memory=1Gi,60,2\n30,small,1m,\n")
    file = tmp_path / "small.json"
    file.write_text(json.dumps(pod("small", cpu="2", memory="1Gi")))
    words = ("plan", "--nodes-file", saved(), "-f", str(file), "--trace", str(trace), "-o", "json")
    document = json.loads(ask(*words).text)
    assert document["scenarios"][0]["waits"] == {
        "started": 3, "never": 0, "median": 0.0, "p95": 0.0, "longest": 0.0, "end": 90.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "lacks the columns time, shape, duration"),
        ("time,shape,duration\n", "has no row"),
        ("time,shape,duration\nsoon,cpu=1,1", "line 2: time 'soon'"),
        ("time,shape,duration\n1,cpu=1,-1", "line 2: duration '-1'"),
        ("time,shape,duration\nnan,cpu=1,1", "line 2: time 'nan'"),
        ("time,shape,duration\n1,unknown,1", "line 2: shape 'unknown'"),
        ("time,shape,duration\n1,cpu=much,1", "line 2: shape 'cpu=much'"),
        ("time,shape,duration,count\n1,cpu=1,1,99999999", "line 2: count '99999999'"),
        ('time,shape,duration\n1,"cpu=1,1', "is no CSV"),
        ("time,shape,duration\n1", "line 2: "),
    ],
)
def test_a_trace_that_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(SourceError) as error:
        changes.read(text.encode(), "t.csv", ())
    assert str(error.value).startswith("t.csv") and why in str(error.value)


def test_times_start_at_the_first_pod() -> None:
    text = "time,shape,duration\n2026-11-26T08:00:00Z,cpu=1,\n2026-11-26T08:01:00Z,cpu=1,1h\n"
    arrivals = changes.read(text.encode(), "t.csv", ())
    assert [(arrival.at, arrival.duration) for arrival in arrivals] == [(0.0, None), (60.0, 3600.0)]
    assert arrivals[0].workload is arrivals[1].workload


def parsed(text: str) -> list[plan.Change]:
    return changes.parse(text, lambda labels: ("n1",) if labels == "pool=a" else ())


def test_every_key_of_a_change() -> None:
    text = (
        "policy=restricted scope=pod topology.prefer-closest-numa-nodes=true cpu-manager=static "
        "cpu.full-pcpus-only=true memory-manager=Static reserved-cpus=0,64 reserved-memory=0:1Gi,1:2Gi "
        "version=v1.36.2 numa=4 selector=pool=a add=n1*2 remove=n2,n3 scheduler=TightFit steering=on moves=3 name=all"
    )
    assert parsed(text) == [
        plan.Change(
            name="all",
            policy="restricted",
            scope="pod",
            topology_options={"prefer-closest-numa-nodes": "true"},
            cpu_manager="static",
            cpu_options={"full-pcpus-only": "true"},
            memory_manager="Static",
            reserved_cpus="0,64",
            reserved_memory={0: "1Gi", 1: "2Gi"},
            version="v1.36.2",
            numa=4,
            nodes=("n1",),
            add={"n1": 2},
            remove=("n2", "n3"),
            scheduler="TightFit",
            steering=True,
            moves=3,
        )
    ]


def test_a_range_is_several_changes() -> None:
    assert [(change.name, change.add) for change in parsed("policy=none add=n1*2..3")] == [
        ("policy=none add=n1*2", {"n1": 2}),
        ("policy=none add=n1*3", {"n1": 3}),
    ]


@pytest.mark.parametrize(
    "text",
    ["", "policy", "policy=", "odd=1", "numa=x", "numa=0", "add=n1*3..2", "add=n1*0", "steering=maybe", "'open",
     "reserved-memory=1Gi", "reserved-memory=\u00b2:1Gi", "selector=pool=b", "moves=100000",
     "topology.=1", "reserved-cpus=a"],
)  # fmt: skip
def test_a_change_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SourceError, match="--change"):
        parsed(text)


def test_a_machine_without_a_number_is_a_node(ask: Ask, saved: Save, tmp_path: Path) -> None:
    recipes = Path(__file__).resolve().parents[4] / "docs/how-to/plan"
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps(pod("gpu", cpu="4", memory="8Gi", gpu="1")))
    machine = ("--machine", f"{recipes / 'epyc.json'}", "--kubelet-config", str(recipes / "kubelet.yaml"))
    words = ("plan", *machine, "-f", str(file), "--fill", "-o", "json")
    assert json.loads(ask(*words).text)["scenarios"][0]["nodes"] == 1
    # Beside other nodes it is a type that a change adds.
    nodes = [
        scenario["nodes"]
        for scenario in json.loads(ask(*words, "--nodes-file", saved(), "--change", "add=epyc*2").text)["scenarios"]
    ]
    assert nodes[1] == nodes[0] + 2
    with pytest.raises(SourceError, match="expected some"):
        ask("plan", "--machine", f"{recipes / 'epyc.json'}*0", *machine[2:], "-f", str(file), "--fill")


@pytest.mark.parametrize("words", [("--machine", "a.json*x"), ("--machine", "absent.json"), ("--smallest",)])
def test_options_that_cannot_be_used(ask: Ask, saved: Save, words: tuple[str, ...]) -> None:
    with pytest.raises(SourceError):
        ask("plan", "--nodes-file", saved(), *words)
