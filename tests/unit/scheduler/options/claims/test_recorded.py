"""Our results are the recorded results of the real code, for a sample of generated cases ([recorded](recorded))."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from claim_cases import predicted, verdict
from selector_cases import predicted as selected
from topowise.pods import Spec
from topowise_scheduler.options.claims.allocator import Allocation, Unknown
from topowise_scheduler.options.claims.extended import ExtendedResources
from topowise_scheduler.options.claims.objects import decode_class
from topowise_scheduler.options.claims.selectors import Match, Selectors

RECORDED = Path(__file__).parent / "recorded"


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lzma.decompress((RECORDED / name).read_bytes()).splitlines()]


@pytest.mark.parametrize(("version", "least"), [("1.34", 60), ("1.35", 60), ("1.36", 120)])
def test_allocations(version: str, least: int) -> None:
    verdicts: Counter[str] = Counter()
    allocations = 0
    selectors = Selectors()
    for number, line in enumerate(_lines(f"allocations-{version}.jsonl.xz")):
        ours = predicted(line["case"], selectors)
        result = verdict(line["case"], line["answers"], ours)
        assert result != "different", f"case {number}: {ours}"
        verdicts[result.partition(":")[0]] += 1
        allocations += isinstance(ours, Allocation)
    assert verdicts["equal"] >= least
    assert verdicts["unknown"] == 0, "the sample has cases that were decided"
    assert allocations >= verdicts["equal"] // 2


def test_selectors() -> None:
    lines = _lines("selectors-1.36.jsonl.xz")
    names = {"yes": Match.YES, "no": Match.NO, "fails": Match.FAILS}
    unknown = 0
    for line, (match, reason) in zip(lines, selected(lines), strict=True):
        if match is Match.UNKNOWN:
            unknown += 1
        else:
            assert match is names[line["answer"]], f"{line['selector']}: {reason}"
    assert unknown < len(lines) // 10


def test_extended_resources() -> None:
    lines = _lines("extended-resources-1.36.jsonl.xz")
    for line in lines:
        item = line["case"]
        spec = msgspec.convert(item["pod"]["spec"], Spec)
        extended = ExtendedResources(decode_class(msgspec.json.encode(raw)) for raw in item["classes"])
        claim = extended.claim("team", spec, extended.requested_by(spec), item["allocatable"])
        assert not isinstance(claim, Unknown), "the sample has cases that were decided"
        requests = [] if claim is None else claim.spec.devices.requests or ()
        ours = [
            [request.name, request.exactly.deviceClassName, request.exactly.count]
            for request in requests
            if request.exactly is not None
        ]
        assert ours == line["requests"], item
    assert sum(bool(line["requests"]) for line in lines) > len(lines) // 2
