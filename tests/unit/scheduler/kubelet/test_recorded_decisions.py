"""The model's decision and state equal the recorded kubelet code's, for each event of 250 scenarios beside the tests.

All 2,500 scenarios are compared where the recording exists. The comparison omits random values only: the kubelet names
a random resource among several missing devices or scalars.
"""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from recordings import state_differences

EXCERPT = Path(__file__).parent / "recorded" / "every-tenth.jsonl.xz"
RECORDED = Path(__file__).parents[5] / "shared" / "data" / "kubelet-admission.jsonl.gz"
CHUNKS = 10


@pytest.fixture(scope="module")
def recorded() -> list[bytes]:
    if not RECORDED.exists():
        pytest.skip("every tenth recorded decision is checked; the others are not beside this repository")
    with gzip.open(RECORDED) as lines:
        return lines.read().splitlines()


def test_every_decision_and_every_state_equals_the_recording() -> None:
    lines = lzma.decompress(EXCERPT.read_bytes()).splitlines()
    assert len(lines) == 250
    assert next((problem for line in lines for problem in state_differences(line)), None) is None


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_recorded_decisions(recorded: list[bytes], chunk: int) -> None:
    wrong = [problem for line in recorded[chunk::CHUNKS] for problem in state_differences(line)]
    assert wrong == []
