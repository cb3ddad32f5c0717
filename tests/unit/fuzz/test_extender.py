"""Bodies that are sent to the extender, for every verb of both protocols: 200, JSON that Go can read, at once."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import given
from prometheus_client import CollectorRegistry

from fuzzing import anything, tried
from scheduling import NoApi, Service, counts, pod, scope
from topowise_scheduler.serve.extender import http
from topowise_scheduler.serve.extender.callers import Callers
from volcano import RECORDED, serving

SIZE = 100_000
MAX_BODY = 1 << 20
_POD = json.dumps(pod("p", "1")).encode()
SAMPLES = {
    "filter": b'{"Pod":%s,"Nodes":null,"NodeNames":["n1","n2"]}' % _POD,
    "prioritize": b'{"Pod":%s,"Nodes":{"items":[{"metadata":{"name":"n1"}}]},"NodeNames":null}' % _POD,
    "preempt": b'{"Pod":%s,"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"running"}],"NumPDBViolations":0}}}' % _POD,
    "bind": b'{"PodName":"p","PodNamespace":"default","PodUID":"p","Node":"n1"}',
    "explain": b"metadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: &l {cpu: 1}, requests: *l}}]}",
    **{
        f"volcano/{path.stem.partition('-')[2]}": path.read_bytes()
        for path in sorted(RECORDED.glob("*.json"))
        if path.stat().st_size < 20_000
    },
}
HOSTILE = {
    "deep": b"[" * SIZE,
    "deep objects": b'{"a":' * (SIZE // 5),
    "a deep pod": b'{"Pod":' * (SIZE // 7),
    "a deep pod in what is skipped": b'{"Pod":{"x":' + b"[" * 5000 + b"]" * 5000 + b"}}",
    "a huge number": b'{"Pod":{"metadata":{},"spec":{"priority":%s}}}' % (b"9" * SIZE),
    "a huge quantity": b'{"Pod":{"metadata":{},"spec":{"overhead":{"cpu":"%s"}}},"NodeNames":["n1"]}' % (b"9" * SIZE),
    "a huge exponent": b'{"Pod":{"metadata":{},"spec":{"overhead":{"cpu":"1e999999999"}}},"NodeNames":["n1"]}',
    "many keys": b"{%s}" % b",".join(b'"k%d":1' % at for at in range(SIZE // 11)),
    "many resources": b'{"Pod":{"metadata":{},"spec":{"containers":[{"name":"c","resources":{"requests":{%s}}}]}},'
    b'"NodeNames":["n1"]}' % b",".join(b'"a/%d":1' % at for at in range(SIZE // 12)),
    "many containers": b'{"Pod":{"metadata":{},"spec":{"containers":[%s]}},"NodeNames":["n1"]}'
    % b",".join([b'{"name":"c","resources":{"limits":{"cpu":"1"}}}'] * (SIZE // 50)),
    "many names": b'{"Pod":{"metadata":{},"spec":{}},"NodeNames":[%s]}' % b",".join([b'"n1"'] * (SIZE // 5)),
    "a long key": b'{"%s":1}' % (b"a" * SIZE),
    "yaml that is deep": b"a: " + b"[" * SIZE,
    "yaml of aliases": b"a: &a [x]\n" + b"".join(b"a%d: &a [*a,*a,*a,*a,*a,*a,*a,*a]\n" % at for at in range(12)),
}


class _EmptyPod(NoApi):
    """Binds do not get as far as here: there is no such pod."""

    async def request(self, *_arguments: Any, **_named: Any) -> bytes:
        return b'{"metadata":{},"spec":{}}'


def application() -> http.Application:
    service = Service()
    for name in ("n1", "n2"):
        service.report(counts(name, ("8", "8"), included=()))
    service.put(pod("running", "3", node="n1"))
    metrics = http.Metrics(CollectorRegistry())
    return http.Application(service.served(_EmptyPod()), metrics, MAX_BODY, Callers(()), volcano=serving(service))


APPLICATION = application()
VERBS = sorted({*SAMPLES, "volcano/preemptable", "volcano/reclaimable", "volcano/prioritize"})


def ask(verb: str, body: bytes) -> Any:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    begun = time.process_time()
    asyncio.run(APPLICATION(scope(f"/{verb}"), receive, send))
    assert time.process_time() - begun < 1.0
    assert sent[0]["status"] == 200
    assert len(sent[1]["body"]) < max(50_000, 20 * len(body))
    return json.loads(sent[1]["body"] or b"{}")


@pytest.mark.parametrize("verb", VERBS)
def test_hostile_bodies_are_answered_at_once(verb: str) -> None:
    for body in HOSTILE.values():
        ask(verb, body)


@pytest.mark.parametrize("verb", sorted(SAMPLES))
def test_damaged_bodies_are_answered(verb: str) -> None:
    @tried
    @given(anything((SAMPLES[verb],)))
    def check(body: bytes) -> None:
        ask(verb, body)

    check()


def test_after_all_that_questions_are_answered_as_before() -> None:
    for body in HOSTILE.values():
        ask("filter", body)
    assert ask("filter", SAMPLES["filter"])["NodeNames"] == ["n1", "n2"]
