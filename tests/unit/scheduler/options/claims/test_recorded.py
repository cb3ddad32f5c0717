"""Our results are the recorded results of the real code, for a sample of generated cases ([recorded](recorded))."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

from claim_cases import Run, agrees
from selector_cases import predicted as selected
from topowise_scheduler.options.claims.selectors import Match, Selectors

RECORDED = Path(__file__).parent / "recorded"


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lzma.decompress((RECORDED / name).read_bytes()).splitlines()]


def test_allocations() -> None:
    """Given the devices that we chose, and in cases in which no devices suffice, the real allocator has our result."""
    kinds: Counter[str] = Counter()
    selectors = Selectors()
    for number, line in enumerate(_lines("allocations-1.36.jsonl.xz")):
        ours = Run(line["case"], selectors).allocate()
        assert agrees(ours, line["answer"]), f"case {number}: {ours}"
        kinds[type(ours).__name__] += 1
    assert kinds["Allocation"] >= 200
    assert kinds["NoFit"] >= 40


def test_selectors() -> None:
    lines = _lines("selectors-1.36.jsonl.xz")
    names = {"yes": Match.YES, "no": Match.NO, "fails": Match.FAILS}
    unknown = 0
    for line, (match, reason) in zip(lines, selected(lines), strict=True):
        if match is Match.UNKNOWN:
            unknown += 1
        else:
            assert match is names[line["answer"]], f"{line['selector']}: {reason}"
    assert unknown < len(lines) // 3
