"""Fragments become sections of the change log, and a tag finds none left over."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
LOG = """# Changelog

## [Unreleased]

### Added
- Something of old,
  in two lines.

### Fixed
- A bug.

## [0.0.9] - 2026-01-01

### Added
- The first.
"""


def loaded() -> Any:
    path = REPOSITORY / "hack/changes"
    spec = importlib.util.spec_from_loader("changes", SourceFileLoader("changes", str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


changes = loaded()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text("About it.")
    (tmp_path / "two.added.md").write_text("Something new,\nin two lines.\n")
    (tmp_path / "one.added.md").write_text("The other.\n")
    (tmp_path / "x.removed.md").write_text("What was there.\n")
    return tmp_path


def test_fragments_come_first_under_their_headings(folder: Path) -> None:
    assert changes.merged(LOG, changes.fragments(folder)) == LOG.replace(
        "### Added\n- Something of old,",
        "### Added\n- The other.\n- Something new,\n  in two lines.\n- Something of old,",
        1,
    ).replace("### Fixed", "### Removed\n- What was there.\n\n### Fixed")


def test_nothing_to_say_changes_nothing(tmp_path: Path) -> None:
    assert changes.merged(LOG, changes.fragments(tmp_path)) == LOG


def test_a_release_takes_what_was_unreleased(folder: Path) -> None:
    changelog = changes.released(LOG, "0.1.0", "2026-12-01")
    assert changelog.startswith(
        "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-12-01\n\n### Added\n- Something of old,"
    )
    # And the next fragments begin anew above it.
    again = changes.merged(changelog, changes.fragments(folder))
    assert again.index("The other.") < again.index("## [0.1.0]") < again.index("Something of old")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("x.improved.md", "text", "KIND one of added, changed"),
        ("added.md", "text", "a fragment is NAME.KIND.md"),
        ("x.added.md", "", "the text of one bullet"),
        ("x.added.md", "- text", "without its dash"),
    ],
)
def test_a_fragment_that_cannot_be_is_one_line(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(changes.BadFragmentError, match=rf"^{re.escape(name)}: .*{why}"):
        changes.fragments(tmp_path)


def test_the_fragments_of_this_tree_are_readable_and_their_links_lead_somewhere() -> None:
    for path in changes.files(REPOSITORY / "changes"):
        assert changes.fragments(path.parent)
        for link in re.findall(r"\]\(([^)\s#]+)", path.read_text()):
            assert ":" in link or (REPOSITORY / link).exists(), (path.name, link)


def test_a_tag_with_fragments_left_is_refused_and_a_release_has_its_notes(tmp_path: Path) -> None:
    """The commands of the workflow, on a copy."""
    for name in (
        "hack/changes",
        "hack/release",
        "CHANGELOG.md",
        "charts/topowise/Chart.yaml",
        "proto/topowise/__init__.py",
    ):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, target)
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes/x.fixed.md").write_text("A [thing](docs/a.md#b) that is told [of](https://example.com/c).")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)

    version = re.findall(r'__version__ = "(.+)"', (tmp_path / "proto/topowise/__init__.py").read_text())[0]
    refused = run("hack/release", "version", f"v{version}")
    assert refused.returncode and "fragments" in refused.stderr
    assert "A [thing](docs/a.md#b)" not in (tmp_path / "CHANGELOG.md").read_text()
    assert run("hack/changes", "release", version).returncode == 0
    assert run("hack/release", "version", f"v{version}").returncode == 0
    assert run("hack/release", "notes", f"v{version}").returncode == 0
    assert "\n- A [thing](docs/a.md#b) that is told" in (tmp_path / "CHANGELOG.md").read_text()
    # A release of a forge is no file of the tree: there a path leads nowhere.
    page = f"https://github.com/topowise/topowise/blob/v{version}/docs/a.md#b"
    entry = f"\n- A [thing]({page}) that is told [of](https://example.com/c).\n"
    assert entry in (tmp_path / "dist/notes.md").read_text()
