"""The lists of markers that a kubelet gets."""

from __future__ import annotations

from typing import Any

from topowise_exporter.steering.device_plugin import DevicePlugin, device_list


async def test_a_kubelet_that_does_not_read_gets_the_last_list_alone() -> None:
    """So a kubelet that hangs costs no memory, however many requests come."""
    plugin = DevicePlugin(4, lambda: None, lambda: None, lambda containers: None)
    anything: Any = None
    lists = plugin.ListAndWatch(anything, anything)
    assert await anext(lists) == device_list(4, None)
    for label in (0, 1, None, 1):
        plugin.send(label)
    assert await anext(lists) == device_list(4, 1)
    assert plugin._stream is not None
    assert plugin._stream.empty()
