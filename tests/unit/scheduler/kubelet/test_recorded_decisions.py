"""The model's decision and state equal the recorded kubelet code's, for each event of the scenarios beside the tests.

These are every tenth, and those that reveal mistakes of hack/mutants. All 2,500 scenarios are compared by night, where
the recording exists. The comparison omits random values only: the kubelet names a random resource among several missing
devices or scalars.
"""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from recordings import state_differences

EXCERPTS = Path(__file__).parent / "recorded"
RECORDED = Path(__file__).parents[5] / "shared" / "data" / "kubelet-admission.jsonl.gz"
CHUNKS = 10


@pytest.fixture(scope="module")
def recorded() -> list[bytes]:
    if not RECORDED.exists():
        pytest.skip("a sample of the recorded decisions is checked; the others are not beside this repository")
    with gzip.open(RECORDED) as lines:
        return lines.read().splitlines()


@pytest.mark.parametrize(("excerpt", "least"), [("every-tenth", 250), ("mistakes", 40)])
def test_every_decision_and_every_state_equals_the_recording(excerpt: str, least: int) -> None:
    lines = lzma.decompress((EXCERPTS / f"{excerpt}.jsonl.xz").read_bytes()).splitlines()
    assert len(lines) >= least
    assert next((problem for line in lines for problem in state_differences(line)), None) is None


@pytest.mark.nightly
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_recorded_decisions(recorded: list[bytes], chunk: int) -> None:
    wrong = [problem for line in recorded[chunk::CHUNKS] for problem in state_differences(line)]
    assert wrong == []
