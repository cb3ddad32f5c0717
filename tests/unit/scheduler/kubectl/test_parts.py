"""Ages, bars, columns."""

from __future__ import annotations

import pytest

from topowise import nrt
from topowise.text import Styled, rendered
from topowise_scheduler.kubectl import reasons, zones
from topowise_scheduler.kubectl.console import age, columns, human
from topowise_scheduler.kubectl.zones import Amount


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (200, "3m20s"), (660, "11m"), (10_800, "3h"), (11_100, "3h5m"),
     (100_000, "27h"), (172_800, "2d"), (200_000, "2d7h"), (864_000, "10d"), (70_000_000, "2y80d")],
)  # fmt: skip
def test_ages_are_formatted_as_in_kubectl(seconds: int, text: str) -> None:
    assert human(seconds) == text


def test_an_invalid_time_has_no_age() -> None:
    assert age("", 1.0) == "-"
    assert age("yesterday", 1.0) == "-"
    assert age("1970-01-01T00:00:10Z", 8.0) == "0s"


def cpus(*amounts: tuple[int, int]) -> list[dict[str, Amount]]:
    return [{"cpu": Amount(1000 * free, 1000 * of)} for free, of in amounts]


def test_no_more_is_free_than_can_be_allocated() -> None:
    """As the scheduler reads contradictory amounts of an exporter."""
    listed = tuple(
        nrt.Zone(f"node-{at}", nrt.ZONE_TYPE, resources=(nrt.Resource("cpu", "8", "8", "10"),)) for at in range(2)
    )
    amounts = [zone for _, zone in zones.zones_of(nrt.NodeResourceTopology(metadata=nrt.Metadata("a"), zones=listed))]
    assert zones.numbers(amounts, "cpu") == "8+8 of 16"


def test_bars_distinguish_full_and_empty() -> None:
    amounts = cpus((0, 100), (1, 100), (50, 100), (99, 100), (100, 100))
    assert zones.bars(amounts, "cpu", is_ascii=False) == "▁▂▅▇█"
    assert zones.bars(amounts, "cpu", is_ascii=True) == "_.=*#"
    assert zones.bars([{}, {"cpu": Amount(None, 1)}], "cpu", is_ascii=False) == "-?"


def test_free_amounts_are_rounded_down() -> None:
    gib = 1 << 30
    amounts = [{"memory": Amount(int(1.99 * gib), 16 * gib)}, {"memory": Amount(int(12.9 * gib), 16 * gib)}, {}]
    assert zones.numbers(amounts, "memory") == "1.9+12+- of 32Gi"
    assert zones.numbers(amounts, "memory", is_short=True) == "14 of 32Gi"
    assert zones.numbers(cpus(*[(2, 8)] * 6), "cpu") == "12 (one zone 2) of 48"


def test_a_last_column_is_wrapped_where_there_is_a_width() -> None:
    assert columns(["A", "WHY"], [["x", "one two three four five six"], ["y", ""]], width=30) == [
        "A   WHY",
        "x   one two three four five",
        "    six",
        "y",
    ]
    assert columns(["A", "WHY"], [["x", "one two three"]]) == ["A   WHY", "x   one two three"]


def test_colours_take_no_width() -> None:
    lines = columns(["A", "B"], [["x", "y"]], paint=lambda column, cell: Styled(cell, "1") if column == 0 else cell)
    assert rendered(lines) == "A   B\n\x1b[1mx\x1b[0m   y\n"


def test_a_cell_is_a_single_line_and_its_width_includes_escapes() -> None:
    lines = columns(["A", "B"], [["x\nFORGED", "y"], ["\u202ez", "w"]])
    assert lines == ["A             B", r"x\x0aFORGED   y", r"\u202ez       w"]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (
            "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: "
            "requested=5, available=4, which is unexpected; not even the empty node would do",
            "the kubelet cannot allocate: not enough cpus available to satisfy request: requested=5, available=4; "
            "not even the empty node would do",
        ),
        (
            "SMTAlignmentError: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
            "the kubelet allocates whole cores: asks for 3 CPUs, expected a multiple of 2",
        ),
        ("Insufficient cpu: asks for 12, 4 of 4 are free", "Insufficient cpu: asks for 12, 4 of 4 are free"),
    ],
)
def test_messages_of_the_kubelet_are_plain_in_tables(text: str, plain: str) -> None:
    assert reasons.cell(text) == plain
    assert reasons.cell(text, is_wide=True) == text


def test_a_long_cell_is_cut_and_names_the_format_with_all_of_it() -> None:
    text = "; ".join(f"container c{number} goes to NUMA node 0 (cpu 1)" for number in range(80))
    assert len(text) > 3400
    assert len(reasons.cell(text)) < 430
    assert reasons.cell(text).endswith(" ... (-o wide has all)")
    assert reasons.cell(text, is_wide=True) == text
