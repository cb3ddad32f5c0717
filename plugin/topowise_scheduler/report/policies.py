"""Reads a node's policies and options from the ecosystem's attributes, without a published configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from topowise import attributes, digits
from topowise.errors import ParseError
from topowise_scheduler.kubelet.configuration import TopologySettings
from topowise_scheduler.kubelet.machine import is_memory

_CLOSEST = attributes.option_name("prefer-closest-numa-nodes")
_MOST_ALLOCATED = attributes.option_name("prefer-most-allocated-numa-node")
_STRATEGY = attributes.option_name("numa-allocation-strategy")
_MAX_NUMA_NODES = 1024
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


class Policies(NamedTuple):
    """`cpu` and `memory`: whether the kubelet's manager is on. If `is_known` is False, the object names a policy
    that no kubelet has, and `topology` has policy none, which refuses no pod."""

    topology: TopologySettings
    cpu: bool
    memory: bool
    is_known: bool = True


def policies_of(
    named: Mapping[str, str], legacy: Collection[str] | None, resources: Collection[str], problems: list[str]
) -> Policies:
    """Returns the policies by the attributes. By default, a manager is on if the zones list its resource."""
    is_known = True
    try:
        policy, scope = attributes.policy_and_scope(named, legacy)
    except ParseError as exc:
        problems.append(f"{exc}; the node's policy is unknown, only sums are checked")
        policy, scope, is_known = "none", "container", False
    topology = TopologySettings(
        policy,
        scope,
        prefer_closest=_option(named, _CLOSEST, problems),
        prefer_most_allocated=_option(named, _MOST_ALLOCATED, problems) or _is_most_allocated(named, problems),
        max_numa_nodes=_max_numa_nodes(named, problems),
    )
    # Amounts from /sys: the kubelet's manager is off.
    derived = attributes.read_names(named, attributes.DERIVED)
    has_memory = any(map(is_memory, resources))
    return Policies(
        topology,
        "cpu" in resources and "cpu" not in derived and _is_on(named, attributes.CPU_MANAGER_POLICY, problems),
        has_memory and "memory" not in derived and _is_on(named, attributes.MEMORY_MANAGER_POLICY, problems),
        is_known,
    )


def _is_on(named: Mapping[str, str], attribute: str, problems: list[str]) -> bool:
    match named.get(attribute, "").lower():
        case "" | "static":
            # An unknown policy counts as static: a prediction of an alignment that does not happen refuses too much,
            # not too little.
            return True
        case "none":
            return False
    problems.append(f"attribute {attribute}: {named[attribute]!r:.80}, expected none or static; static is used")
    return True


def _max_numa_nodes(named: Mapping[str, str], problems: list[str]) -> int:
    """Returns the number as scheduler-plugins reads it: above 1, at most 1,024; 0 if unreported."""
    text = named.get(attributes.TOPOLOGY_MANAGER_MAX_NUMA_NODES)
    if text is None:
        return 0
    number = digits.int64(text)
    if number is None or number <= 1:
        problems.append(
            f"attribute {attributes.TOPOLOGY_MANAGER_MAX_NUMA_NODES}: {text!r:.80}, expected a number above 1; "
            "the service's own limit is used"
        )
        return 0
    # The limit of scheduler-plugins.
    return min(number, _MAX_NUMA_NODES)


def _is_most_allocated(named: Mapping[str, str], problems: list[str]) -> bool:
    strategy = named.get(_STRATEGY, "none")
    if strategy not in ("none", "most-allocated"):
        problems.append(f"attribute {_STRATEGY}: {strategy!r:.80}, expected none or most-allocated; none is used")
    return strategy == "most-allocated"


def _option(named: Mapping[str, str], attribute: str, problems: list[str]) -> bool:
    text = named.get(attribute)
    if text is None:
        return False
    value = _BOOLEANS.get(text)
    if value is None:
        problems.append(f"attribute {attribute}: {text!r:.80}, expected true or false; false is used")
    return bool(value)
