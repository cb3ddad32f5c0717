"""The node names of a call: nearly always the same bytes as in an earlier request or in the last answer.

kube-scheduler writes ExtenderArgs as the pod, `"Nodes":null` and then the names, so the names are the *tail* of a body.
A known tail is recognised by its bytes. Then only the pod is decoded: the rows of the nodes are cached, and so is the
answer if the verdicts are the same. Every other body is decoded as a whole.

This equals decoding. Let a body be H + T, with T = `,"Nodes":null,"NodeNames":[...]}`. If `{` + T without its comma is
a JSON object, and H + `}` is a JSON object with a member `Pod`, then H ends behind its last member (an open string or a
surplus comma would make H + `}` unreadable). So the body is an object with the members of both, and the members of T
win, because they are last.
"""

from __future__ import annotations

import itertools
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise.bounded import Bounded
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.ledger.answers import Verdicts
from topowise_scheduler.serve.extender import wire
from topowise_scheduler.verdicts.engine import Engine, Outcome

_BEFORE: Final = b',"Nodes":null,"NodeNames":'
_AFTER: Final = b"}"
# Between two encoded names; if no name is escaped, these bytes occur nowhere else after the first name begins.
_BETWEEN: Final = b'","'
_HEAD: Final = b'{"Host":"'
_ANSWER: Final = b'{"Nodes":null,"NodeNames":%b,"FailedNodes":{%b},"FailedAndUnresolvableNodes":{%b},"Error":""}'

_MAX_LISTS: Final = 8
_MAX_BYTES: Final = 16 << 20
_MAX_ANSWER_BYTES: Final = 8 << 20
# Bytes of a string with its list entry, and of a row.
_NAME_BYTES: Final = 72
_ROW_BYTES: Final = 12
# Bytes of a score and its JSON member.
_SCORE_BYTES: Final = 36
_MOST_DIGITS: Final = 3

Rows = NDArray[np.int32]


class FilterResult(NamedTuple):
    """An ExtenderFilterResult, its NodeNames, and the bytes that both add to the names of the question."""

    body: bytes
    fitting: Names
    size: int = 0


class Names:
    """Names in a fixed order; `text` is their JSON, encoded on first use."""

    def __init__(self, engine: Engine, names: list[str], text: bytes | None = None, rows: Rows | None = None) -> None:
        self.names = names
        self._engine = engine
        self._text = text
        self._rows = engine.rows(names) if rows is None else rows
        self._known_at = engine.membership
        self._answers: Bounded[bytes, FilterResult] = Bounded(_MAX_ANSWER_BYTES, lambda _, answered: answered.size)
        self._scores: _Scores | None = None

    @property
    def size(self) -> int:
        """Approximate bytes, with all cached answers."""
        own = (_NAME_BYTES + _ROW_BYTES + _SCORE_BYTES) * len(self.names) + 3 * len(self._text or b"")
        return own + self._answers.bytes

    @property
    def rows(self) -> Rows:
        """The engine's rows of the nodes, -1 for an unknown node."""
        if self._known_at != self._engine.membership:
            self._rows, self._known_at = self._engine.rows(self.names), self._engine.membership
        return self._rows

    @property
    def text(self) -> bytes:
        """The names as JSON."""
        if self._text is None:
            self._text = wire.encode(self.names)
        return self._text

    def begin_in(self, body: bytes) -> int:
        """The offset at which the member with these names begins in a body; 0 if the body does not end with it."""
        at = len(body) - len(_AFTER) - len(self.text)
        if not body.startswith(self.text, at) or not body.endswith(_AFTER) or not body.endswith(_BEFORE, 0, at):
            return 0
        return at - len(_BEFORE)

    def answer(self, verdicts: Verdicts) -> FilterResult:
        """The answer to filter."""
        key = verdicts.outcomes.tobytes() + verdicts.refusals.tobytes()
        return self._answers.once(key, lambda: self._encode(verdicts))

    def scored(self, scores: NDArray[np.int64]) -> bytes:
        """The answer to prioritize: HostPriorityList."""
        text = self.text
        most = int(scores.max(initial=0))
        if b"\\" in text or not self.names or int(scores.min()) < 0 or most >= 10**_MOST_DIGITS:
            return wire.encode(list(map(wire.HostPriority, self.names, scores.tolist())))
        if self._scores is None:
            self._scores = _Scores(text)
        return self._scores.filled(scores)

    def _encode(self, verdicts: Verdicts) -> FilterResult:
        fitting = self._fitting(verdicts)
        body = _ANSWER % (
            fitting.text,
            b",".join(self._failed(verdicts, Outcome.UNSCHEDULABLE)),
            b",".join(self._failed(verdicts, Outcome.UNRESOLVABLE)),
        )
        # The key has two bytes for each name.
        size = 2 * len(self.names) + len(body) + (0 if fitting is self else fitting.size)
        return FilterResult(body, fitting, size)

    def _fitting(self, verdicts: Verdicts) -> Names:
        fits = verdicts.outcomes == Outcome.FITS
        if fits.all():
            return self
        return Names(self._engine, list(itertools.compress(self.names, fits.tolist())), rows=self.rows[fits])

    def _failed(self, verdicts: Verdicts, outcome: Outcome) -> list[bytes]:
        """The refused nodes of an outcome as members of a JSON object, each with its reason."""
        refused = verdicts.outcomes == outcome
        numbers = np.flatnonzero(np.bincount(verdicts.refusals[refused])).tolist()
        members = (self._members(refused & (verdicts.refusals == number), TEXTS[number]) for number in numbers)
        return list(itertools.chain.from_iterable(members))

    def _members(self, where: NDArray[np.bool_], reason: str) -> list[bytes]:
        """These nodes as members of a JSON object, each with this reason."""
        names = list(itertools.compress(self.names, where.tolist()))
        if not names:
            return []
        text, value = wire.encode(names), wire.encode(reason)
        if b"\\" in text:
            return [wire.encode(name) + b":" + value for name in names]
        return [b'"' + text[2:-2].replace(_BETWEEN, b'":' + value + b',"') + b'":' + value]


class _Scores:
    """HostPriorityList with blanks where the scores go: JSON takes blanks before a number."""

    def __init__(self, text: bytes) -> None:
        after = b'","Score":' + b" " * _MOST_DIGITS + b"}"
        between = after + b"," + _HEAD
        filled = b"[" + _HEAD + text[2:-2].replace(_BETWEEN, between) + after + b"]"
        self._bytes = np.frombuffer(filled, np.uint8)
        # Where names end in the text, and how far the inserted bytes move them.
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord('"'))[1::2]
        moved = np.arange(ends.size) * (len(between) - len(_BETWEEN))
        # Offsets of the last digits: the head replaces the bracket and the opening quote of the text.
        self._last = ends + moved + len(_HEAD) + len(after) - 3

    def filled(self, scores: NDArray[np.int64]) -> bytes:
        filled = self._bytes.copy()
        filled[self._last] = scores % 10 + ord("0")
        for place in range(1, _MOST_DIGITS):
            higher = np.flatnonzero(scores >= 10**place)
            filled[self._last[higher] - place] = scores[higher] // 10**place % 10 + ord("0")
        return filled.tobytes()


class NameLists:
    """The most recent lists of names, at most eight lists and 16 MiB with their answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lists: list[Names] = []

    def split(self, body: bytes) -> tuple[bytes, Names] | None:
        """An ExtenderArgs without its names, and the names; None for a body that must be decoded as a whole.

        If the part without names cannot be decoded, the body cannot be decoded.
        """
        for names in self._lists:
            if at := names.begin_in(body):
                self.keep(names)
                return body[:at] + _AFTER, names
        at = body.rfind(_BEFORE)
        if at < 0:
            return None
        text = body[at + len(_BEFORE) : -1]
        try:
            read = wire.decode_names(text)
        except wire.UNREADABLE:
            return None
        # In another notation, other members may follow the names.
        if wire.encode(read) != text or not body.endswith(_AFTER):
            return None
        names = Names(self._engine, read, text)
        self.keep(names)
        return body[:at] + _AFTER, names

    def new(self, names: list[str]) -> Names:
        """The names of a body that was decoded as a whole."""
        return Names(self._engine, names)

    def keep(self, names: Names) -> None:
        """Move these names to the front."""
        if not self._lists or self._lists[0] is not names:
            self._lists = [names, *[known for known in self._lists if known is not names]][:_MAX_LISTS]

    def trim(self) -> None:
        """Drop lists beyond the limit of bytes."""
        while self._lists and sum(names.size for names in self._lists) > _MAX_BYTES:
            self._lists.pop()
