"""The exact output of every command, in a pipe and on terminals of 80 and 120 columns.

After an intended change: TOPOWISE_REGENERATE=1 .venv/bin/pytest and the path of this file.
Then look at what `git diff` shows of golden/.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"

# {cluster} and {manifests} are files; the number before the ending is the width; without a number it is a pipe.
CASES = {
    "nodes.txt": "nodes -f {cluster}",
    "nodes-80.txt": "nodes -f {cluster}",
    "nodes-120.txt": "nodes -f {cluster}",
    "nodes-sorted-120.txt": "nodes metal-a metal-b node/metal-c -f {cluster} --sort-by cpu --no-headers",
    "nodes-wide.txt": "nodes -f {cluster} -o wide",
    "nodes-name.txt": "nodes -f {cluster} -o name",
    "nodes.yaml": "nodes metal-a edge-1 -f {cluster} -o yaml",
    "node.json": "node metal-b -f {cluster} -o json",
    "node-80.txt": "node metal-a -f {cluster}",
    "node-120.txt": "node metal-c -f {cluster}",
    "node-pods-80.txt": "node metal-b -f {cluster} --pods",
    "node-counts-80.txt": "node edge-1 -f {cluster}",
    "node-wide.txt": "node metal-a -f {cluster} -o wide --pods",
    "node.svg": "node metal-a -f {cluster} -o svg",
    "explain.txt": "explain -f {manifests} --nodes-file {cluster}",
    "explain-80.txt": "explain -f {manifests} --nodes-file {cluster}",
    "explain-pod-120.txt": "explain late -n ml --nodes-file {cluster} --node metal-b --node metal-c",
    "explain-wide-120.txt": "explain trainer -n ml --nodes-file {cluster} -o wide",
    "explain-hints-80.txt": "explain trainer -n ml --nodes-file {cluster} --hints",
    "explain-hints.json": "explain trainer -n ml --nodes-file {cluster} --node metal-b --hints -o json",
    "explain.json": "explain router -n telco --nodes-file {cluster} --node edge-1 -o json",
    "explain-many-80.txt": "explain -f {manifests} --nodes-file {many}",
    "fits.txt": "fits -f {manifests} --nodes-file {cluster}",
    "fits-80.txt": "fits -f {manifests} --nodes-file {cluster}",
    "fits-many-80.txt": "fits -f {manifests} --nodes-file {many}",
    "fits.json": "fits -f {manifests} --nodes-file {cluster} -o json",
    "simulate.txt": "simulate -f {manifests} --nodes-file {cluster}",
    "simulate-80.txt": "simulate -f {manifests} --nodes-file {cluster}",
    "simulate-120.txt": "simulate -f {manifests} --nodes-file {cluster} --strategy LeastAllocated",
    "simulate-wide-120.txt": "simulate -f {manifests} --nodes-file {cluster} -o wide",
    "simulate.json": "simulate -f {manifests} --nodes-file {cluster} -o json",
    "doctor-80.txt": "doctor -f {cluster} --scheduler-config {scheduler}",
    "doctor-120.txt": "doctor -f {cluster}",
    "doctor.json": "doctor -f {cluster} -o json",
}


@pytest.mark.parametrize("file", CASES)
def test_a_command_prints_its_golden(
    file: str, ask: Callable[..., object], saved: Callable[..., str], saved_many: str
) -> None:
    files = {
        "cluster": saved(),
        "many": saved_many,
        "manifests": str(HERE / "manifests.yaml"),
        "scheduler": str(HERE / "kube-scheduler.yaml"),
    }
    words = [word.format(**files) for word in CASES[file].split()]
    width = Path(file).stem.rpartition("-")[2]
    answer = ask(*words, width=int(width) if width.isdigit() else None)
    text, status, notes = answer  # type: ignore[misc]
    if file.endswith(".txt"):
        text += "".join(f"stderr: {note}\n" for note in notes) + f"status: {status}\n"
    golden = GOLDEN / file
    if os.environ.get("TOPOWISE_REGENERATE"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", [name for name in CASES if name.endswith("-80.txt")])
def test_nothing_is_wider_than_the_terminal(file: str) -> None:
    lines = (GOLDEN / file).read_text(encoding="utf-8").splitlines()
    assert max(len(line) for line in lines if not line.startswith("stderr: ")) <= 80


def test_no_golden_is_left_over() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == set(CASES)
