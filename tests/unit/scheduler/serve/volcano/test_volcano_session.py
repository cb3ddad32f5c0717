"""A recorded session of Volcano's extender plug-in, answered by the verbs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refusal_words import refusals
from scheduling import Service, counts, pod
from volcano import RECORDED, serving

_FITS = {"status": "", "code": 0}
_FULL = {"status": refusals.NOT_NOW, "code": 2}
_DONE = {"errorMessage": ""}
_REFUSED = {"errorMessage": "kubelet of n1 would refuse the pod: TopologyAffinityError"}
# In the order of the recording; the names of victims stand for them.
_SHOWN: list[tuple[str, Any]] = [
    ("g-0 fits n1", _FITS),
    ("but not n2", _FULL),
    ("both nodes are asked for", {"nodeScore": {"n1": 0.0, "n2": 0.0}, "errorMessage": ""}),
    ("g-0 is allocated to n1", _DONE),
    ("g-1 beside it", _DONE),
    ("n1 is full for g-2", _FULL),
    ("and allocating it all the same is refused", _REFUSED),
    ("rolled back", _DONE),
    ("the gang is given up: g-1 leaves", _DONE),
    ("so g-2 fits", _FITS),
    ("g-1 is allocated again", _DONE),
    ("best-effort is another policy", {"status": refusals.OTHER_POLICY, "code": 3}),
    ("nine CPUs fit no NUMA node ever", {"status": refusals.NEVER, "code": 3}),
    ("one victim is enough", {"status": 1, "victims": ["old-a"]}),
    ("for reclaim too", {"status": 1, "victims": ["old-a"]}),
    ("old-a is evicted on trial", _DONE),
    ("g-2 fits then", _FITS),
    ("and is pipelined", _DONE),
    ("nobody else has that room", _FULL),
    ("g-2 is taken off again", _DONE),
    ("old-a stays", _DONE),
    ("and g-2 fits no more", _FULL),
]


@pytest.fixture
def service() -> Service:
    made = Service()
    made.report(counts("n1", ("8", "8"), included=()))
    made.report(counts("n2", ("0", "0"), included=("old-a", "old-b"), placed={"old-a": 0, "old-b": 1}))
    for name in ("old-a", "old-b"):
        made.put(pod(name, "8", node="n2", phase="Running", startTime="2026-08-21T09:00:00Z"))
    return made


def test_every_step_of_the_session_is_answered_as_it_should(service: Service) -> None:
    verbs = serving(service)
    files = sorted(RECORDED.glob("*.json"))
    assert files[0].name == "01-onSessionOpen.json"
    assert files[-1].name == "24-onSessionClose.json"
    for file, (step, expected) in zip(files[1:-1], _SHOWN, strict=True):
        answer = verbs[file.stem.partition("-")[2]].now
        assert answer is not None
        body = file.read_bytes()
        shown = json.loads(answer(body).body)
        if "victims" in shown:
            offered = json.loads(body)["evictees"]
            assert all(one in offered for one in shown["victims"]), step
            shown["victims"] = [one["Name"] for one in shown["victims"]]
        assert shown == expected, step


def test_victims_go_back_byte_for_byte(service: Service) -> None:
    body = (RECORDED / "16-reclaimable.json").read_bytes()
    answer = serving(service)["reclaimable"].now
    assert answer is not None
    evictee = body.partition(b'"evictees":[')[2].removesuffix(b"]}")
    assert answer(body).body == b'{"status":1,"victims":[' + evictee + b"]}"
