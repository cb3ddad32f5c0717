"""The errors that topowise raises deliberately.

Exceptions of libraries are mapped to one of these where the library is called, and kept as `__cause__`. A message names
the thing, its value and the expected value; the caller adds the consequence.
"""

from __future__ import annotations

from topowise.text import escaped

# Messages quote foreign text, which may be of any length.
_MAX_TEXT = 1000


class TopowiseError(Exception):
    """Base of all deliberate errors; its text is a single line, safe for a log or stderr."""

    def __init__(self, text: str) -> None:
        # Escapes are longer than the characters that they replace.
        shown = escaped(text[: _MAX_TEXT + 1])
        super().__init__(shown if len(shown) <= _MAX_TEXT else shown[: _MAX_TEXT - 3] + "...")


class ConfigError(TopowiseError):
    """A configuration that cannot be used. `field` is a JSON path such as `$.scoring.weight`."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class SourceError(TopowiseError):
    """A local file, socket or service gave no usable answer. `source` is its path or address."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(f"{source}: {problem}")
        self.source = source


class ParseError(TopowiseError, ValueError):
    """A text without the expected form."""

    def __init__(self, what: str, text: str, expected: str) -> None:
        shown = text if len(text) <= 80 else text[:77] + "..."
        super().__init__(f"{what} {shown!r}: expected {expected}")
        self.text = text


class ApiError(TopowiseError):
    """The API server refused the request, or did not answer (status 0). `retry_after` is the server's Retry-After in
    seconds, None if it sent none."""

    def __init__(
        self, status: int, reason: str, message: str, *, request: str, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{request}: {status} {reason}: {message}" if status else f"{request}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.request = request
        self.retry_after = retry_after

    @property
    def is_general(self) -> bool:
        """Whether a request for another object would fail too: no answer, an error of the server, too many requests, or
        rejected credentials."""
        return not 400 <= self.status < 500 or self.status in (401, 429)
