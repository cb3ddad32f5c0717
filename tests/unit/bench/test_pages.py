"""docs/benchmarks.md and its pictures are what the recorded run makes them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from bench import markdown, pages, results, tables
from bench.density import schedulers
from topowise_scheduler import strategies

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def recorded() -> results.Results:
    return results.read(REPOSITORY / pages.RECORDED)


@pytest.mark.parametrize("path", [pages.PAGE, pages.GROWTH, pages.DENSITY], ids=str)
def test_nothing_was_written_by_hand(path: Path, recorded: results.Results) -> None:
    again = "after a change of hack/bench, run: .venv/bin/python -m bench --from hack/bench/recorded.json --write-docs"
    assert (REPOSITORY / path).read_bytes() == pages.made_of(recorded)[path], again


def test_a_run_is_read_as_it_was_written(tmp_path: Path, recorded: results.Results) -> None:
    results.write(tmp_path / "run.json", recorded)
    assert results.read(tmp_path / "run.json") == recorded


def test_parts_can_be_measured_again(recorded: results.Results) -> None:
    engine = msgspec.structs.replace(recorded.parts["engine"], seconds=1.0)
    again = msgspec.structs.replace(recorded, day="2030-01-01", parts={"engine": engine})
    renewed = results.renewed(recorded, again)
    assert (renewed.day, list(renewed.parts)) == (recorded.day, list(recorded.parts))
    assert renewed.parts["engine"] == msgspec.structs.replace(engine, day="2030-01-01")
    assert renewed.parts["density"] == recorded.parts["density"]
    assert "| engine | 1 s |" in (line := pages.made_of(renewed)[pages.PAGE].decode())
    assert "| 2030-01-01 |" in line


def test_the_page_tells_every_miss(recorded: results.Results) -> None:
    page = pages.made_of(recorded)[pages.PAGE].decode()
    section = page.partition("## What misses its target")[2].partition("\n## ")[0]
    missed = [one.name for part in recorded.parts.values() for one in part.figures if one.is_missed]
    assert [name for name in missed if f"| {name} |" not in section] == []
    assert section.count("| missed |") == len(missed)


def test_what_the_page_leaves_out_is_printed(recorded: results.Results) -> None:
    """The page says that `bench --from` has everything."""
    printed = tables.whole(recorded)
    figures = [one for part in recorded.parts.values() for one in part.figures]
    assert [one.name for one in figures if f"{one.value:g} {one.unit}" not in printed or one.name not in printed] == []
    for row in recorded.parts["density"].density:
        title = f"{row.mix}, {row.policy}, {row.scope} scope, {row.zones} NUMA nodes a machine"
        _, _, section = printed.partition(title)
        assert f"\n{row.scheduler} " in section.partition("\n\n")[0]
    for kept in (*recorded.parts["density"].offered, *recorded.parts["density"].steady):
        how = "kept busy" if isinstance(kept, results.SteadyRow) else "offered the same pods"
        title = f"{kept.mix}, {kept.policy}, {kept.scope} scope, {kept.zones} NUMA nodes a machine, {how}"
        _, _, section = printed.partition(title)
        assert f"\n{kept.scheduler} " in section.partition("\n\n")[0]


def test_before_and_after_are_the_same_streams(recorded: results.Results) -> None:
    then = results.rows(pages.BEFORE)
    now = [row for row in recorded.parts["density"].density if row.scheduler == strategies.NAMES[0]]
    kinds = [[(row.mix, row.policy, row.scope, row.zones, row.bounds) for row in rows] for rows in (then, now)]
    assert kinds[0] == kinds[1]


def test_the_page_can_be_read_at_a_sitting(recorded: results.Results) -> None:
    page = pages.made_of(recorded)[pages.PAGE].decode()
    opened = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    assert len(opened.splitlines()) < 200
    assert len(re.findall(r"^!\[", opened, re.MULTILINE)) == 2


def test_a_strategy_is_ahead_where_it_does_better_in_all_streams_but_one(recorded: results.Results) -> None:
    kinds = markdown.clusters(recorded.parts["density"].density)
    assert set(schedulers.FGD) & {one.scheduler for listed in kinds for one in listed}
    lines = [line.strip("| ").split(" | ") for line in markdown.choice(kinds).splitlines()]
    shown = {line[0]: line[-1] for line in lines}
    default, *others = strategies.NAMES
    for name in others:
        ahead = 0
        for listed in kinds:
            found = {one.scheduler: one.found for one in listed}
            better = [a.zones < b.zones for a, b in zip(found[name], found[default], strict=True)]
            ahead += sum(better) >= len(better) - 1
        assert shown[name] == f"{ahead} of {len(kinds)}"


def test_the_machine_is_named(recorded: results.Results) -> None:
    page = pages.made_of(recorded)[pages.PAGE].decode()
    assert tables.machine(recorded.machine) in page.splitlines()[5]
    assert recorded.machine.cpus > 0
    assert recorded.machine.python.startswith("3.")


@pytest.mark.parametrize("path", [pages.GROWTH, pages.DENSITY], ids=str)
def test_pictures_are_for_light_and_dark(path: Path, recorded: results.Results) -> None:
    text = pages.made_of(recorded)[path].decode()
    root = ET.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    light, dark = re.findall(r"svg \{(.*?)\}", text, re.DOTALL)
    assert re.findall(r"--[\w-]+", light) == re.findall(r"--[\w-]+", dark)
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= set(re.findall(r"(--[\w-]+):", light))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for one in root.iter():
        assert float(one.get("x", 0)) <= width
        assert float(one.get("y", 0)) <= height
