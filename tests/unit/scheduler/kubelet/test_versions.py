"""Version strings of nodes, and configurations with which a kubelet of each version starts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubelets import machine_of, pod_of
from topowise import kubeletconfig, pods
from topowise.feature_gates import GATES
from topowise_scheduler.kubelet import Kubelet, KubeletConfiguration, KubeletStartError, Machine, version_of
from topowise_scheduler.kubelet.behaviour import CHANGES, DISTRIBUTIONS, OPTIONS, ROWS, Behaviour
from topowise_scheduler.kubelet.configuration import Evidence, settle
from topowise_scheduler.kubelet.hints import NEVER_ENDS
from topowise_scheduler.kubelet.versions import NEWEST_RECORDED, behaviour_of


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("v1.33.5", "1.33"),
        ("1.33.5", "1.33"),
        ("v1.33", "1.33"),
        ("v1.33.5+k3s1", "1.33"),
        ("v1.32.6+rke2r1", "1.32"),
        ("v1.29.14-eks-3abbec1", "1.29"),
        ("v1.31.5-gke.1169000", "1.31"),
        ("v1.30.14-dirty", "1.30"),
        ("v1.36.2+7cf4c05", "1.36 (OpenShift 4.23, 5)"),
        ("v1.35.3+7cf4c05", "1.35 (OpenShift 4.22)"),
        ("v1.34.2+7cf4c05", "1.34 (OpenShift 4.21)"),
        ("v1.33.6+0d2b5f1", "1.33 (OpenShift 4.20)"),
        ("v1.32.9+7cf4c05", "1.32 (OpenShift 4.19)"),
        ("v1.31.11+ca3b2a9", "1.31 (OpenShift 4.18)"),
        ("v1.30.14+7cf4c05", "1.30 (OpenShift 4.17)"),
        ("v1.29.14+7cf4c05", "1.29 (OpenShift 4.16)"),
        ("v1.28.15+7cf4c05", "1.28 (OpenShift 4.15)"),
        (" v1.28.0\n", "1.28"),
    ],
)
def test_versions_of_nodes_are_parsed(text: str, name: str) -> None:
    version = version_of(text)
    assert (version.name, version.certainty, version.remark) == (name, "recorded", "")


@pytest.mark.parametrize("minor", [37, 38])
def test_a_reconstructed_version_has_a_remark(minor: int) -> None:
    version = version_of(f"v1.{minor}.1")
    assert version.certainty == "reconstructed"
    beginning = f"kubelet 1.{minor} was not run: its changes were read, and applied to the code of 1.36.2. "
    assert version.remark.startswith(f"{beginning}Merged changes whose code was not available affect ")
    assert "restarts with full-pcpus-only (kubernetes#129079)" in version.remark
    later = [number in version.remark for number in ("#141041", "#141070", "#139456")]
    assert later == [minor == 38] * 3
    assert all(version.remark.partition(" affect ")[2].split(", "))


@pytest.mark.parametrize(
    ("text", "minor", "remark"),
    [
        ("v1.39.0", 38, "kubelet 1.39 is newer than the proven versions (1.28 to 1.36); predicted as 1.38"),
        ("v1.100.3", 38, "kubelet 1.100 is newer than the proven versions (1.28 to 1.36); predicted as 1.38"),
        ("v2.0.0", 38, "kubelet 2.0 is newer than the proven versions (1.28 to 1.36); predicted as 1.38"),
        ("v1.27.16", 28, "kubelet 1.27 is older than the proven versions (1.28 to 1.36); predicted as 1.28"),
        ("v1.37.0-alpha.1", 37, "kubelet 1.37 is a pre-release (alpha.1); predicted as 1.37"),
        ("v1.36.0-rc.0+abc", 36, "kubelet 1.36 is a pre-release (rc.0+abc); predicted as 1.36"),
    ],
)
def test_an_unproven_version_counts_as_the_nearest_with_a_remark(text: str, minor: int, remark: str) -> None:
    version = version_of(text)
    assert (version.minor, version.certainty, version.remark) == (minor, "assumed", remark)
    assert version.behaviour == behaviour_of(minor)


def test_a_later_openshift_has_what_all_its_releases_have() -> None:
    version = version_of("v1.37.2+7cf4c05")
    assert (version.name, version.certainty) == ("1.37 (OpenShift)", "assumed")
    assert version.remark == "kubelet 1.37 (7cf4c05) is OpenShift's, whose own changes are unknown; predicted as 1.37"
    common = {"strict_state_needs_all_cpus": True, "unknown_gates_are_ignored": True}
    assert version.behaviour == msgspec.structs.replace(behaviour_of(37), **common)


@pytest.mark.parametrize(
    "text",
    [
        "", "v", "1", "newest", "v1.x.3", "v1.33.", "v1..3", "v1.33.5 (go1.24)", "v0.0.0-master+$Format:%H$", "v0.0.0",
        "v1.99999.0", "-1.33", "v1.33.5\x00", "v1.٣٣.0", "1.33.5+" + "7" * 300,
    ],
)  # fmt: skip
def test_an_invalid_version_counts_as_the_newest_recorded_version(text: str) -> None:
    version = version_of(text)
    assert (version.minor, version.certainty) == (36, "assumed")
    assert version.behaviour == NEWEST_RECORDED.behaviour
    assert "is not a release, expected a version such as v1.33.5; predicted as 1.36" in version.remark
    assert len(version.remark) < 200


def test_a_newer_kubelet_has_all_changes_of_older_kubelets() -> None:
    assert behaviour_of(27) == Behaviour()
    named = [name for row in ROWS for name in row.changes]
    assert behaviour_of(38) == Behaviour(**dict.fromkeys(named, True))
    # A distribution's own behaviours are changes that no release has.
    assert sorted([*named, "strict_state_needs_all_cpus", "unknown_gates_are_ignored"]) == sorted(CHANGES)
    assert [row.minor for row in ROWS] == list(range(28, 39))


def test_every_entry_of_the_tables_has_its_source() -> None:
    changes = [change for row in (*ROWS, *DISTRIBUTIONS) for change in row.changes.values()]
    assert all(changes)
    assert all(row.source for row in (*ROWS, *DISTRIBUTIONS))
    assert all(option.source.startswith("KEP-") for option in OPTIONS)
    assert all(gate.source.startswith(("KEP-", "kubernetes#")) for gate in GATES.values())
    assert all(list(gate.lives) == sorted(gate.lives) for gate in GATES.values())


def test_openshift_has_its_own_changes() -> None:
    hints, rounding = "device_hints_are_near_devices", "uncore_rounds_cores_up"
    assert [getattr(version_of(text).behaviour, hints) for text in ("v1.35.3", "v1.35.3+7cf4c05")] == [False, True]
    assert [getattr(version_of(text).behaviour, rounding) for text in ("v1.33.3", "v1.33.3+7cf4c05")] == [False, True]
    options = [dict(version_of(text).options) for text in ("v1.31.3", "v1.31.3+7cf4c05")]
    assert [stages.get("prefer-align-cpus-by-uncorecache") for stages in options] == [None, "alpha"]


@pytest.mark.parametrize("minor", range(28, 37))
def test_every_openshift_compares_all_cpus_and_ignores_unknown_gates(minor: int) -> None:
    """Read in the branches of 4.15 to 4.23 and of 5.0 to 5.2."""
    upstream, openshift = version_of(f"v1.{minor}.0"), version_of(f"v1.{minor}.0+7cf4c05")
    assert (upstream.behaviour.strict_state_needs_all_cpus, openshift.behaviour.strict_state_needs_all_cpus) == (
        False,
        True,
    )
    gates = {name: True for name, life in openshift.gates if life in ("absent", "gone")}
    assert gates
    refused = "failed to set feature gates from initial flags-based config: unrecognized feature gate: "
    assert _starts(machine_of(4), f"v1.{minor}.0", "none", featureGates=gates).startswith(refused)
    assert _starts(machine_of(4), f"v1.{minor}.0+7cf4c05", "none", featureGates=gates) == ""


@pytest.mark.parametrize("evidence", ["none", "options", "runs"])
def test_an_ignored_gate_has_no_effect(evidence: Evidence) -> None:
    """The memory manager has no gate any more, and pod-level resources have none yet."""
    fields: dict[str, Any] = {
        "memoryManagerPolicy": "Static",
        "systemReserved": {"memory": "1Gi"},
        "reservedMemory": (kubeletconfig.MemoryReservation(0, {"memory": "1Gi"}),),
        "featureGates": {"MemoryManager": False},
    }
    settings = settle(KubeletConfiguration(**fields), machine_of(4), version_of("v1.36.2+7cf4c05"), evidence)
    assert settings.reserved_memory is not None
    gates = KubeletConfiguration(featureGates={"PodLevelResources": True})
    assert not settle(gates, machine_of(4), version_of("v1.31.2+7cf4c05"), evidence).pod_level_resources


def test_a_locked_gate_cannot_be_disabled_in_openshift() -> None:
    gates = {"SidecarContainers": False}
    assert "feature is locked to true" in _starts(machine_of(4), "v1.33.0+7cf4c05", "none", featureGates=gates)


STATIC: dict[str, Any] = {"cpuManagerPolicy": "static", "systemReserved": {"cpu": "1", "memory": "1Gi"}}
TOPOLOGY: dict[str, Any] = {"topologyManagerPolicy": "best-effort"}


def _starts(machine: Machine, version: str, evidence: Evidence, **fields: Any) -> str:
    """The start error, or "" if the kubelet starts."""
    try:
        settle(KubeletConfiguration(**fields), machine, version_of(version), evidence)
    except KubeletStartError as exc:
        return str(exc)
    return ""


def _cpu_options(**options: str) -> dict[str, Any]:
    return STATIC | {"cpuManagerPolicyOptions": {name.replace("_", "-"): value for name, value in options.items()}}


ALPHA_OFF = 'new static policy error: CPU Manager Policy Alpha-level Options not enabled, but option "{}" provided'


@pytest.mark.parametrize("minor", [row.minor for row in ROWS])
def test_an_alpha_option_needs_its_gate_in_every_version(minor: int) -> None:
    fields = _cpu_options(align_by_socket="true")
    refused = ALPHA_OFF.format("align-by-socket")
    machine, version = machine_of(4, 4), f"v1.{minor}.0"
    assert _starts(machine, version, "none", **fields) == refused
    # A scenario has no gates, and a running kubelet has the gate on.
    assert _starts(machine, version, "options", **fields) == _starts(machine, version, "runs", **fields) == ""
    for on in ("CPUManagerPolicyAlphaOptions", "AllAlpha"):
        assert _starts(machine, version, "none", **fields, featureGates={on: True}) == ""
    off: dict[str, Any] = {"featureGates": {"CPUManagerPolicyAlphaOptions": False}}
    evidences: tuple[Evidence, ...] = ("none", "options", "runs")
    assert {_starts(machine, version, evidence, **fields, **off) for evidence in evidences} == {refused}


def test_a_beta_option_needs_its_gate_left_on() -> None:
    fields = _cpu_options(distribute_cpus_across_numa="true")
    machine = machine_of(4, 4)
    assert _starts(machine, "v1.32.0", "none", **fields) == ALPHA_OFF.format("distribute-cpus-across-numa")
    assert _starts(machine, "v1.33.0", "none", **fields) == ""
    for off in ("CPUManagerPolicyBetaOptions", "AllBeta"):
        refused = ALPHA_OFF.replace("Alpha", "Beta").format("distribute-cpus-across-numa")
        assert _starts(machine, "v1.33.0", "none", **fields, featureGates={off: False}) == refused


@pytest.mark.parametrize(
    ("version", "gates", "problem"),
    [
        ("v1.28.0", {"PodLevelResources": False}, "unrecognized feature gate: PodLevelResources"),
        ("v1.33.0", {"CPUManager": True}, "unrecognized feature gate: CPUManager"),
        (
            "v1.28.0",
            {"CPUManager": False},
            "cannot set feature gate CPUManager to false, feature is locked to true",
        ),
        (
            "v1.28.0",
            {"TopologyManager": False},
            "cannot set feature gate TopologyManager to false, feature is locked to true",
        ),
        ("v1.35.0", {"MemoryManager": True}, ""),
        ("v1.36.0", {"MemoryManager": True}, "unrecognized feature gate: MemoryManager"),
        (
            "v1.35.0",
            {"MemoryManager": False},
            "cannot set feature gate MemoryManager to false, feature is locked to true",
        ),
        ("v1.32.0", {"SidecarContainers": False}, ""),
        # A kubelet has hundreds of gates; topowise knows only the relevant gates.
        ("v1.36.0", {"GracefulNodeShutdown": True}, ""),
    ],
)
def test_gates_are_known_only_in_their_versions(version: str, gates: dict[str, bool], problem: str) -> None:
    expected = f"failed to set feature gates from initial flags-based config: {problem}" if problem else ""
    assert _starts(machine_of(4), version, "none", featureGates=gates) == expected
    # If the kubelet runs, the version is in doubt instead.
    assert _starts(machine_of(4), version, "runs", featureGates=gates) == ""


@pytest.mark.parametrize(
    ("minor", "gates", "on"),
    [
        (36, {}, False),
        (36, {"AllAlpha": True}, True),
        (36, {"AllBeta": True}, False),
        # kubernetes#141209: beta, but off by default.
        (37, {}, False),
        (37, {"AllAlpha": True}, False),
        (37, {"AllBeta": True}, True),
        (37, {"AllBeta": True, "PodLevelResourceManagers": False}, False),
        (37, {"PodLevelResourceManagers": True}, True),
    ],
)
def test_a_beta_gate_may_be_off(minor: int, gates: dict[str, bool], on: bool) -> None:
    for evidence in ("none", "runs"):
        settings = settle(
            KubeletConfiguration(featureGates=gates), machine_of(4), version_of(f"v1.{minor}.0"), evidence
        )
        assert settings.pod_level_resource_managers is on


def test_all_options_together_had_a_gate() -> None:
    machine = machine_of(4)
    cpu = _cpu_options(full_pcpus_only="true") | {"featureGates": {"CPUManagerPolicyOptions": False}}
    assert _starts(machine, "v1.32.0", "none", **cpu) == (
        "CPU Manager policy options map[full-pcpus-only:true] require feature gates "
        '"CPUManager", "CPUManagerPolicyOptions" enabled'
    )
    assert "locked" in _starts(machine, "v1.33.0", "none", **cpu)
    options = {"prefer-closest-numa-nodes": "false"}
    topology = TOPOLOGY | {"topologyManagerPolicyOptions": options}
    topology |= {"featureGates": {"TopologyManagerPolicyOptions": False}}
    assert _starts(machine, "v1.35.0", "none", **topology) == (
        "topology manager policy options map[prefer-closest-numa-nodes:false] require feature gates "
        '"TopologyManagerPolicyOptions" enabled'
    )


def test_the_memory_manager_could_be_disabled_with_any_policy() -> None:
    fields = {"memoryManagerPolicy": "Static", "featureGates": {"MemoryManager": False}}
    assert settle(KubeletConfiguration(**fields), machine_of(4), version_of("v1.31.0"), "none").reserved_memory is None


@pytest.mark.parametrize(
    ("option", "value"),
    [("prefer-most-allocated-numa-node", "true"), ("numa-allocation-strategy", "most-allocated")],
)
def test_a_draft_is_an_option_only_if_a_kubelet_runs_with_it(option: str, value: str) -> None:
    fields = {"topologyManagerPolicy": "single-numa-node", "topologyManagerPolicyOptions": {option: value}}
    for version in ("v1.30.0", "v1.36.2", "v1.38.0"):
        unknown = f'unknown Topology Manager Policy option: "{option}"'
        assert _starts(machine_of(4), version, "none", **fields) == unknown
        assert _starts(machine_of(4), version, "options", **fields) == unknown
        settings = settle(KubeletConfiguration(**fields), machine_of(4), version_of(version), "runs")
        assert settings.topology.prefer_most_allocated
        assert settings.drafts == (option,)
    assert settle(KubeletConfiguration(**TOPOLOGY), machine_of(4)).drafts == ()


@pytest.mark.parametrize(("value", "why"), [("least-allocated", "not modelled"), ("true", "expected none, most")])
def test_a_strategy_that_is_not_modelled_is_refused(value: str, why: str) -> None:
    options = {"topologyManagerPolicyOptions": {"numa-allocation-strategy": value}}
    with pytest.raises(KubeletStartError, match=f"numa-allocation-strategy.*{value}.*{why}"):
        settle(KubeletConfiguration(topologyManagerPolicy="single-numa-node", **options), machine_of(4))
    options["topologyManagerPolicyOptions"] = {"numa-allocation-strategy": "none"}
    settings = settle(KubeletConfiguration(topologyManagerPolicy="single-numa-node", **options), machine_of(4))
    assert not settings.topology.prefer_most_allocated


def test_a_running_kubelet_may_have_an_option_of_a_later_version() -> None:
    fields = _cpu_options(strict_cpu_reservation="true")
    unknown = 'new static policy error: unknown CPU Manager Policy option: "strict-cpu-reservation"'
    assert _starts(machine_of(4), "v1.31.0", "options", **fields) == unknown
    settings = settle(KubeletConfiguration(**fields), machine_of(4), version_of("v1.31.0"), "runs")
    assert settings.cpu is not None
    assert settings.cpu.strict_reservation


HANGS = {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"}


def _halved_cores(version: str) -> Kubelet:
    """Four nodes of three cores (c and c+12 are a core), with half of some cores reserved."""
    config = KubeletConfiguration(
        **STATIC | {"reservedSystemCPUs": "0,3,6,9-10,18,21", "cpuManagerPolicyOptions": HANGS}
    )
    return Kubelet(machine_of(3, 3, 3, 3), config, version=version_of(version), predicates=False)


@pytest.mark.parametrize("version", ["v1.28.0", "v1.36.2", "v1.37.0"])
def test_an_admission_that_would_never_end_is_refused(version: str) -> None:
    kubelet = _halved_cores(version)
    free = kubelet.cpu.available if kubelet.cpu is not None else 0
    refused = kubelet.admit(pod_of("p", {"cpu": "14", "memory": "1Gi"}))
    assert (refused.admitted, refused.reason, refused.stage) == (False, NEVER_ENDS, "topology")
    assert refused.rejection is not None
    assert (refused.rejection.container, refused.rejection.provider) == ("c0", "cpu")
    assert "kubernetes#140730" in refused.message
    assert kubelet.cpu is not None
    assert kubelet.cpu.available == free
    assert kubelet.admit(pod_of("small", {"cpu": "2", "memory": "1Gi"})).admitted


def test_the_admission_ends_since_1_38() -> None:
    assert _halved_cores("v1.38.0").admit(pod_of("p", {"cpu": "14", "memory": "1Gi"})).admitted


def test_sidecars_are_refused_while_their_gate_is_off() -> None:
    pod = pod_of("p", {"cpu": "1", "memory": "1Gi"}, sidecars=[{"cpu": "1", "memory": "1Gi"}])
    for version, gates, admitted in (
        ("v1.28.0", {}, False),
        ("v1.28.0", {"SidecarContainers": True}, True),
        ("v1.29.0", {}, True),
        ("v1.32.0", {"SidecarContainers": False}, False),
    ):
        config = KubeletConfiguration(**STATIC, featureGates=gates)
        decided = Kubelet(machine_of(4), config, version=version_of(version)).admit(pod)
        assert decided.admitted is admitted
        if not admitted:
            assert (decided.stage, decided.reason) == ("predicate", "InitContainerRestartPolicyForbidden")
            assert decided.message == 'Init container "s0" may not have a non-default restartPolicy'


def test_an_unknown_resource_of_an_init_container_excluded_a_pod() -> None:
    def admitted(version: str, pod: pods.Pod) -> bool:
        return Kubelet(machine_of(4), KubeletConfiguration(), version=version_of(version)).admit(pod).admitted

    unknown = {"x.io/none": "1"}
    of_init, of_app = pod_of("p", {}, init=[unknown]), pod_of("p", unknown)
    assert [admitted(version, of_init) for version in ("v1.30.0", "v1.31.0")] == [False, True]
    assert [admitted(version, of_app) for version in ("v1.30.0", "v1.31.0")] == [True, True]


def test_usage_of_an_unknown_resource_does_not_matter() -> None:
    kubelet = Kubelet(machine_of(4), KubeletConfiguration(), version=version_of("v1.30.0"))
    assert all(kubelet.admit(pod_of(f"p{number}", {"x.io/none": "1"})).admitted for number in range(2))
