"""The engine with a single node decides as the recorded kubelet code.

The recording beside the tests has every tenth scenario, of which the usual run takes a half; `make nightly
PART=thorough` takes all, and those of the complete recording.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples import USUAL, examples
from sandbox.judging import judge
from topowise import pods
from topowise_scheduler.kubelet import Kubelet, KubeletStartError
from topowise_scheduler.kubelet.allocated_nodes import allocated_nodes
from topowise_scheduler.report import replay
from topowise_scheduler.report.shape import PodRequests
from topowise_scheduler.verdicts.engine import Engine

RECORDED = Path(__file__).parents[6] / "shared" / "data" / "kubelet-admission.jsonl.gz"
EXCERPT = Path(__file__).parents[2] / "kubelet/recorded/every-tenth.jsonl.xz"
STEP = max(1, 2 * USUAL // examples())


def test_recorded_admissions_are_decided_alike() -> None:
    lines = lzma.decompress(EXCERPT.read_bytes()).splitlines()
    assert [problem for line in lines[::STEP] for problem in _differences(line)] == []


@pytest.mark.nightly
def test_every_recorded_admission_is_decided_alike() -> None:
    if not RECORDED.exists():
        pytest.skip("the recorded decisions are not beside this repository")
    with gzip.open(RECORDED) as file:
        lines = file.read().splitlines()
    assert [problem for line in lines for problem in _differences(line)] == []


def _differences(line: bytes) -> Iterator[str]:
    scenario = replay.read_scenario(line)
    try:
        kubelet = Kubelet(scenario.machine, scenario.config, predicates=scenario.config.predicates)
    except KubeletStartError:
        return
    node = replay.Replay(scenario, kubelet)
    for number, event in enumerate(scenario.events):
        node.settle()
        # A scheduler does not decide the admission of a running pod after a kubelet restart.
        if event.op != "admit" or event.pod is None or (event.uid or event.pod.metadata.uid) in kubelet.active:
            node.apply(event)
            continue
        engine = Engine()
        engine.put("node", kubelet.fork())
        judgement = judge(
            engine, PodRequests(pods.needs(event.pod), pods.needs(event.pod, pod_level_resources=False)), located=True
        )
        result = node.apply(event)
        reason = result.get("reason", "")
        if judgement.reason_of(0) != ("OutOf" if reason.startswith("OutOf") else reason):
            yield f"{scenario.id}, event {number}: {judgement.reason_of(0)!r}, recorded {reason!r}"
        elif result["admitted"]:
            places = allocated_nodes(kubelet, result["uid"])
            zones = [places[name].mask for name in result["containers"]]
            if judgement.zones[:, 0].tolist() != zones:
                yield f"{scenario.id}, event {number}: zones {judgement.zones[:, 0].tolist()}, recorded {zones}"
