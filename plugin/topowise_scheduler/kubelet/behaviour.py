"""Differences between kubelet versions: a field per change, and the version that introduced it.

Every field is False for a kubelet before the change and True after it, so a version is a set of changes. The managers
read fields and never a version. `ROWS` alone maps versions to changes. A new minor is a row with its differences
(docs/development/kubelet-versions.md explains how to add and prove it).

1.28 to 1.36 are recorded: code of that patch release decided the scenarios in tests/unit/scheduler/kubelet/recorded.
1.37 and 1.38 are reconstructed: the changes were read, and applied to the code of 1.36.2.

The policy options of CPU and topology manager have a minor in which each becomes alpha, beta and stable. An alpha
option needs a gate that is off by default in every version, a beta option a gate that is on by default. A kubelet with
an unknown option does not start (cm/cpumanager/policy_options.go, cm/topologymanager/policy_options.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import msgspec

Stage = Literal["alpha", "beta", "stable", "draft"]
Proof = Literal["recorded", "reconstructed"]
# Read in the branches of OpenShift 4.15 to 4.23 and 5.0 to 5.2.
_IN_ALL: Final = {
    "strict_state_needs_all_cpus": "cpumanager/policy_static.go, validateState",
    "unknown_gates_are_ignored": "component-base/featuregate/feature_gate.go, SetFromMap",
}


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, gc=False, cache_hash=True):
    """The changes that a kubelet has. Equal behaviours decide equally."""

    sidecars_are_kept: bool = False
    """A sidecar keeps its CPUs, memory and devices. Before, later containers reused them, like an init container's."""

    cpu_refusals_tell_amounts: bool = False
    """ "not enough cpus available to satisfy request" includes the requested and available numbers (text only)."""

    unknown_resources_of_init_containers_are_dropped: bool = False
    """An extended resource that the node lacks refuses no pod. Before, an init container's did."""

    memory_groups_are_checked: bool = False
    """The memory manager refuses a hint that joins nodes with single-node allocations, or nodes of another group."""

    memory_groups_are_compared: bool = False
    """At its start the memory manager compares the sums of a group with its file. Before, the bytes of each NUMA node,
    which differ after a release in a group. Then the kubelet did not start."""

    strict_state_needs_all_cpus: bool = False
    """Only OpenShift: a start with strict-cpu-reservation compares the CPUs of `cpu_manager_state`, which lacks the
    reserved CPUs, with all CPUs. So the kubelet does not start a second time."""

    unknown_gates_are_ignored: bool = False
    """Only OpenShift: a feature gate that the kubelet does not know has no effect. Upstream does not start with it."""

    smt_refusal_counts_free_cores: bool = False
    """A full-pcpus-only refusal has the number of free CPUs even if it is 0 (text only)."""

    memory_policies_are_by_platform: bool = False
    """memoryManagerPolicy BestEffort exists, but not for Linux (text only)."""

    topology_option_errors_are_lower_case: bool = False
    """The refusal of a topology option without its gate starts with a lower-case letter (text only)."""

    pod_level_pods_are_not_aligned: bool = False
    """CPU and memory manager ignore a pod with pod-level resources. Before, they read its containers only."""

    pod_level_pods_need_their_gate: bool = False
    """Without the gate PodLevelResources, a pod with pod-level resources is refused after all other checks. Before,
    its pod-level resources were ignored."""

    pod_level_pods_are_never_aligned: bool = False
    """CPU and memory manager ignore such a pod without the gate PodLevelResources too. Before, they read its
    containers, although the pod was refused afterwards."""

    unlisted_devices_panic: bool = False
    """A container that is admitted again ends the kubelet if its plug-in no longer lists its device, and other devices
    of the resource have NUMA nodes. Before, such a device had no NUMA node."""

    uncore_rounds_cores_up: bool = False
    """An odd remainder of CPUs may come from one L3 cache, with half a core. Before, only whole cores counted."""

    device_hints_are_near_devices: bool = False
    """Device hints are masks over the NUMA nodes that have devices of the resource. Before, over all nodes."""

    distribution_prefers_one_socket: bool = False
    """With align-by-socket, distribute-cpus-across-numa prefers NUMA nodes of one socket."""

    hint_width_is_least: bool = False
    """distribute-cpus-across-numa takes at least as many NUMA nodes as the hint has."""

    remainder_counts_whole_groups: bool = False
    """distribute-cpus-across-numa takes a remainder from nodes with enough whole groups of free CPUs. Before, the
    number of free CPUs counted, and free CPUs in incomplete groups made the search endless."""

    combinations_are_copied: bool = False
    """A remembered combination of NUMA nodes stays unchanged. Before, a later combination could overwrite it."""

    spread_goes_core_by_core: bool = False
    """distribute-cpus-across-cores takes a CPU of each core in turn. Before, CPUs by ascending id."""


CHANGES: Final = Behaviour.__struct_fields__


class Row(NamedTuple):
    """The changes of one minor. `source` is the release whose code was run; `changes` maps fields to pull requests.

    `unread` names what merged changes affect whose code was not available. The minor is predicted without them.
    """

    minor: int
    proof: Proof
    source: str
    changes: Mapping[str, str] = {}
    unread: str = ""


class Distribution(NamedTuple):
    """A build with changes in addition to its minor's row; `options` are its additional policy options."""

    name: str
    minor: int
    source: str
    changes: Mapping[str, str] = {}
    options: Mapping[str, Stage] = {}


ROWS: Final = (
    Row(28, "recorded", "1.28.15"),
    Row(
        29,
        "recorded",
        "1.29.14",
        {
            "sidecars_are_kept": "kubernetes#119447, kubernetes#120715, kubernetes#120461",
            "cpu_refusals_tell_amounts": "text of 1.29.14 against 1.28.15",
        },
    ),
    Row(30, "recorded", "1.30.14"),
    Row(31, "recorded", "1.31.14", {"unknown_resources_of_init_containers_are_dropped": "kubernetes#124273"}),
    Row(
        32,
        "recorded",
        "1.32.13",
        {
            "memory_groups_are_checked": "kubernetes#123443",
            "memory_groups_are_compared": "kubernetes#127074",
            "smt_refusal_counts_free_cores": "kubernetes#127959",
            "memory_policies_are_by_platform": "kubernetes#128560",
        },
    ),
    Row(33, "recorded", "1.33.13", {"topology_option_errors_are_lower_case": "text of 1.33.13 against 1.32.13"}),
    Row(
        34,
        "recorded",
        "1.34.9",
        {
            "pod_level_pods_are_not_aligned": "kubernetes#132999, kubernetes#133279",
            "pod_level_pods_need_their_gate": "lifecycle/features_linux.go of 1.34.9 against 1.33.13",
            "unlisted_devices_panic": "kubernetes#133028",
            "uncore_rounds_cores_up": "kubernetes#131850",
        },
    ),
    Row(35, "recorded", "1.35.6"),
    Row(
        36,
        "recorded",
        "1.36.2",
        {
            "device_hints_are_near_devices": "kubernetes#138244",
            "pod_level_pods_are_never_aligned": "kubernetes#134768",
        },
    ),
    Row(
        37,
        "reconstructed",
        "1.36.2",
        {"distribution_prefers_one_socket": "kubernetes#139778"},
        # No release note says whether 1.37 or a later release has these two.
        "restarts with full-pcpus-only (kubernetes#129079) and with pod-level resources (kubernetes#141077)",
    ),
    Row(
        38,
        "reconstructed",
        "1.36.2",
        {
            "hint_width_is_least": "kubernetes#139456",
            "remainder_counts_whole_groups": "kubernetes#140730",
            "combinations_are_copied": "kubernetes#141238",
            "spread_goes_core_by_core": "kubernetes#140766",
        },
        "restarts in scope pod (kubernetes#141041, kubernetes#141070), CPUs of the containers of a pod with pod-level "
        "resources and distribute-cpus-across-numa (kubernetes#139456)",
    ),
)


LATER_OPENSHIFT: Final = Distribution("OpenShift", 0, "what all earlier releases have", _IN_ALL)
DISTRIBUTIONS: Final = (
    Distribution("OpenShift 4.15", 28, "1.28.15", _IN_ALL),
    Distribution("OpenShift 4.16", 29, "1.29.14", _IN_ALL),
    Distribution("OpenShift 4.17", 30, "1.30.14", _IN_ALL),
    Distribution("OpenShift 4.18", 31, "1.31.14", _IN_ALL, {"prefer-align-cpus-by-uncorecache": "alpha"}),
    Distribution("OpenShift 4.19", 32, "1.32.13", _IN_ALL),
    Distribution("OpenShift 4.20", 33, "1.33.13", {"uncore_rounds_cores_up": "kubernetes#131850", **_IN_ALL}),
    Distribution("OpenShift 4.21", 34, "1.34.9", _IN_ALL),
    Distribution("OpenShift 4.22", 35, "1.35.6", {"device_hints_are_near_devices": "kubernetes#138244", **_IN_ALL}),
    Distribution("OpenShift 4.23, 5", 36, "1.36.2, equal to 1.36.3 in cm and lifecycle", _IN_ALL),
)


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
