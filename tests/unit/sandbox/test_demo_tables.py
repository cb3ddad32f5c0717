"""The tables that the demo prints."""

from __future__ import annotations

from demo.__main__ import left
from scheduling import exact, kubelet


def test_the_table_of_nodes_has_a_line_for_each_node() -> None:
    header, *rows, end = left([exact(kubelet(), "1", name) for name in ("n1", "n2")]).split("\n")
    assert header.startswith("NODE ")
    assert [row.split()[0] for row in rows] == ["n1", "n2"]
    assert end == ""
