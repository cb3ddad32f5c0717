"""A tenant creates and deletes its largest pods: memory does not grow. tests/e2e has two thousand such pods."""

from __future__ import annotations

from pathlib import Path

import hostile
from daemons import Start
from sandbox.apiserver import ApiServer


async def test_hostile_pods_leave_nothing_behind(server: ApiServer, start: Start, tmp_path: Path) -> None:
    before, after = await hostile.usage_around(server, start, tmp_path, 40)
    assert after.rss <= before.rss * 1.1
    assert after.files <= before.files + 4
