"""Kubelets of every version decide as recorded, and the records detect every mistake in the table of versions.

The tests include a sample of each version's decisions, picked by hack/pick-decisions; tests/e2e compares all.
Kubelets 1.37 and 1.38 were not run: their decisions come from the code of 1.36.2 with the later source changes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

import recordings
from recordings import Decision, Mistake
from topowise import feature_gates
from topowise_scheduler.kubelet import version_of
from topowise_scheduler.kubelet.behaviour import CHANGES, ROWS, stages

SAMPLE = Path(__file__).parent / "recorded" / "versions.jsonl.xz"
MINORS = [row.minor for row in ROWS]

# Versions in which a mistake is visible; the remaining versions lack the option or gate of the change.
REACHABLE = {
    "pod_level_pods_are_not_aligned": range(32, 39),
    "uncore_rounds_cores_up": range(32, 39),
    "spread_goes_core_by_core": range(31, 39),
    "topology_option_errors_are_lower_case": range(28, 35),
    # The remaining versions have the gate on, except in siblings-and-gates.jsonl.xz (test_recorded_restarts.py).
    "pod_level_pods_need_their_gate": range(28, 34),
    "pod_level_pods_are_never_aligned": (),
    # Only OpenShift, only starts (test_versions.py).
    "unknown_gates_are_ignored": (),
    # Only restarts differ (test_recorded_restarts.py).
    "memory_groups_are_compared": (),
    "unlisted_devices_panic": (),
    "strict_state_needs_all_cpus": (),
}
# Gates without effect on admission, and locks that no recorded scenario tries; verified in kube_features.go only.
READ_ONLY_GATES = re.compile(
    r"InPlacePod\w+|ResourceHealthStatus|DRAExtendedResource|KubeletPodResources\w+|PodsAPI|DisableCPUQuotaWith\w+"
)
READ_ONLY_LOCKS = {
    "CPUManager",
    "CPUManagerPolicyOptions",
    "TopologyManagerPolicyOptions",
    "MemoryManager",
    "SidecarContainers",
}


def _by_minor(path: Path) -> dict[int, list[Decision]]:
    decisions: dict[int, list[Decision]] = defaultdict(list)
    for decision in recordings.read(path):
        decisions[version_of(decision.version).minor].append(decision)
    return decisions


@pytest.fixture(scope="module")
def sample() -> dict[int, list[Decision]]:
    return _by_minor(SAMPLE)


@pytest.mark.parametrize("minor", MINORS)
def test_a_version_decides_as_recorded(sample: dict[int, list[Decision]], minor: int) -> None:
    assert len(sample[minor]) > 40
    assert [problem for decision in sample[minor] if (problem := recordings.difference(decision))] == []


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.nightly
def test_a_mistake_in_a_row_is_detected(sample: dict[int, list[Decision]], minor: int) -> None:
    planted = list(recordings.mistakes(minor))
    assert len(planted) >= len(CHANGES)
    # No recording has 1.36.2 with its option gates off; the recording of 1.37 does, and has the same code there.
    decisions = [*sample[minor], *(sample[37] if minor == 36 else ())]
    right = [decision for decision in decisions if not recordings.difference(decision, version_of(f"1.{minor}"))]
    to_notice = [mistake for mistake in planted if not _is_only_read(mistake, minor)]
    assert [
        mistake.what
        for mistake in to_notice
        if not any(recordings.difference(decision, mistake.version) for decision in right)
    ] == []


def _is_only_read(mistake: Mistake, minor: int) -> bool:
    name = mistake.what.split()[0]
    if mistake.what in ("PodLevelResourceManagers alpha", "PodLevelResourceManagers beta-off"):
        # The gate is off in both versions. AllAlpha and AllBeta, which distinguish the versions, were not recorded.
        return minor >= 36
    if name in READ_ONLY_GATES_AND_LOCKS:
        return READ_ONLY_GATES.fullmatch(name) is not None or _is_on_in_both(mistake, minor)
    return minor not in REACHABLE.get(name, range(28, 39))


def _is_on_in_both(mistake: Mistake, minor: int) -> bool:
    """Whether the mistake changes only the permission to disable a gate."""
    name = mistake.what.split()[0]
    lives = (dict(mistake.version.gates)[name], feature_gates.lives(minor)[name])
    return set(lives) <= {"beta", "stable", "locked"}


READ_ONLY_GATES_AND_LOCKS = {name for name in feature_gates.GATES if READ_ONLY_GATES.fullmatch(name)} | READ_ONLY_LOCKS


def test_options_of_1_37_and_1_38_equal_the_options_of_1_36() -> None:
    assert stages(36) == stages(37) == stages(38)
    ran, now = feature_gates.lives(36), feature_gates.lives(37)
    assert now == feature_gates.lives(38)
    # Stages differ in the source, but enabled gates are equal except for a gate without effect on admission.
    assert {name for name in now if now[name] != ran[name]} == {
        "PodLevelResourceManagers",
        "DRAExtendedResource",
        "PodsAPI",
    }
    assert [name for name in now if feature_gates.is_on(name, now, {}) != feature_gates.is_on(name, ran, {})] == [
        "PodsAPI"
    ]
