"""The name spaces of a node of the lab, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from lab import controlplane, machine
from lab import node as nodes
from lab.api import LabError
from sandbox.processes import free_ports


@pytest.fixture
def node(tmp_path: Path) -> nodes.Node:
    """Returns a node whose folder is below /tmp, as the folder of a test is."""
    if os.geteuid():
        pytest.skip("name spaces need root")
    if not all(Path(path).is_dir() for path in nodes.MOUNT_POINTS):
        pytest.skip(f"{', '.join(nodes.MOUNT_POINTS)} do not exist; make lab ARGS='up dual' creates them")
    try:
        controlplane.binaries()
    except LabError as exc:
        pytest.skip(str(exc))
    node = nodes.Node("dual", tmp_path, *free_ports(1))
    node.prepare(machine.read("dual"))
    return node


def test_a_node_below_tmp_writes_to_its_folder_alone(node: nodes.Node, tmp_path: Path) -> None:
    """Its own /tmp once hid the folder, so the name spaces were never ready."""
    assert tmp_path.is_relative_to("/tmp")
    outside = tmp_path / "outside"
    with subprocess.Popen(nodes.first_process(node), start_new_session=True) as first:
        try:
            node.until_booted()
            assert node.run("touch $TMPDIR/a && ls $TMPDIR").split() == ["a"]
            assert node.attempt(f"touch {outside}").returncode
            assert node.run("ls /sys/devices/system/node").split().count("node1") == 1
        finally:
            os.killpg(first.pid, signal.SIGKILL)
    assert not outside.exists()
