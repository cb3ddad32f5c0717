"""A comparison of two runs lists the figures that differ by more than noise, and only them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import against, pages, results
from bench.figures import Figure
from bench.results import Machine, PartResults, Results

MACHINE = Machine("cpu", 2, 4.0, "Linux", "3.11", "2.0", 0.1)


def run(*figures: Figure, machine: Machine = MACHINE) -> Results:
    return Results(machine, "2026-11-22", {"scheduler": PartResults(list(figures))})


@pytest.mark.parametrize(
    ("unit", "on_wall", "before", "now", "verdict"),
    [
        ("ms", False, 1.0, 1.25, ""),
        ("ms", False, 1.0, 1.35, "WORSE"),
        ("ms", False, 1.35, 1.0, "better"),
        ("ms", True, 1.0, 1.7, ""),
        ("ms", True, 1.0, 1.9, "WORSE"),
        ("ms", False, 0.001, 0.04, ""),
        ("MiB", False, 300, 320, ""),
        ("MiB", False, 300, 330, "WORSE"),
        ("events/s", False, 1000, 700, "WORSE"),
        ("events/s", False, 700, 1000, "better"),
        ("pods", False, 100, 99, ""),
        ("writes", False, 0, 1, "WORSE"),
        ("writes", False, 0, 0, ""),
    ],
)
def test_what_differs_beyond_noise(unit: str, on_wall: bool, before: float, now: float, verdict: str) -> None:
    old, new = (Figure("f", value, unit, on_wall=on_wall) for value in (before, now))
    assert against.verdict(old, new) == verdict


def test_the_table_has_a_row_for_each_difference_and_says_what_cannot_be_compared() -> None:
    before = run(Figure("filter", 1.0, "ms"), Figure("calm", 1.0, "ms"), Figure("gone", 1.0, "ms"))
    now = run(Figure("filter", 2.0, "ms"), Figure("calm", 1.1, "ms"), Figure("new", 1.0, "ms"))
    shown = against.table(before, now)
    assert "2 figures compared, 1 differ beyond noise" in shown
    assert "scheduler: gone" in shown
    assert "scheduler: new" in shown
    (row,) = [line for line in shown.splitlines() if "WORSE" in line]
    assert row.split() == ["scheduler", "filter", "1", "2", "ms", "2.00", "WORSE"]
    assert "NOT THE SAME MACHINE" not in shown


def test_a_run_does_not_differ_from_itself() -> None:
    recorded = results.read(Path(__file__).resolve().parents[3] / pages.RECORDED)
    shown = against.table(recorded, recorded)
    assert " 0 differ beyond noise" in shown
    compared = sum(len(against.figures(part)) for part in recorded.parts.values())
    assert f"{compared} figures compared" in shown
