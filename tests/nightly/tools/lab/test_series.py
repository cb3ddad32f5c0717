"""Series of pods, the configuration of kubelets, and the page that a run produces."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from lab import instruments, pages, results
from lab.cluster import is_decided
from lab.placing import ADMITTED, REFUSED, SENT, Tally
from lab.results import Part, Results


def test_the_programs_of_a_guest_are_python_of_its_image() -> None:
    for name, text in instruments.config_map()["data"].items():
        ast.parse(text, name, feature_version=(3, 11))


@pytest.mark.parametrize(
    "status, expected",
    [
        ({}, False),
        ({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}, False),
        ({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}, True),
        ({"phase": "Pending", "conditions": [{"type": "Initialized", "status": "False"}]}, True),
        ({"phase": "Failed"}, True),
    ],
)
def test_a_pod_is_decided_once_it_is_bound_or_refused(status: dict[str, object], expected: bool) -> None:
    assert is_decided({"status": status}) is expected


def test_a_refusal_after_fits_fails_a_series_and_a_miss_of_ids_does_not() -> None:
    tally = Tally()
    tally.counts.update({SENT: 2, ADMITTED: 2})
    tally.wrong("placed otherwise", "a: CPUs")
    assert tally.part("Series: x").passed
    tally.wrong(REFUSED, "b")
    part = tally.part("Series: x")
    assert not part.passed
    assert part.problems == ("placed otherwise: a: CPUs", "refused after fits: b")


def results_of(*parts: Part) -> Results:
    return Results("2030-01-02", "abc", "2 CPUs, TCG", {"kubelet": "v1.36.2"}, {"dual": "12 CPUs"}, parts, ("reboot",))


def _came_true(hits: int, misses: int) -> dict[str, results.Figure]:
    return {results.HITS: hits, results.MISSES: misses, results.HIT_RATE: results.hit_rate(hits, misses)}


def test_the_page_lists_figures_problems_and_parts_not_run() -> None:
    first, second = "2030-01-01, abb, sha256:1", "2030-01-02, abc, sha256:2"
    failed = Part("Series: restricted", False, {"pods": 3, **_came_true(2, 1)}, ("refused | after fits",), at=first)
    page = pages.page(
        results_of(
            Part("A part", True, {"pods": 20}, on="dual", kubelet="v1.36.2", at=first),
            msgspec.structs.replace(failed, on="dual", kubelet="v1.36.2"),
            Part("Series: restricted", True, {"pods": 4, **_came_true(5, 0)}, on="quad", kubelet="v1.35.6", at=second),
        )
    )
    for text in (
        "2030-01-02",
        "| 1 | 2030-01-02, abc, sha256:2 |\n| 2 | 2030-01-01, abb, sha256:1 |",
        "| A part | dual | v1.36.2 | 2 | passed | pods: 20 |",
        "| kubelet | v1.36.2, v1.35.6 |",
        "| series | guests | kubelet | run |  | pods | predictions that",
        "| restricted | dual | v1.36.2 | 2 | **failed** | 3 | 2 | 1 | 66.7 |\n"
        "| restricted | quad | v1.35.6 | 1 | passed | 4 | 5 | 0 | 100.0 |\n"
        "| all |  |  |  |  | 7 | 7 | 1 | 87.5 |",
        "refused \\| after fits",
        "- reboot: skipped",
    ):
        assert text in page


def test_parts_that_were_not_run_again_stay_in_the_result() -> None:
    elsewhere, older = Part("A", True, key="a", on="quad"), Part("A", True, key="a", on="dual", kubelet="v1.33.1")
    earlier = results_of(
        Part("A", False, key="a", on="dual"), elsewhere, older, Part("B", True, {"pods": 1}, key="b", on="dual")
    )
    again = Part("A", True, key="a", on="dual")
    later = Results("2030-01-02", "abd", "", {}, {"quad": "24 CPUs"}, (again,), ("b", "c"))
    whole = results.merged(earlier, later)
    assert whole.parts == (elsewhere, older, earlier.parts[-1], again)
    assert whole.not_run == ("c",)
    assert set(whole.machines) == {"dual", "quad"}


def test_the_page_is_what_the_recorded_run_makes() -> None:
    repository = Path(__file__).parents[4]
    recorded = results.read(repository / pages.RECORDED)
    assert (repository / pages.PAGE).read_text() == pages.page(recorded)
