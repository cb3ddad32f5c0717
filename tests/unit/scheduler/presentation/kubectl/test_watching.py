"""`--watch` prints changed rows, `-f` reads the same sources as kubectl, `help` prints help."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from topowise.errors import SourceError
from topowise_scheduler.presentation.kubectl import __main__ as program
from topowise_scheduler.presentation.kubectl import arguments, nodes, watching
from topowise_scheduler.presentation.kubectl.console import Console

from .conftest import Ask, Save


class _EnoughError(Exception):
    pass


def watched(words: list[str], steps: list[Callable[[], object]], console: Console) -> None:
    """Runs a step between two reads; the watch ends after the last step."""
    options = arguments.parser("0").parse_args(words)
    left, now = iter(steps), [console.now]

    def pause(seconds: float) -> None:
        now[0] += seconds
        step = next(left, None)
        if step is None:
            raise _EnoughError
        step()

    with pytest.raises(_EnoughError):
        watching.watch(lambda: nodes.run(options, console._replace(now=now[0])), options, console, pause)


def test_a_pipe_gets_changed_rows(saved: Save, capfd: pytest.CaptureFixture[str]) -> None:
    file = Path(saved())
    items: list[dict[str, Any]] = json.loads(file.read_text())["items"]
    reports = [item for item in items if "zones" in item]
    steps: list[Callable[[], object]] = [
        lambda: None,
        lambda: saved(*reports[:1]),
        lambda: file.rename(file.with_suffix(".away")),
        lambda: None,
        lambda: file.with_suffix(".away").rename(file),
    ]
    watched(["nodes", "-f", str(file), "-w", "--interval", "60", "--no-headers"], steps, Console(now=1.78e9))
    out, err = capfd.readouterr()
    first, second, third = out.split("\n\n")
    assert [len(text.splitlines()) for text in (first, second, third)] == [4, 1, 1]
    # When the file is back, the row differs in its age only.
    assert second.split()[:-1] == third.split()[:-1]
    assert err == (
        "warning: metal-b: its report is not confirmed at present (pods-unreported) and has changed 30m ago; "
        "kubectl topowise doctor says more\n"
        f"error: {file}: cannot be read: No such file or directory; asked again in 60 s\n"
    )


def test_a_terminal_is_drawn_anew(saved: Save, capfd: pytest.CaptureFixture[str]) -> None:
    watched(["nodes", "-f", saved(), "-w"], [lambda: None] * 2, Console(width=200, now=1.78e9))
    assert capfd.readouterr().out.count("\x1b[H\x1b[2J") == 3


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
