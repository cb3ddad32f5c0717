"""Refusals of a kubelet whose device plug-in has ended, and of a kubelet that has just started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lab.parts import occupied
from lab.parts.living import had_no_device

_LINE = (
    'I1124 03:46:39 1 topology_hints.go:78] "Unable to generate topology hints: requested number of devices '
    'unavailable" resourceName="example.com/gpu" pod="default/{}" containerName="main" request=2 available={}'
)


@pytest.mark.parametrize(
    ("pod", "available", "expected"),
    [
        pytest.param("plugin-2", 0, True, id="no device is available"),
        pytest.param("plugin-2", 1, False, id="a device is available, so the plug-in is registered"),
        pytest.param("plugin-20", 0, False, id="the line is of another pod"),
    ],
)
def test_a_refusal_is_attributed_to_the_absent_plugin(pod: str, available: int, expected: bool) -> None:
    assert had_no_device(_LINE.format(pod, available), "plugin-2") is expected


_RUNNING: dict[str, Any] = {"status": {"phase": "Running"}}
_REFUSED: dict[str, Any] = {"status": {"phase": "Failed", "reason": "TopologyAffinityError"}}


class _Late(dict[str, Any]):
    """The pods of an API server that shows the refusal of a pod only when it is read again."""

    def __getitem__(self, name: str) -> Any:
        shown = super().__getitem__(name)
        self[name] = _REFUSED
        return shown


def test_a_refusal_that_is_shown_late_is_awaited() -> None:
    lab: Any = SimpleNamespace(pods=SimpleNamespace(objects=_Late(wide=_RUNNING)))
    assert occupied.until_refused(lab, ["wide"]) == ["wide"]


def test_a_pod_that_runs_on_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occupied, "_REFUSED_S", 0.1)
    lab: Any = SimpleNamespace(pods=SimpleNamespace(objects={"wide": _RUNNING, "other": _REFUSED}))
    assert occupied.until_refused(lab, ["wide", "other"]) == ["other"]
    assert occupied.until_refused(lab, []) == []
