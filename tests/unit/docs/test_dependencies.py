"""docs/dependencies.md lists what the lock has, in its version."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
_ROW = re.compile(r"^\| ([a-z0-9-]+) \| ([0-9][0-9.]*) \|", re.MULTILINE)


def test_every_locked_package_is_listed_in_its_version() -> None:
    lock = (REPOSITORY / "hack/requirements.txt").read_text()
    text = (REPOSITORY / "docs/dependencies.md").read_text()
    listed = dict(_ROW.findall(text))
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE):
        locked.setdefault(name, []).append(version)
    assert listed.keys() == locked.keys()
    for name, versions in locked.items():
        # Other versions of Python may have another one, which is told below the tables.
        assert listed[name] == versions[0]
        assert all(version in text for version in versions)


def test_what_we_name_ourselves_is_told_apart() -> None:
    named = re.search(
        r"^dependencies = \[(.*?)^\]", (REPOSITORY / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE
    )
    assert named is not None
    ours = {name.lower() for name in re.findall(r'"([A-Za-z0-9-]+)', named[1])}
    text = (REPOSITORY / "docs/dependencies.md").read_text()
    assert {name for name, _ in _ROW.findall(text.partition("## Brought")[0])} == ours
