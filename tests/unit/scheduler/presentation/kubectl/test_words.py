"""`-f` reads the same sources as kubectl, `help` prints help, and what is gone names the other way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from topowise.errors import SourceError
from topowise_scheduler.presentation.kubectl import __main__ as program

from .conftest import Ask, Save


@pytest.fixture
def directory(tmp_path: Path, saved: Save) -> Iterator[Path]:
    """The saved cluster in two files."""
    items = json.loads(Path(saved()).read_text())["items"]
    folder = tmp_path / "saved"
    (folder / "below").mkdir(parents=True)
    (folder / "reports.yaml").write_text(json.dumps({"items": [item for item in items if "zones" in item]}))
    (folder / "others.json").write_text(json.dumps({"items": [item for item in items if "zones" not in item]}))
    (folder / "below" / "broken.json").write_text("{[")
    (folder / "notes.txt").write_text("{[")
    yield folder


def test_directories_are_read_and_urls_are_refused(directory: Path, ask: Ask, saved: Save) -> None:
    expected = ask("nodes", "-f", saved()).text
    assert ask("nodes", "-f", str(directory)).text == expected
    # Without pods no report is known to be outdated.
    assert "stale" in expected
    assert "stale" not in ask("nodes", "-f", str(directory / "reports.yaml")).text
    with pytest.raises(
        SourceError, match=r"https://host/a\.yaml: is a URL, expected a file; download it first, or pipe"
    ):
        ask("nodes", "-f", "https://host/a.yaml")
    with pytest.raises(
        SourceError, match=r"below: is a directory without any \.json or \.yaml or \.yml, expected some"
    ):
        (directory / "below" / "broken.json").unlink()
        ask("nodes", "-f", str(directory / "below"))


def test_nodes_are_picked_by_label_for_pods_too(ask: Ask, saved: Save) -> None:
    for command in ("explain", "fits"):
        words = (command, "late", "-n", "ml", "--nodes-file", saved(), "-l", "pool=metal", "-o", "name")
        assert set(ask(*words).text.split()) <= {"node/metal-a", "node/metal-b"}
        assert json.loads(ask(*words[:-1], "json").text)


def test_help_is_of_a_command_too(capfd: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            program.main(list(words))
        assert ended.value.code == 0
        return capfd.readouterr().out

    assert said() == said("help") == said("--help")
    assert said("help", "fits") == said("fits", "--help") != said()


@pytest.mark.parametrize(
    ("words", "other_way"),
    [
        ("nodes -w", "`watch -n 5 kubectl topowise nodes ...`"),
        ("explain web-0 --watch --interval 5", "`watch -n 5 kubectl topowise explain ...`"),
        ("nodes -o jsonpath={.items[*].node}", "(choose from table, wide, json, yaml, name)"),
        ("fits web-0 -o custom-columns=POD:.pod", "(choose from table, wide, json, yaml, name)"),
        ("plan web-0 -o markdown", "(choose from table, json, yaml, html)"),
        ("completion kubectl", "(choose from nodes, node, explain,"),
    ],
)
def test_what_is_gone_names_the_other_way(words: str, other_way: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(words.split())
    said = capfd.readouterr().err.replace("'", "")
    assert (ended.value.code, said.count("\n"), other_way in said) == (2, 1, True), said
