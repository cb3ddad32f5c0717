"""The workflows of .github run only commands that also run here, and only reviewed code.

No forge is asked. Checked without a forge: a make target that is gone, a variable without readers, an
action that its owner may change, an expression inside a command, more rights than a job needs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
FORGE = REPOSITORY / ".github"
WORKFLOWS = sorted((FORGE / "workflows").iterdir())
MAKEFILE = (REPOSITORY / "Makefile").read_text()

every_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def workflow(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text())
    assert isinstance(document, dict)
    # YAML 1.1 reads `on` as a boolean.
    return {("on" if key is True else key): value for key, value in document.items()}


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in workflow(path)["jobs"].values():
        yield from job["steps"]


def faults(command: str, targets: dict[str, str]) -> Iterator[str]:
    """What is wrong with a step's command; `targets` are the Makefile's, each with its recipe."""
    words = shlex.split(command)
    if "\n" in command.strip() or words[:1] != ["make"] or len(words) < 2:
        yield f"is not one call of make: {command}"
        return
    if "${{" in command:
        yield f"has an expression in it, which whoever names a branch could fill: {command}"
    if words[1] not in targets:
        yield f"there is no target {words[1]}"
        return
    for word in words[2:]:
        name = word.partition("=")[0]
        if f"$({name})" not in targets[words[1]]:
            yield f"{words[1]} does not read {name}"


def targets() -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+):.*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE))


@every_workflow
def test_each_command_is_a_make_target(path: Path) -> None:
    commands = [step["run"] for step in steps(path) if "run" in step]
    assert commands
    assert not [fault for command in commands for fault in faults(command, targets())]


@pytest.mark.parametrize(
    "command",
    ["make nothing", "pip install x", "make test\nrm -rf x", "make chart VERSION=1", "make chart PUSH=${{ x }}"],
)
def test_other_commands_are_noticed(command: str) -> None:
    assert list(faults(command, targets()))


@every_workflow
def test_actions_are_pinned_by_commit_and_say_their_version(path: Path) -> None:
    uses = re.findall(r"uses: *(.+)", path.read_text())
    assert uses
    assert not [use for use in uses if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use)]


def test_an_action_has_the_same_commit_everywhere() -> None:
    pinned: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for name, pin in re.findall(r"uses: *(\S+)@(.+)", path.read_text()):
            pinned.setdefault(name, set()).add(pin)
    assert not {name: pins for name, pins in pinned.items() if len(pins) > 1}


@every_workflow
def test_rights_are_given_to_jobs_that_need_them(path: Path) -> None:
    document = workflow(path)
    assert document["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in document["on"]
    for job in document["jobs"].values():
        assert job["timeout-minutes"] <= 60
        if "write" in job.get("permissions", {}).values():
            # A job that writes waits for the environment's reviewers.
            assert job["environment"]
            assert "pull_request" not in document["on"]


@every_workflow
def test_a_checkout_keeps_no_credentials(path: Path) -> None:
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@every_workflow
def test_what_is_read_of_other_steps_and_jobs_is_there(path: Path) -> None:
    text, document = path.read_text(), workflow(path)
    known = {step["id"] for step in steps(path) if "id" in step}
    assert set(re.findall(r"\bsteps\.(\w+)\.", text)) <= known
    needed = {name for job in document["jobs"].values() for name in job.get("needs", [])}
    assert needed <= document["jobs"].keys()


def made(command: str) -> set[str]:
    """Names of the targets that a script or a target makes, prerequisites included."""
    names: set[str] = set(re.findall(r"\bmake ([a-z0-9-]+)", command))
    prerequisites = dict(re.findall(r"^([a-z0-9-]+): ([a-z0-9 -]*)", MAKEFILE, re.MULTILINE))
    while more := {name for target in names for name in prerequisites.get(target, "").split()} - names:
        names |= more
    return names


def test_the_page_says_which_steps_of_workflows_run_in_ci() -> None:
    """What nothing on a developer's path runs may be broken for weeks, so each such step is named on a single page."""
    page = (REPOSITORY / "docs/development/releases.md").read_text().partition("## How a release is made")[2]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `make")
    ]
    in_ci = {name: row[-1] for row in rows for name in re.findall("`make ([a-z0-9 -]+)", row[0])[0].split()}
    commands = {shlex.split(step["run"])[1] for path in WORKFLOWS for step in steps(path) if "run" in step}
    assert commands <= in_ci.keys()
    script = made((REPOSITORY / ".ci/run").read_text())
    assert {name for name, cell in in_ci.items() if cell.startswith("yes")} == script & in_ci.keys()
    assert all(cell == "yes" or len(cell) > len("yes, ") for cell in in_ci.values())


def test_every_supported_python_is_tested() -> None:
    supported = (REPOSITORY / "docs/development/releases.md").read_text()
    first, last = re.findall(r"Python 3\.(\d+) to 3\.(\d+)", supported)[0]
    tested = workflow(FORGE / "workflows/test.yaml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert tested == [f"3.{minor}" for minor in range(int(first), int(last) + 1)]


@pytest.mark.parametrize("path", sorted((FORGE / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_issue_templates_are_whole(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.name == "config.yml":
        return
    assert {"name", "description", "body"} <= form.keys()
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in form["body"])
