"""Work that takes long says how far it is; what is done at once says nothing."""

from __future__ import annotations

import pytest

from topowise.runtime.output import Progress


def test_a_line_a_second_after_the_first_two(capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    progress = Progress(lambda: now[0])
    for tenth in range(50):
        now[0] = 100 + tenth / 10
        progress(f"part {tenth} of 50")
    assert capsys.readouterr().err.splitlines() == [f"part {tenth} of 50 ..." for tenth in (20, 30, 40)]
