"""docs/dependencies.md lists what the lock has, in its version."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
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


def test_what_we_name_ourselves_is_imported() -> None:
    """A package that nothing uses any more still has to be shipped, reviewed and kept up to date."""
    named = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    ours = {re.split(r"[^A-Za-z0-9-]", one)[0].lower() for one in named}
    roots = (REPOSITORY / folder for folder in ("proto", "exporter", "plugin"))
    imported = {
        name.partition(".")[0] for root in roots for file in root.rglob("*.py") for name in imports(file.read_text())
    }
    makers = packages_distributions()
    used = {maker.lower().replace("_", "-") for name in imported for maker in makers.get(name, ())}
    # uvicorn imports it, in the one of its modules that we derive from.
    assert ours == used & ours | {"httptools"}


def imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
