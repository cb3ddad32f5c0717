"""Feature gates that affect admission or a node's report: stage by minor version.

A kubelet does not start with an unknown gate, or with a locked gate set to another value. A gate that is not listed
here has no influence on topowise and is never checked: a kubelet has hundreds (pkg/features/kube_features.go,
k8s.io/component-base/featuregate).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple

Life = Literal["absent", "alpha", "beta-off", "beta", "stable", "locked", "deprecated", "gone"]

_UNKNOWN: Final = frozenset(("absent", "gone"))
_OFF: Final = frozenset(("absent", "alpha", "beta-off"))
_FOR_ALL: Final[Mapping[Life, str]] = {"alpha": "AllAlpha", "beta-off": "AllBeta", "beta": "AllBeta"}


class Gate(NamedTuple):
    """A gate: `lives` maps the first minor version of each stage to the stage. Alpha and beta-off are off by default,
    all other stages are on. "gone": the gate is unknown again, and its feature is always on."""

    source: str
    lives: Mapping[int, Life]


GATES: Final[Mapping[str, Gate]] = {
    "CPUManager": Gate("KEP-3570", {28: "locked", 33: "gone"}),
    "CPUManagerPolicyOptions": Gate("KEP-2625", {28: "beta", 33: "locked"}),
    "CPUManagerPolicyAlphaOptions": Gate("KEP-2625", {28: "alpha"}),
    "CPUManagerPolicyBetaOptions": Gate("KEP-2625", {28: "beta"}),
    "TopologyManager": Gate("KEP-693", {28: "locked", 29: "gone"}),
    "TopologyManagerPolicyOptions": Gate("KEP-3545", {28: "beta", 32: "stable", 36: "locked"}),
    "TopologyManagerPolicyAlphaOptions": Gate("KEP-3545", {28: "alpha"}),
    "TopologyManagerPolicyBetaOptions": Gate("KEP-3545", {28: "beta"}),
    "MemoryManager": Gate("KEP-1769", {28: "beta", 32: "locked", 36: "gone"}),
    "PodLevelResources": Gate("KEP-2837", {32: "alpha", 34: "beta"}),
    "PodLevelResourceManagers": Gate("KEP-5526, kubernetes#141209", {36: "alpha", 37: "beta-off"}),
    "InPlacePodVerticalScaling": Gate("KEP-1287", {28: "alpha", 33: "beta", 35: "locked"}),
    "InPlacePodVerticalScalingExclusiveCPUs": Gate("KEP-1287", {32: "alpha"}),
    "InPlacePodVerticalScalingExclusiveMemory": Gate("KEP-1287", {34: "alpha"}),
    "InPlacePodLevelResourcesVerticalScaling": Gate("KEP-5419", {35: "alpha", 36: "beta"}),
    "SidecarContainers": Gate("KEP-753", {28: "alpha", 29: "beta", 33: "locked"}),
    "ResourceHealthStatus": Gate("KEP-4680", {31: "alpha", 36: "beta"}),
    "DRAExtendedResource": Gate("KEP-5004, kubernetes#138488", {34: "alpha", 36: "beta", 37: "stable"}),
    "KubeletPodResourcesGet": Gate("KEP-3695", {28: "alpha", 34: "beta", 36: "locked"}),
    "KubeletPodResourcesDynamicResources": Gate("KEP-3695", {28: "alpha", 34: "beta", 36: "locked"}),
    "KubeletPodResourcesListUseActivePods": Gate("kubernetes#132028", {34: "deprecated"}),
    "PodsAPI": Gate("KEP-4188, kubernetes#140286", {36: "alpha", 37: "beta"}),
    "DisableCPUQuotaWithExclusiveCPUs": Gate("kubernetes#127525", {33: "beta", 36: "deprecated"}),
}


@lru_cache(maxsize=64)
def lives(minor: int) -> dict[str, Life]:
    """Returns the stage of every listed gate in a minor version."""
    stages: dict[str, Life] = dict.fromkeys(GATES, "absent")
    for name, gate in GATES.items():
        for since, life in gate.lives.items():
            if minor >= since:
                stages[name] = life
    return stages


def is_on(name: str, lives: Mapping[str, Life], overrides: Mapping[str, bool]) -> bool:
    """Whether a listed gate is on. Its own override takes precedence, then AllAlpha and AllBeta, then the default."""
    value = overrides.get(name)
    if value is not None:
        return value
    life = lives[name]
    return overrides.get(_FOR_ALL.get(life, ""), life not in _OFF)


def known(lives: Mapping[str, Life], overrides: Mapping[str, bool]) -> dict[str, bool]:
    """Returns the overrides without listed gates that the version does not have."""
    return {name: value for name, value in overrides.items() if lives.get(name) not in _UNKNOWN}


def problem(lives: Mapping[str, Life], overrides: Mapping[str, bool]) -> str:
    """Returns why a kubelet does not start with these gates, "" if it starts."""
    for name, value in overrides.items():
        life = lives.get(name)
        if life in _UNKNOWN:
            return f"unrecognized feature gate: {name}"
        if life == "locked" and not value:
            return f"cannot set feature gate {name} to false, feature is locked to true"
    return ""
