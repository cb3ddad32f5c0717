"""The commands as they are typed: what they print, where, and with which status they end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import trees
from topowise_exporter.__main__ import main

FOLDER = "3c-distance-rows"


@pytest.fixture
def roots(tmp_path: Path) -> list[str]:
    """The options that lead to a machine of which something is missing."""
    trees.plant(FOLDER, tmp_path)
    return ["--sysfs-root", str(tmp_path / "sys"), "--procfs-root", str(tmp_path / "proc")]


def warnings(roots: list[str]) -> list[str]:
    root = str(Path(roots[1]).parent)
    return [f"warning: {root}{line}" for line in (trees.FOLDERS / FOLDER / "problems.txt").read_text().splitlines()]


def test_machine_prints_the_hardware_and_warns_of_what_is_missing(
    roots: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["machine", *roots]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads((trees.FOLDERS / FOLDER / "machine.json").read_text())
    assert said.err.splitlines() == warnings(roots)


def test_once_prints_the_node_without_allocations_where_no_kubelet_answers(
    roots: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    socket = tmp_path / "none" / "kubelet.sock"
    assert main(["once", *roots, "--node-name", "n1", "--podresources-socket", str(socket)]) == 0
    said = capsys.readouterr()
    printed = yaml.safe_load(said.out)
    assert (printed["kind"], printed["metadata"]["name"]) == ("NodeResourceTopology", "n1")
    assert [zone["name"] for zone in printed["zones"]] == ["node-0", "node-1", "node-2"]
    first, *problems = said.err.splitlines()
    assert str(socket) in first
    assert first.endswith("; printing the node without allocations")
    assert problems[:2] == warnings(roots)
    assert main(["once", *roots, "--node-name", "n1", "--podresources-socket", str(socket), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == printed


def test_a_reader_that_has_seen_enough_is_no_error(roots: list[str]) -> None:
    command = [sys.executable, "-m", "topowise_exporter", "machine", *roots]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        conditions = process.stderr.read()
    assert process.returncode == 0
    assert conditions.splitlines() == warnings(roots)


def test_a_configuration_is_checked_without_running_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("{apiVersion: topowise.io/v1alpha1, kind: ExporterConfiguration, client: {kubeconfig: /nosuch}}")
    assert main(["run", "--config", str(file), "--check"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{file}: valid\n"
    assert shown.err == f"warning: {file}: /nosuch: cannot be read on this machine - at `$.client.kubeconfig`\n"
    file.write_text("{apiVersion: topowise.io/v1alpha1, kind: ExporterConfiguration, nodename: x}")
    assert main(["run", "--config", str(file), "--check"]) == 1
    assert "did you mean nodeName?" in capsys.readouterr().err
