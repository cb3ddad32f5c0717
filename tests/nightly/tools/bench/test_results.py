"""The recorded run is read as it was written, and compared by more than noise."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench import figures
from bench.figures import Figure

RECORDED = Path(__file__).resolve().parents[4] / "hack/bench/recorded.json"


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorded = figures.read(RECORDED)
    figures.write(tmp_path / "run.json", recorded)
    assert figures.read(tmp_path / "run.json") == recorded
    assert (tmp_path / "run.json").read_text() == RECORDED.read_text()


@pytest.mark.parametrize(
    ("unit", "before", "now", "expected"),
    [
        ("ms", 1.0, 1.2, ""),
        ("ms", 1.0, 1.4, "WORSE"),
        ("ms", 1.4, 1.0, "better"),
        ("pods/s", 100.0, 70.0, "WORSE"),
        ("MiB", 100.0, 110.0, "WORSE"),
    ],
)
def test_a_figure_is_worse_beyond_noise(unit: str, before: float, now: float, expected: str) -> None:
    assert figures.verdict(Figure("a", before, unit), Figure("a", now, unit)) == expected


def test_a_part_that_only_a_run_has_is_named() -> None:
    recorded = figures.read(RECORDED)
    engine = msgspec.structs.replace(recorded.parts["engine"], figures=recorded.parts["engine"].figures[1:])
    text = figures.comparison(recorded, msgspec.structs.replace(recorded, parts={"engine": engine}))
    assert "only in one of the runs: engine: 5,000 nodes: a new shape of pod" in text
