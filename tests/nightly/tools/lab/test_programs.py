"""The check before the start and the page name each external program that the lab calls, with its package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lab import starting

REPOSITORY = Path(__file__).resolve().parents[4]
HACK = REPOSITORY / "hack"
SOURCES = [*(HACK / "lab").glob("*.py"), *(HACK / "lab/parts").glob("*.py"), HACK / "sandbox/controlplane.py"]
PAGE = REPOSITORY / "docs/development/lab-binaries.md"
# Every Linux distribution has it.
_ALWAYS = {"cat"}
_CALLS = {"subprocess.run", "subprocess.Popen", "shutil.which", "_first_line"}


def called(path: Path) -> Iterator[str]:
    """Yields the literal names of programs that a source file runs or looks for."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in _CALLS or not node.args:
            continue
        argument = node.args[0]
        program = argument.elts[0] if isinstance(argument, ast.List) else argument
        if isinstance(program, ast.Constant) and isinstance(program.value, str):
            yield program.value


def test_the_check_before_the_start_names_every_program_that_the_lab_calls() -> None:
    named = {program for path in SOURCES for program in called(path)} - _ALWAYS
    assert {"openssl", "git"} <= named
    assert named <= set(starting.PACKAGES)


def test_the_page_has_the_programs_of_the_check() -> None:
    page = PAGE.read_text()
    assert dict(re.findall(r"^\| `([\w.-]+)` \| ([\w.-]+) \|", page, re.M)) == starting.PACKAGES
    (installed,) = re.findall(r"^\$ apt-get install (.*)$", page, re.M)
    assert set(installed.split()) == {*starting.PACKAGES.values(), "etcd-server"}
