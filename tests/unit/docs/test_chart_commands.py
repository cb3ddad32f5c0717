"""Commands on the pages install the chart as described: with stock Helm, and without an existing namespace."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
CHART = REPOSITORY / "charts/topowise"
PAGES = [REPOSITORY / "README.md", CHART / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
NAMESPACE = "topowise-system"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command in a console block, in their order."""
    for block in re.findall(r"^ *```console\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^ *[$#] (.+)$", re.sub(r"\\\n\s*", " ", block), re.MULTILINE):
            yield shlex.split(line, comments=True) if line.startswith(("helm", "kubectl")) else []


def option(words: list[str], *names: str) -> str:
    """The value of an option, "" without it."""
    return next((words[at + 1] for at, word in enumerate(words[:-1]) if word in names), "")


@every_page
def test_charts_are_installed_into_a_namespace_that_is_there(page: Path) -> None:
    is_made = False
    for words in commands(page):
        is_made |= words[:4] == ["kubectl", "create", "namespace", NAMESPACE]
        if words[:2] == ["helm", "install"]:
            assert option(words, "--namespace") == NAMESPACE, words
            assert is_made or "--create-namespace" in words, words
        if words[:4] == ["kubectl", "label", "namespace", NAMESPACE]:
            # A namespace that an earlier line or Helm creates.
            assert is_made or page in (CHART / "README.md",), words
        if any(re.fullmatch(r"deploy(ment)?/topowise-scheduler|daemonset/topowise-exporter", word) for word in words):
            assert option(words, "-n", "--namespace") == NAMESPACE, words


@every_page
def test_values_are_files_and_names_of_the_chart(page: Path) -> None:
    for words in commands(page):
        if words[:1] != ["helm"]:
            continue
        file = option(words, "--values", "-f")
        assert not file or "NAME" in file or (REPOSITORY / file).exists(), words
        # It would leave out what a newer chart has more, and fail for the want of it.
        assert "--reuse-values" not in words
        for at, word in enumerate(words[:-1]):
            if word == "--set":
                assert not [word for word in words[at + 1].split(",") if not is_value(word.partition("=")[0])], words


def is_value(path: str) -> bool:
    """Of the chart; options of the daemons' configurations are looked at by its schema."""
    inside: Any = yaml.safe_load((CHART / "values.yaml").read_text())
    for part in path.split("."):
        if path.startswith(("exporter.config.", "scheduler.config.")) and part not in inside:
            return True
        if part not in inside:
            return False
        inside = inside[part]
    return True
