"""docs/benchmarks.md is made from the recorded run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench import markdown, pages, results
from topowise_scheduler.verdicts import strategies

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def recorded() -> results.Results:
    return results.read(REPOSITORY / pages.RECORDED)


def test_the_page_is_generated(recorded: results.Results) -> None:
    command = "after a change of hack/bench: .venv/bin/python -m bench --from hack/bench/recorded.json --write-docs"
    assert (REPOSITORY / pages.PAGE).read_bytes() == pages.page(recorded), command


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
    assert "| engine | 1 s |" in (page := pages.page(renewed).decode())
    assert "| 2030-01-01 |" in page


def test_a_strategy_beats_the_default_if_it_is_better_on_all_seeds_but_one(recorded: results.Results) -> None:
    kinds = markdown.clusters(recorded.parts["density"].density)
    lines = [line.strip("| ").split(" | ") for line in markdown.choice(kinds).splitlines()]
    shown = {line[0]: line[-1] for line in lines}
    default, *alternatives = strategies.NAMES
    for name in alternatives:
        wins = 0
        for rows in kinds:
            filled = {row.scheduler: row.filled for row in rows}
            better = [a.zones < b.zones for a, b in zip(filled[name], filled[default], strict=True)]
            wins += sum(better) >= len(better) - 1
        assert shown[name] == f"{wins} of {len(kinds)}"
