"""A configured override wins over every source."""

from __future__ import annotations

from typing import Any

import pytest

from topowise.errors import ConfigError
from topowise.kubeletconfig import KubeletConfiguration
from topowise_exporter.kubelet.settings.sources import Overrides

READ = KubeletConfiguration(
    topologyManagerPolicy="restricted",
    systemReserved={"cpu": "1", "memory": "1Gi"},
    reservedSystemCPUs="0",
    featureGates={"A": True, "B": True},
)


@pytest.mark.parametrize(
    ("shown", "field", "expected"),
    [
        ({"topologyManagerPolicy": "best-effort"}, "topologyManagerPolicy", "best-effort"),
        ({"topologyManagerPolicy": "none"}, "topologyManagerPolicy", "none"),
        ({"topologyManagerPolicy": None}, "topologyManagerPolicy", "restricted"),
        ({"reservedSystemCPUs": ""}, "reservedSystemCPUs", ""),
        ({"systemReserved": {"cpu": "2"}}, "systemReserved", {"cpu": "2"}),
        ({"featureGates": {"B": False, "C": True}}, "featureGates", {"A": True, "B": False, "C": True}),
        ({"evictionHard": {}}, "evictionHard", {}),
        ({}, "maxPods", 110),
    ],
)
def test_an_override_replaces_a_read_field_as_a_flag_does(shown: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(Overrides(shown).over(READ), field) == expected


def test_an_empty_override_changes_nothing() -> None:
    assert not Overrides({})
    assert Overrides({}).over(READ) == READ


def test_only_an_override_of_the_policy_can_replace_a_source() -> None:
    assert Overrides({"topologyManagerPolicy": "none"}).stand_alone
    assert not Overrides({"maxPods": 5}).stand_alone


@pytest.mark.parametrize(
    ("shown", "named"),
    [
        ({"topologyManagerPolcy": "none"}, r"overrides\.topologyManagerPolcy: no such field.*topologyManagerPolicy"),
        ({"mergeDefaultEvictionSettings": True}, "no such field"),
        ({"topologyManagerPolicy": "odd"}, r"^\$\.kubelet\.overrides: topologyManagerPolicy 'odd'"),
        ({"maxPods": "x"}, r"^\$\.kubelet\.overrides: Expected `int`.*maxPods.*'x'"),
    ],
)
def test_a_mistake_is_found_at_the_start(shown: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Overrides(shown)
