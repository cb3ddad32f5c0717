"""Names that are recognised by their bytes give the same answers as decoding, whatever the bytes are."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from scheduling import Service, counts, pod, sent
from topowise_scheduler.serve.extender import names as lists
from topowise_scheduler.serve.extender import wire
from topowise_scheduler.serve.extender.names import NameLists, Names
from topowise_scheduler.serve.extender.verbs import Verbs
from topowise_scheduler.verdicts.engine import Engine

NODES = ("a", "b", "full", "small", "c")
# Known names, unknown names, and characters that need an escape or look like the end of a name.
NAMES = st.sampled_from((*NODES, *NODES, "nobody", "", ",", '"', '","', 'x",', "\\", "é", "日本", "\x7f", "a\n", "]}"))


def body(document: dict[str, Any], names: list[str]) -> bytes:
    """Encodes the request in kube-scheduler's order of fields."""
    return msgspec.json.encode({"Pod": document, "Nodes": None, "NodeNames": names})


def reordered(document: dict[str, Any], names: list[str]) -> bytes:
    """Encodes the request with the names first, which the fast path does not recognise."""
    return json.dumps({"NodeNames": names, "Pod": document}).encode()


def service() -> Service:
    started = Service("TightFit")
    for name, available in zip(NODES, (("8", "8"), ("8", "4"), ("0", "0"), ("2", "1"), ("6", "8")), strict=True):
        started.report(counts(name, available, included=()))
    return started


def answers(verbs: Verbs, uid: str, names: list[str], encode: Any) -> tuple[Any, Any]:
    """Returns the answers of filter, and of prioritize for the names that pass filter."""
    document = pod("p", "4", uid=uid, resourceVersion="1")
    filtered = sent(verbs.filter(encode(document, names)))
    names_left = filtered["NodeNames"]
    return filtered, sent(verbs.prioritize(encode(document, names_left))) if len(names_left) > 1 else None


@settings(deadline=None, max_examples=examples(8))
@given(st.lists(st.lists(NAMES, max_size=8), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_recognised_or_decoded_the_answers_are_the_same(questions: list[list[str]], rng: Random) -> None:
    """Lists of names repeat, in a different order and in part. The questions reserve nothing."""
    fast, slow = service(), service()
    verbs, plain = fast.verbs(), slow.verbs()
    for number in range(12):
        names = list(rng.choice(questions))
        if rng.random() < 0.3:
            rng.shuffle(names)
        uid = f"uid-{number}"
        assert answers(verbs, uid, names, body) == answers(plain, uid, names, reordered)
        fast.ledger.drop_pod(uid)
        slow.ledger.drop_pod(uid)
        if rng.random() < 0.3:
            # A node is added, removed or changes its free resources.
            name, available = rng.choice(NODES), rng.choice((("8", "8"), ("0", "2")))
            for running in (fast, slow):
                running.report(counts(name, available, included=(), version=str(number)))


POD = json.dumps({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": []}}).encode()
TAIL = b',"Nodes":null,"NodeNames":["a","b"]}'
PIECES = st.sampled_from(
    (
        b'{"Pod":', POD, TAIL, b',"Nodes":null', b',"NodeNames":["a"]', b',"NodeNames":["a","b"]', b"}", b"{", b",",
        b'"', b" ", b"\n", b"\\", b"\\u0061", b'["a","b"]', b'"Pod"', b":", b"null", b'"x":1', b"[", b"]", b"\xff",
        b'"NodeNames":',
    )
)  # fmt: skip


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Pieces of a request in any order, or a request with something in it that does not belong there."""
    if draw(st.booleans()):
        return b"".join(draw(st.lists(PIECES, max_size=9)))
    whole = b'{"Pod":' + POD + TAIL
    at, end = sorted((draw(st.integers(0, len(whole))), draw(st.integers(0, len(whole)))))
    if draw(st.booleans()):
        end = at
    return whole[:at] + b"".join(draw(st.lists(PIECES, max_size=3))) + whole[end:]


@settings(deadline=None)
@given(hostile())
def test_what_is_read_without_its_names_is_what_decoding_reads(request: bytes) -> None:
    known = NameLists(Engine())
    assert known.split(b'{"Pod":' + POD + TAIL) is not None
    parts = known.split(request)
    try:
        whole = wire.decode_args(request)
    except wire.UNREADABLE:
        whole = None
    if parts is None:
        return
    try:
        head = wire.decode_args(parts[0])
    except wire.UNREADABLE:
        assert whole is None
        return
    assert whole is not None
    assert (head.Pod, parts[1].names, whole.Nodes) == (whole.Pod, whole.NodeNames, None)


def test_a_list_is_recognised_and_so_is_our_own_answer() -> None:
    running = service()
    known = NameLists(running.engine)
    first = known.split(b'{"Pod":{}' + TAIL)
    again = known.split(b'{"Pod":{"metadata":{}}' + TAIL)
    assert first is not None and again is not None
    assert again[0] == b'{"Pod":{"metadata":{}}}'
    assert again[1] is first[1]
    own_names = Names(running.engine, ["b"])
    known.keep(own_names)
    parts = known.split(b'{"Pod":{},"Nodes":null,"NodeNames":["b"]}')
    assert parts is not None and parts[1] is own_names


def test_rows_follow_nodes_that_come_and_go() -> None:
    running = service()
    known = Names(running.engine, ["a", "later"])
    assert (known.rows >= 0).tolist() == [True, False]
    running.report(counts("later", "8", included=()))
    running.ledger.reports.drop("a")
    assert (known.rows >= 0).tolist() == [False, True]


@pytest.mark.parametrize("most", [0, 7, 10, 100, 999, 1000])
@pytest.mark.parametrize("names", [[], ["a"], ["", "bb", ",", "é"], ["a", 'x",']])
def test_scores_are_written_as_integers_in_the_order_of_the_names(names: list[str], most: int) -> None:
    scores = np.linspace(0, most, max(len(names), 1)).astype(np.int64)[: len(names)][::-1].copy()
    answer = msgspec.json.decode(Names(Engine(), names).scored(scores), type=list[wire.HostPriority])
    assert [(score.Host, score.Score) for score in answer] == list(zip(names, scores.tolist(), strict=True))


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 << 20
    monkeypatch.setattr(lists, "_MAX_BYTES", most)
    running = service()
    verbs = running.verbs()
    known = verbs._lists
    for number in range(40):
        names = [f"node-{number}-{at}" for at in range(500 * (1 + number % 20))]
        verbs.filter(body(pod("p", uid="u"), names)).afterwards(0.0)  # type: ignore[misc]
        assert sum(name_list.size for name_list in known._lists) <= most
        # The size of the names does not change when their answers are dropped.
        assert all(name_list.size > 100 * len(name_list.names) for name_list in known._lists)
    assert known._lists
