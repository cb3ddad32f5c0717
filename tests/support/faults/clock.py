"""Wrong wall clocks: libfaketime moves the wall clock of a process, and keeps its monotonic clock, as NTP does."""

from __future__ import annotations

from pathlib import Path

import pytest

_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime*MT.so.1"))


class Clock:
    """The wall clock of processes started in its `environment`. Skips the test where there is no libfaketime."""

    def __init__(self, file: Path) -> None:
        if not _LIBRARIES:
            pytest.skip("no libfaketime in /usr/lib/*/faketime (Debian: apt install faketime)")
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(_LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.jump("+0")

    def jump(self, to: str) -> None:
        """Moves it against the true time: "+1d"."""
        self._file.write_text(f"{to}\n")
