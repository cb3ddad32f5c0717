"""Logging in klog's format, as text or JSON.

Operators read these lines beside those of the kubelet and kube-scheduler, so format and keys are equal: text as `I1121
01:16:03.123456   42 reflector.py:88] "Watch ended" resource="nodes"`, JSON with component-base's keys (`ts`, `v`,
`logger`, `caller`, `msg`) and `level`. A message is a constant; variable parts are key-values: `log.info("Published
topology", extra=kv(node=name, zones=8))`. Verbosity is klog's: 0 state changes, 2 passes, 4 objects.

Logs a problem once per change: recent texts are remembered, so that a problem that alternates between two texts is
not logged each time.

Example: a half-dead server resets one connection and refuses the next. A log of every change would have a line per try
for as long as the problem lasts.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO

import msgspec

from topowise.bounded import Bounded
from topowise.runtime import clock
from topowise.text import escaped, escaped_json

Format = Literal["text", "json"]

_SEVERITY = {logging.DEBUG: "I", logging.INFO: "I", logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}
_LEVEL: Final = {"I": "info", "W": "warning", "E": "error", "F": "fatal"}
# Python's levels below INFO stand for klog's -v: V(2) = 18, V(4) = 16, so that isEnabledFor() is the whole test.
V2 = logging.INFO - 2
V4 = logging.INFO - 4
_MAX_MESSAGES: Final = 1000
_MAX_KEY: Final = 200


def kv(**values: object) -> dict[str, Any]:
    """Returns key-values of a log line, for `extra=`."""
    return {"kv": values}


def _severity(level: int) -> str:
    return _SEVERITY.get(level - level % 10 if level > logging.INFO else logging.INFO, "E")


class TextFormatter(logging.Formatter):
    """klog's text format; strings are quoted, a traceback follows on its own lines."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        micros = int(record.created % 1 * 1_000_000)
        head = f"{_severity(record.levelno)}{stamp}.{micros:06d} {record.process:>7} {record.filename}:{record.lineno}]"
        pairs = "".join(f" {key}={_format_value(item)}" for key, item in getattr(record, "kv", {}).items())
        line = f"{head} {_json(record.getMessage())}{pairs}"
        # The indent keeps text of an exception from looking like a line of the log.
        return f"{line}\n  {_traceback(self, record)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """A JSON object per line, with the keys of k8s.io/component-base/logs/json."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": round(record.created * 1000, 3),
            "level": _LEVEL[_severity(record.levelno)],
            "logger": record.name,
            "caller": f"{record.filename}:{record.lineno}",
            "msg": record.getMessage(),
        }
        if record.levelno <= logging.INFO:
            line["v"] = logging.INFO - record.levelno
        if record.levelno >= logging.ERROR and record.exc_info:
            line["err"] = self.formatException(record.exc_info)
        for key, item in getattr(record, "kv", {}).items():
            line.setdefault(key, item)
        return _json(line)


class FewPerMinute(logging.Filter):
    """Limits warnings and errors per message and minute; the next line has the number of suppressed lines. A message is
    a constant, so there are about a hundred messages, each with its own limit. A source of a thousand different
    warnings of the same message gets its limit and not the whole log."""

    def __init__(self, most: int = 30, clock: Callable[[], float] = clock.monotonic) -> None:
        super().__init__()
        self._most = most
        self._clock = clock
        # Threads log too.
        self._lock = threading.RLock()
        self._counts: Bounded[tuple[str, str], tuple[int, int]] = Bounded(
            1 << 20, lambda *_: 2 * _MAX_KEY, _MAX_MESSAGES
        )

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.levelno < logging.WARNING:
            return True
        key, minute = (record.name, str(record.msg)[:_MAX_KEY]), int(self._clock() / 60)
        with self._lock:
            # Libraries have variable messages, so the counts are bounded too.
            began, count = self._counts.get(key) or (minute, 0)
            self._counts.put(key, (minute, count + 1 if began == minute else 1))
        if began != minute and count > self._most:
            record.kv = {**getattr(record, "kv", {}), "left_out_before": count - self._most}
        return began != minute or count < self._most


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    assert record.exc_info
    return escaped(formatter.formatException(record.exc_info).replace("\n", "\n  "), keep="\n")


def _json(item: Any) -> str:
    try:
        document = msgspec.json.encode(item, enc_hook=str).decode()
    except UnicodeEncodeError:
        # File names may contain lone surrogates.
        document = json.dumps(item, default=str)
    return escaped_json(document)


def _format_value(item: object) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    return str(item) if isinstance(item, int | float) else _json(str(item))


def set_up(verbosity: int = 0, form: Format = "text", stream: TextIO | None = None) -> None:
    """Makes the root logger write to `stream` (stderr by default); call it once, before anything logs."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    handler.addFilter(FewPerMinute())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO - min(verbosity, 9))
    # Libraries log events that we log ourselves, per connection and without context.
    for name in ("aiohttp", "asyncio", "uvicorn", "grpc", "kubernetes", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # uvicorn warns of every malformed request, which any client can send in any number.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


_AGAIN_S: Final = 300.0
_MOST: Final = 32
_MOST_BYTES: Final = 1 << 18


class OncePerChange:
    """Remembers when texts were logged. `clock` is monotonic; after `again` seconds a text is logged again."""

    def __init__(self, clock: Callable[[], float] = clock.monotonic, again: float = _AGAIN_S) -> None:
        self._clock = clock
        self._again = again
        # Whether the present text was logged, and whether any text of the present problem was.
        self._last, self._is_logged, self._is_open = "", False, False
        self._logged_at: Bounded[str, float] = Bounded(_MOST_BYTES, lambda text, _: len(text), _MOST)

    @property
    def last(self) -> str:
        """The present text, "" for none."""
        return self._last

    def is_change(self, text: str) -> bool:
        """Returns whether to log a text: it was not logged recently. Then it counts as logged."""
        if text == self._last and self._is_logged:
            return False
        self._last = text
        now = self._clock()
        logged_at = self._logged_at.get(text)
        self._is_logged = logged_at is None or now - logged_at >= self._again
        if self._is_logged:
            self._is_open = True
            self._logged_at.put(text, now)
        return self._is_logged

    def over(self) -> bool:
        """Notes that the problem is over, perhaps not for long. Returns whether to log its end: its begin, or a change
        since then, was logged. Logged texts are remembered."""
        is_open = self._is_open
        self._last, self._is_logged, self._is_open = "", False, False
        return is_open

    def clear(self) -> bool:
        """Notes that the problem is over. Returns whether there was a problem. Logged texts are forgotten."""
        was = bool(self._last)
        self._last, self._is_logged, self._is_open = "", False, False
        self._logged_at.clear()
        return was
