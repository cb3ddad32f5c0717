"""The node names of a call: nearly always the same bytes as in a call before, or as in our own last answer.

kube-scheduler writes ExtenderArgs as the pod, `"Nodes":null` and then the names, so these are the *tail* of a body. One
that was read before is recognised by its bytes: the pod alone is decoded, the rows of the nodes are known, and so is
the answer if the verdicts are the same. Everything else is decoded as a whole.

Why this is as good as decoding: let a body be H + T, with T = `,"Nodes":null,"NodeNames":[...]}`. If `{` + T without
its comma is an object of JSON, and H + `}` is one with a member `Pod`, then H ends behind its last member (a string
that is open there, or a comma too many, would leave H + `}` unreadable). So the body is one object with the members of
both, and those of T count, as they come last.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topowise_scheduler.answers import Verdicts
from topowise_scheduler.engine import Engine, Outcome
from topowise_scheduler.extender import wire

_BEFORE: Final = b',"Nodes":null,"NodeNames":'
_AFTER: Final = b"}"
# Between two encoded names. Where no name is escaped, it is nowhere else, from within the first name on.
_BETWEEN: Final = b'","'
_HEAD: Final = b'{"Host":"'
_ANSWER: Final = b'{"Nodes":null,"NodeNames":%b,"FailedNodes":%b,"FailedAndUnresolvableNodes":%b,"Error":""}'

_MAX_LISTS: Final = 8
_MAX_ANSWERS: Final = 32
_MAX_BYTES: Final = 16 << 20
# Of a string and of its place in a list, and of a row.
_NAME_BYTES: Final = 72
_ROW_BYTES: Final = 12
# A score and the words around it.
_SCORE_BYTES: Final = 36
_MOST_DIGITS: Final = 3

Rows = NDArray[np.int32]


class Answered(NamedTuple):
    """An ExtenderFilterResult, and the names that are left in it."""

    body: bytes
    kept: Names


class Names:
    """Names in their order, which nobody changes; `text` is their JSON, made when it is asked for."""

    def __init__(self, engine: Engine, names: list[str], text: bytes | None = None, rows: Rows | None = None) -> None:
        self.names = names
        self._engine = engine
        self._text = text
        self._rows = engine.rows(names) if rows is None else rows
        self._known_at = engine.membership
        self._answers: OrderedDict[bytes, Answered] = OrderedDict()
        self._scores: _Scores | None = None
        self.size = (_NAME_BYTES + _ROW_BYTES + _SCORE_BYTES) * len(names) + 3 * len(text or b"")
        """Bytes, about, with all answers that are kept."""

    @property
    def rows(self) -> Rows:
        """The engine's rows of the nodes, -1 for one that is not known."""
        if self._known_at != self._engine.membership:
            self._rows, self._known_at = self._engine.rows(self.names), self._engine.membership
        return self._rows

    @property
    def text(self) -> bytes:
        """The names as JSON."""
        if self._text is None:
            self._text = wire.encode(self.names)
            self.size += 3 * len(self._text)
        return self._text

    def begin_in(self, body: bytes) -> int:
        """Where these names, with the member they are of, begin at the end of a body; 0 if they do not."""
        at = len(body) - len(_AFTER) - len(self.text)
        if not body.startswith(self.text, at) or not body.endswith(_AFTER) or not body.endswith(_BEFORE, 0, at):
            return 0
        return at - len(_BEFORE)

    def answer(self, verdicts: Verdicts) -> Answered:
        """The answer to filter."""
        key = verdicts.outcomes.tobytes() + verdicts.words.tobytes()
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._made(verdicts)
            self.size += len(key) + len(found.body) + found.kept.size
            if len(self._answers) > _MAX_ANSWERS:
                self._forget_one()
        else:
            self._answers.move_to_end(key)
        return found

    def shortened(self, at: NDArray[np.intp]) -> Answered:
        """The answer to filter that leaves these nodes, and says nothing of the others."""
        kept = Names(self._engine, [self.names[index] for index in at.tolist()], rows=self.rows[at])
        return Answered(_ANSWER % (kept.text, b"{}", b"{}"), kept)

    def forget(self) -> None:
        """All answers are dropped."""
        while self._answers:
            self._forget_one()

    def _forget_one(self) -> None:
        key, found = self._answers.popitem(last=False)
        self.size -= len(key) + len(found.body) + found.kept.size

    def scored(self, scores: NDArray[np.int64]) -> bytes:
        """The answer to prioritize: HostPriorityList."""
        text = self.text
        most = int(scores.max(initial=0))
        if b"\\" in text or not self.names or int(scores.min()) < 0 or most >= 10**_MOST_DIGITS:
            return wire.encode(list(map(wire.HostPriority, self.names, scores.tolist())))
        if self._scores is None:
            self._scores = _Scores(text)
        return self._scores.filled(scores)

    def _made(self, verdicts: Verdicts) -> Answered:
        fitting = verdicts.outcomes == Outcome.FITS
        kept = self if fitting.all() else self._part(fitting)
        body = _ANSWER % (
            kept.text,
            self._failed(verdicts, Outcome.UNSCHEDULABLE),
            self._failed(verdicts, Outcome.UNRESOLVABLE),
        )
        return Answered(body, kept)

    def _part(self, where: NDArray[np.bool_]) -> Names:
        return Names(self._engine, list(compress(self.names, where.tolist())), rows=self.rows[where])

    def _failed(self, verdicts: Verdicts, outcome: Outcome) -> bytes:
        """The refused nodes of one outcome, each with the words for it."""
        mine = verdicts.outcomes == outcome
        members = []
        for word in np.flatnonzero(np.bincount(verdicts.words[mine])).tolist():
            names = list(compress(self.names, (mine & (verdicts.words == word)).tolist()))
            reason = wire.encode(verdicts.texts[word])
            text = wire.encode(names)
            if b"\\" in text:
                members += [wire.encode(name) + b":" + reason for name in names]
            else:
                members.append(b'"' + text[2:-2].replace(_BETWEEN, b'":' + reason + b',"') + b'":' + reason)
        return b"{" + b",".join(members) + b"}"


class _Scores:
    """HostPriorityList with blanks where the scores go: JSON takes blanks before a number."""

    def __init__(self, text: bytes) -> None:
        after = b'","Score":' + b" " * _MOST_DIGITS + b"}"
        between = after + b"," + _HEAD
        filled = b"[" + _HEAD + text[2:-2].replace(_BETWEEN, between) + after + b"]"
        self._bytes = np.frombuffer(filled, np.uint8)
        # Where names end in the text, and how far apart they have moved.
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord('"'))[1::2]
        moved = np.arange(ends.size) * (len(between) - len(_BETWEEN))
        # Of the last digit: behind the bracket and the opening quote of the text there is the head instead.
        self._last = ends + moved + len(_HEAD) + len(after) - 3

    def filled(self, scores: NDArray[np.int64]) -> bytes:
        found = self._bytes.copy()
        found[self._last] = scores % 10 + ord("0")
        for place in range(1, _MOST_DIGITS):
            higher = np.flatnonzero(scores >= 10**place)
            found[self._last[higher] - place] = scores[higher] // 10**place % 10 + ord("0")
        return found.tobytes()


class NameLists:
    """The names that were read or answered last, at most eight lists and 16 MiB with their answers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lists: list[Names] = []

    def split(self, body: bytes) -> tuple[bytes, Names] | None:
        """An ExtenderArgs without its names, and the names; None for a body that must be decoded as a whole.

        If what comes without names cannot be decoded, the body cannot either.
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
        # Written in another way they may come with something behind them.
        if wire.encode(read) != text or not body.endswith(_AFTER):
            return None
        names = Names(self._engine, read, text)
        self.keep(names)
        return body[:at] + _AFTER, names

    def new(self, names: list[str]) -> Names:
        """Names of a body that was decoded as a whole."""
        return Names(self._engine, names)

    def keep(self, names: Names) -> None:
        """These were read or answered just now."""
        if not self._lists or self._lists[0] is not names:
            self._lists = [names, *[one for one in self._lists if one is not names]][:_MAX_LISTS]

    def trim(self) -> None:
        """Forget what is too much."""
        while self._lists and sum(one.size for one in self._lists) > _MAX_BYTES:
            last = self._lists[-1]
            last.forget()
            if len(self._lists) > 1 or last.size > _MAX_BYTES:
                self._lists.pop()
