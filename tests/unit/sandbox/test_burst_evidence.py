"""What the bursts take for an excuse of a kubelet that restarts, and what they do not."""

from __future__ import annotations

import pytest

from burst.evidence import Scene
from sandbox.hollow import Refusal
from topowise import pods
from topowise_scheduler.kubelet import Admission

_RESTART = 10.0
_SLOWEST = 0.55


def scene(decided: float, *reports: tuple[float, float]) -> Scene:
    pod = pods.decode(b'{"metadata":{"name":"web","namespace":"default"},"spec":{"containers":[]}}')
    history = [(_RESTART, "kubelet restarts"), (decided, "default/web decided")]
    return Scene(
        Refusal("metal", pod, Admission("uid", "Guaranteed", admitted=False), 12.0), history, 0.0, reports, _SLOWEST
    )


@pytest.mark.parametrize(
    ("decided", "reports", "overtaken"),
    [
        pytest.param(9.9, [(9.0, 9.1)], True, id="it-went-down-afterwards"),
        pytest.param(10.3, [(9.0, 9.1)], True, id="nobody-could-have-said-so"),
        pytest.param(10.3, [(9.9, 10.1)], True, id="the-last-look-was-before"),
        pytest.param(10.3, [(10.05, 10.1)], False, id="its-exporter-had-said-so"),
        pytest.param(10.7, [(9.0, 9.1)], False, id="its-exporter-should-have-said-so"),
    ],
)
def test_a_refusal_after_a_restart(decided: float, reports: list[tuple[float, float]], overtaken: bool) -> None:
    assert scene(decided, *reports).is_overtaken() is overtaken
