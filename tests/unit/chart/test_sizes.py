"""The chart's memory is what the recorded benchmark measured, with headroom; the tables of sizes are equal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from topowise import quantity

# Share of the measured memory that a limit leaves free: a burst of events, and growth until the next benchmark.
HEADROOM = 0.5
_MIB = 1 << 20
_CELLS = re.compile(r"^ *\| ([\d,]+) \| ([\d,]+) \| (\w+) \| (\w+) \|$", re.MULTILINE)
_WORDS = re.compile(r"or ([\d,]+) nodes and ([\d,]+) pods: requests[ #\n]+(\w+), limits (\w+)\.")

Row = tuple[str, str, str, str]


def sizes(chart: Path) -> list[Row]:
    """Nodes, pods, requests and limits, as the comment in the values has them."""
    return _WORDS.findall((chart / "values.yaml").read_text())


def mebibytes(text: str) -> float:
    return quantity.value(text) / _MIB


def measured(repository: Path, part: str) -> dict[str, float]:
    recorded = json.loads((repository / "hack/bench/recorded.json").read_text())
    return {figure["name"]: figure["value"] for figure in recorded["parts"][part]["figures"]}


def assert_headroom(resources: dict[str, Any], resident: float) -> None:
    assert mebibytes(resources["requests"]["memory"]) >= resident
    assert mebibytes(resources["limits"]["memory"]) >= (1 + HEADROOM) * resident


def test_each_size_has_headroom_above_the_recorded_memory(repository: Path, chart: Path) -> None:
    figures = measured(repository, "scheduler")
    assert len(sizes(chart)) >= 2
    for nodes, pods, requests, limits in sizes(chart):
        most = [value for name, value in figures.items() if re.match(f"{nodes} NRTs and {pods} pods: .*resident", name)]
        assert_headroom({"requests": {"memory": requests}, "limits": {"memory": limits}}, max(most))


def test_the_page_has_the_same_sizes(repository: Path, chart: Path) -> None:
    page = (repository / "docs/how-to/install.md").read_text()
    assert _CELLS.findall(page) == sizes(chart)


def test_the_default_is_the_first_size(repository: Path, chart: Path, values: dict[str, Any]) -> None:
    _, _, requests, limits = sizes(chart)[0]
    containers = [values["scheduler"]["resources"]]
    pod = yaml.safe_load((chart / "recipes/kubeadm/topowise-scheduler.yaml").read_text())["spec"]
    containers += [item["resources"] for item in pod["containers"] if "topowise" in item["image"]]
    assert len(containers) == 2
    for resources in containers:
        assert (resources["requests"]["memory"], resources["limits"]["memory"]) == (requests, limits)


def test_the_exporter_has_headroom(repository: Path, values: dict[str, Any]) -> None:
    assert_headroom(values["exporter"]["resources"], measured(repository, "exporter")["resident memory"])
