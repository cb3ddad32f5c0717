"""The policy options of CPU and topology manager, and the minors in which each becomes alpha, beta and stable.

An alpha option needs a gate that is off by default in every version, a beta option a gate that is on by default. A
kubelet with an unknown option does not start (cm/cpumanager/policy_options.go, cm/topologymanager/policy_options.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from topowise_scheduler.kubelet.behaviour import Stage

Manager = Literal["cpu", "topology"]


class Option(NamedTuple):
    """An option: `stages` by their first minor. A draft is in no release; `source` is its KEP."""

    manager: Manager
    name: str
    source: str
    stages: Mapping[int, Stage]


OPTIONS: Final = (
    Option("cpu", "full-pcpus-only", "KEP-2625", {28: "beta", 33: "stable"}),
    Option("cpu", "distribute-cpus-across-numa", "KEP-2902", {28: "alpha", 33: "beta"}),
    Option("cpu", "align-by-socket", "KEP-3327", {28: "alpha"}),
    Option("cpu", "distribute-cpus-across-cores", "KEP-4176", {31: "alpha"}),
    Option("cpu", "strict-cpu-reservation", "KEP-4540", {32: "alpha", 33: "beta", 35: "stable"}),
    Option("cpu", "prefer-align-cpus-by-uncorecache", "KEP-4800", {32: "alpha", 34: "beta", 36: "stable"}),
    Option("topology", "prefer-closest-numa-nodes", "KEP-3545", {28: "beta", 32: "stable"}),
    Option("topology", "max-allowable-numa-nodes", "KEP-4622", {31: "beta", 35: "stable"}),
    # Two names of the same option: the KEP renamed it, and added the values "none" and "least-allocated".
    Option("topology", "prefer-most-allocated-numa-node", "KEP-6007", {0: "draft"}),
    Option("topology", "numa-allocation-strategy", "KEP-6007", {0: "draft"}),
)

DRAFTS: Final = frozenset(option.name for option in OPTIONS if "draft" in option.stages.values())


@lru_cache(maxsize=64)
def stages(minor: int) -> dict[str, Stage]:
    """Returns the stage of every option that a minor has, drafts included."""
    by_name: dict[str, Stage] = {}
    for option in OPTIONS:
        for since, stage in option.stages.items():
            if minor >= since:
                by_name[option.name] = stage
    return by_name
