"""`defrag`: its output, the pods it does not move, and its refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topowise.errors import SourceError
from topowise_scheduler.kubectl.console import Output

from .conftest import TWO, Ask, Json, Save, configuration, node, pod, report

Try = Callable[..., Output]


def owned(document: Json, kind: str = "ReplicaSet") -> Json:
    metadata = {**document["metadata"], "ownerReferences": [{"kind": kind, "name": "o", "controller": True}]}
    return {**document, "metadata": metadata}


def changed(document: Json, where: str, **fields: Any) -> Json:
    return {**document, where: {**document[where], **fields}}


# A NUMA node has 32 CPUs, the first 30. Node a has 10 and 12 free CPUs, b has 22 and 2: a pod of 24 CPUs fits on a
# after a pod of 20 CPUs moves to b.
MOVED = owned(pod("web/moved", "a", cpu="20", memory="4Gi"))
STAYS = pod("web/stays", "a", cpu="20", memory="4Gi", started=3000)
SMALL = owned(pod("db/small", "b", cpu="8", memory="4Gi"), "DaemonSet")
LARGE = pod("db/large", "b", cpu="30", memory="4Gi", started=3000)


@pytest.fixture
def ask_for(ask: Ask, saved: Save) -> Try:
    """The answer for a pod of `cpu` CPUs on the two nodes, with `moved` instead of MOVED."""

    def answer(*words: str, cpu: str = "24", moved: Json = MOVED, extra: tuple[Json, ...] = ()) -> Output:
        objects = (
            report("a", TWO, configuration(TWO), (moved, STAYS)),
            report("b", TWO, configuration(TWO), (SMALL, LARGE)),
            *(node("a", gpus=2), node("b", {"pool": "b"}, gpus=2)),
            *(moved, STAYS, SMALL, LARGE, *extra),
        )
        manifest = saved(pod("ml/wide", cpu=cpu, memory="8Gi"), name="wanted.json")
        return ask("defrag", "-f", manifest, "--nodes-file", saved(*objects), *words)

    return answer


def test_people_get_a_table_of_steps(ask_for: Try) -> None:
    answer = ask_for()
    assert answer.text == (
        "ml/wide: 1 more pod fits once 1 pod is moved (no plan has fewer)\n"
        "\n"
        "STEP   POD         FROM    TO   ON NUMA\n"
        "1      web/moved   a       b    0\n"
        "2      ml/wide     (new)   a    0\n"
        "\n"
        "NODE   NUMA   CPU FREE, BEFORE AND AFTER             MEMORY FREE, BEFORE AND AFTER\n"
        "a      0      ███████░░░ 10 -> ████████░░ 6 of 30    █░░░░░░░░░ 57Gi -> ██░░░░░░░░ 53Gi of 61Gi\n"
        "a      1      ███████░░░ 12 -> ███████░░░ 12 of 32   █░░░░░░░░░ 58Gi -> █░░░░░░░░░ 58Gi of 62Gi\n"
        "b      0      ███░░░░░░░ 22 -> ██████████ 2 of 30    █░░░░░░░░░ 57Gi -> ██░░░░░░░░ 53Gi of 61Gi\n"
        "b      1      ██████████ 2 -> ██████████ 2 of 32     █░░░░░░░░░ 58Gi -> █░░░░░░░░░ 58Gi of 62Gi\n"
        "\n"
        "Take one step at a time: evict the pod, make sure that its replacement goes to the node under TO,\n"
        "and wait until it is Ready. Budgets were checked as they are now.\n"
    )
    assert answer.status == 0
    assert answer.notes[-1] == "note: 1 of 4 pods may be moved; not 2 without a controller, 1 of a DaemonSet"


@pytest.mark.parametrize(("form", "decode"), [("json", json.loads), ("yaml", msgspec.yaml.decode)])
def test_documents_have_all_steps_and_amounts(ask_for: Try, form: str, decode: Callable[[str], Json]) -> None:
    shown = decode(ask_for("-o", form).text)
    steps = shown.pop("steps")
    free = {
        (entry["node"], entry["numa"]): (entry["before"]["cpu"], entry["after"]["cpu"]) for entry in shown.pop("free")
    }
    assert free == {("a", 0): (10, 6), ("a", 1): (12, 12), ("b", 0): (22, 2), ("b", 1): (2, 2)}
    assert shown == {
        "pod": "ml/wide",
        "from": "Pod ml/wide",
        "count": 1,
        "fits": True,
        "already": 0,
        "moves": 1,
        "fewest": True,
        "why": "",
        "notMovable": {"of a DaemonSet": 1, "without a controller": 2},
    }
    assert [(entry["action"], entry["pod"], entry.get("from"), entry["to"]) for entry in steps] == [
        ("move", "web/moved", "a", "b"),
        ("new", "ml/wide", None, "a"),
    ]
    assert steps[1]["containers"]["app"]["numa"] == [0]


def test_nothing_is_moved_for_pods_that_fit(ask_for: Try) -> None:
    answer = ask_for("--count", "2", cpu="10")
    assert answer.text.startswith("ml/wide: 2 more pods fit, nothing has to be moved\n")
    assert answer.status == 0


def budget(name: str, allowed: int) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "web"},
        "spec": {"selector": {}},
        "status": {"disruptionsAllowed": allowed},
    }


@pytest.mark.parametrize(
    ("moved", "extra", "why"),
    [
        (changed(MOVED, "spec", priority=1), (), "of a higher priority"),
        (owned(MOVED, "Node"), (), "of their node (static pods)"),
        (changed(MOVED, "metadata", annotations={"kubernetes.io/config.mirror": "x"}), (), "static pods"),
        (changed(MOVED, "metadata", deletionTimestamp="2026-05-28T20:00:00Z"), (), "that end already"),
        (
            changed(MOVED, "metadata", annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}),
            (),
            "safe-to-evict",
        ),
        (changed(MOVED, "spec", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]), (), "volumes"),
        (MOVED, (budget("x", 0),), "whose PodDisruptionBudget allows no eviction"),
        (MOVED, (budget("x", 1), budget("y", 1)), "with more than one PodDisruptionBudget"),
    ],
)
def test_pods_that_must_not_move_stay(ask_for: Try, moved: Json, extra: tuple[Json, ...], why: str) -> None:
    answer = ask_for(moved=moved, extra=extra)
    assert answer.status == 1
    assert why in answer.notes[-1]
    assert answer.text == (
        "ml/wide: no room for 1 more: with up to 10 moves there is no more: no node would have room if all "
        "movable pods left it\n"
    )


def test_a_pod_whose_budget_allows_an_eviction_is_moved(ask_for: Try) -> None:
    assert ask_for(extra=(budget("x", 1),)).status == 0


def test_a_pod_moves_only_to_nodes_that_kube_scheduler_would_use(ask_for: Try) -> None:
    answer = ask_for(moved=changed(MOVED, "spec", nodeSelector={"pool": "elsewhere"}))
    assert answer.status == 1
    assert "the pods whose leaving would make room fit on no other node" in answer.text
    assert ask_for(moved=changed(MOVED, "spec", nodeSelector={"pool": "b"})).status == 0


def test_a_pod_too_large_for_every_node_is_refused_at_once(ask_for: Try) -> None:
    answer = ask_for(cpu="40")
    assert (answer.status, answer.text) == (
        1,
        "ml/wide: no room for 1 more: no node would take such a pod, whatever pods left it\n",
    )


def test_the_default_number_of_pods_is_that_of_the_manifest(ask: Ask, saved: Save) -> None:
    template = {"spec": pod("web", cpu="30", memory="4Gi")["spec"]}
    deployment = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2, "template": template}}
    file = saved(deployment, name="wanted.json")
    known = saved(report("a", TWO, configuration(TWO), ()), node("a"))
    assert ask("defrag", "-f", file, "--nodes-file", known).text.startswith("default/web: 2 more pods fit, nothing")
    answer = ask("defrag", "-f", file, "--nodes-file", known, "--count", "3")
    assert "room for 2 of 3" in answer.text


def test_only_a_single_kind_of_pod_is_accepted(ask: Ask, saved: Save, tmp_path: Path) -> None:
    file = saved(pod("x", cpu="1", memory="1Gi"), pod("y", cpu="1", memory="1Gi"), name="two.json")
    with pytest.raises(SourceError, match="asks for 2 kinds of pods, expected one"):
        ask("defrag", "-f", file, "--nodes-file", saved())
    assert tmp_path


@pytest.mark.parametrize("number", ["0", "-1", "1001", "x", "9" * 5000])
def test_an_invalid_number_is_an_error(ask: Ask, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ask("defrag", "-f", "x", "--count", number)
    assert "is not a number from 1 to 1000" in capsys.readouterr().err
