"""What the commands of both daemons write has no character that a reader cannot see."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from topowise import documents
from topowise.runtime import output
from topowise.text import Styled, escaped
from topowise_exporter import __main__ as exporter
from topowise_scheduler import __main__ as scheduler

HOSTILE = "h\x1b[2J\x9b\u202e\r\nE1121 forged\u2028\x7fh"
ARGUMENTS = {
    "run": [["--config", "{hostile}"], ["--config", "{config}", "--check"]],
    "serve": [["--config", "{hostile}"], ["--config", "{config}", "--check"]],
    "once": [
        ["--config", "{hostile}"],
        ["--sysfs-root", "{hostile}", "--podresources-socket", "{hostile}", *["-o", "json"]],
    ],
    "machine": [["--sysfs-root", "{hostile}", "--procfs-root", "{hostile}"]],
    "replay": [["{hostile}"], ["{scenarios}"]],
    "steer": [["--config", "{hostile}"], ["--config", "{config}"]],
    "token": [["--account", "{hostile}", "--directory", "{hostile}"]],
}
"""Arguments of each command; a command that is not here fails the test."""


def commands(parser: argparse.ArgumentParser) -> list[str]:
    (subcommands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return list(subcommands.choices)


@pytest.mark.parametrize("program", [exporter, scheduler], ids=["exporter", "scheduler"])
def test_no_command_of_a_daemon_writes_what_a_reader_cannot_see(
    program: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config, scenarios = tmp_path / "config.yaml", tmp_path / f"s{HOSTILE}.jsonl"
    config.write_text(yaml.safe_dump({"apiVersion": HOSTILE, HOSTILE: HOSTILE}))
    machine = {"numa": [{"id": 0, "memory": 1 << 30, "cores": [{"socket": 0, "threads": [0]}]}]}
    event = {"op": "remove", "uid": HOSTILE}
    scenario = {"id": HOSTILE, "machine": machine, "config": {"cpuManagerPolicy": HOSTILE}, "events": [event]}
    good = {**scenario, "config": {}}
    scenarios.write_text("".join(json.dumps(line) + "\n" for line in (scenario, good, {"id": HOSTILE}, HOSTILE)))
    names = {"hostile": str(tmp_path / HOSTILE), "config": str(config), "scenarios": str(scenarios)}
    for command in commands(program._parser()):
        for words in ARGUMENTS[command]:
            arguments = [command, *(word.format(**names) for word in words)]
            try:
                program.main(arguments)
            except SystemExit as exc:
                assert exc.code == 2
            out, err = capfd.readouterr()
            assert out + err, arguments
            assert out == escaped(out, keep="\n"), arguments
            assert err == escaped(err, keep="\n"), arguments
            assert not any(line.startswith("E1121") for line in (out + err).splitlines())
            if command == "replay" and words == ["{scenarios}"]:
                assert json.loads(out.splitlines()[0])["id"] == HOSTILE


def test_a_document_that_has_not_escaped_itself_is_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    output.write(f"a\t{HOSTILE}\n")
    output.write([f"b{HOSTILE}", [Styled("c\x1b", "1"), "d"]])
    output.note(f"e{HOSTILE}")
    out, err = capfd.readouterr()
    assert err == escaped(f"e{HOSTILE}") + "\n"
    assert out.startswith("a\t" + escaped(HOSTILE, keep="\n"))
    assert out.endswith(escaped(f"b{HOSTILE}") + "\n\x1b[1mc\\x1b\x1b[0md\n")


@pytest.mark.parametrize(("form", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_documents_keep_their_values_and_visible_letters(form: str, load: Callable[[str], Any]) -> None:
    value = {HOSTILE: [HOSTILE, {"größe": "機器"}]}
    text = documents.to_text(value, form)
    assert load(text) == value
    assert text == escaped(text, keep="\n")
    assert "größe: 機器" in documents.to_text({"größe": "機器"}, "yaml")
    assert '"größe": "機器"' in documents.to_text({"größe": "機器"}, "json")
