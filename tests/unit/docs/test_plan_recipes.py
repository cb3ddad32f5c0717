"""The recipes of docs/how-to/plan.md print what the page shows, and its program runs."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import pytest

from topowise_scheduler.kubectl import arguments
from topowise_scheduler.kubectl.console import Console

_PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/plan.md"
_RECIPES = re.findall(r"```console\n\$ kubectl topowise ([^\n]*)\n(.*?)```", _PAGE.read_text(), re.S)


def test_there_are_five_questions() -> None:
    assert len(re.findall(r"^## .*\?$", _PAGE.read_text(), re.M)) == 5
    assert len(_RECIPES) == 6


@pytest.mark.parametrize(("command", "printed"), _RECIPES, ids=[command for command, _ in _RECIPES])
def test_a_recipe_prints_what_the_page_shows(command: str, printed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_PAGE.with_suffix(""))
    options = arguments.parser("0").parse_args(shlex.split(command))
    answer = importlib.import_module("topowise_scheduler.kubectl.plan").run(options, Console())
    text, _, not_modelled = answer.text.rpartition("\nNot modelled: ")
    assert not_modelled
    assert [line.rstrip() for line in text.rstrip().splitlines()] == printed.rstrip().splitlines()


def test_the_program_prints_what_the_page_says() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.S)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(program, {})
    lines = said.getvalue().splitlines()
    assert lines == ["today 0 of 1", "restricted 1 of 1"]
    assert all(f"`{line}`" in _PAGE.read_text() for line in lines)
    assert len(program.strip().splitlines()) - program.count("import") <= 10
