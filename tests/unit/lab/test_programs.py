"""The check before the start and the page name each external program that the lab calls, with its package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import programs
from lab.errors import LabError
from lab.native.cluster import NativeLab
from lab.qemu import Ports
from lab.running import NATIVE, Plan

REPOSITORY = Path(__file__).resolve().parents[3]
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
    assert {"qemu-img", "mkfs.ext4", "mmdebstrap", "ssh-keygen", "openssl", "git"} <= named
    assert named <= set(programs.EMULATED)


def test_a_lab_without_emulation_needs_no_base_of_the_guests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It once made the Debian image of the guests, with mmdebstrap and a key of ssh-keygen."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nonexistent")
    (tmp_path / "certs").mkdir()
    plan = Plan(1, 2, 3, 4, NATIVE, {"dual": Ports(5, 6, 7)})
    lab = NativeLab(tmp_path, plan)
    assert lab.guests["dual"].name == "dual"
    assert not (tmp_path / "cache").exists()


def test_the_page_has_the_programs_of_the_check() -> None:
    page = PAGE.read_text()
    rows = re.findall(r"^\| `([\w.-]+)` \| ([\w.-]+) \|( yes)? \|( yes)? \|", page, re.M)
    assert {program: package for program, package, is_emulated, _ in rows if is_emulated} == programs.EMULATED
    assert {program: package for program, package, _, is_native in rows if is_native} == programs.NATIVE
    emulated, native = re.findall(r"^\$ apt-get install (.*)$", page, re.M)
    assert set(emulated.split()) == {*programs.EMULATED.values(), "etcd-server"}
    assert set(native.split()) == {*programs.NATIVE.values(), "etcd-server"}


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LabError, match=r"qemu-img.*ssh-keygen.*apt-get install .*qemu-utils.*openssh-client"):
        programs.check(programs.EMULATED)
