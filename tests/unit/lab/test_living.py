"""Refusals of a kubelet whose device plug-in has ended."""

from __future__ import annotations

import pytest

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
