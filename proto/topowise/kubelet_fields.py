"""The Go types of a KubeletConfiguration's fields (k8s.io/kubelet/config/v1beta1, types.go, 1.28 to 1.36).

A kubelet decodes its file strictly, and if that fails only by unknown or repeated fields, again without these errors
(kubeletconfig/util/codec). So an unknown field is ignored, and a number for a text is an error: the kubelet does not
start. Objects and lists of objects are checked as such, not their fields.
"""

# ruff: noqa: SIM905 - a name per line would be four pages

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from topowise.errors import SourceError

_Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
_Uint = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
# time.ParseDuration.
_Duration = Annotated[str, msgspec.Meta(pattern=rf"^[-+]?(?:0|(?:{_Uint}(?:ns|us|µs|μs|ms|s|m|h))+)$")]

_DURATIONS: Final = """syncFrequency fileCheckFrequency httpCheckFrequency streamingConnectionIdleTimeout
    nodeStatusUpdateFrequency nodeStatusReportFrequency imageMinimumGCAge imageMaximumGCAge volumeStatsAggPeriod
    cpuManagerReconcilePeriod runtimeRequestTimeout evictionPressureTransitionPeriod shutdownGracePeriod
    shutdownGracePeriodCriticalPods""".split()

_NAMES: Final[tuple[tuple[Any, list[str]], ...]] = (
    (
        bool,
        """enableServer enableDebuggingHandlers cgroupsPerQOS singleProcessOOMKill cpuCFSQuota serializeImagePulls
        mergeDefaultEvictionSettings enableControllerAttachDetach makeIPTablesUtilChains failSwapOn
        enableSystemLogHandler enableSystemLogQuery enableProfilingHandler enableDebugFlagsHandler seccompDefault
        registerNode localStorageCapacityIsolation failCgroupV1 rotateCertificates serverTLSBootstrap
        enableContentionProfiling runOnce protectKernelDefaults kernelMemcgNotification""".split(),
    ),
    (
        str,
        """staticPodPath podLogsDir staticPodURL address tlsCertFile tlsPrivateKeyFile tlsMinVersion healthzBindAddress
        clusterDomain kubeletCgroups systemCgroups cgroupRoot cgroupDriver cpuManagerPolicy memoryManagerPolicy
        topologyManagerPolicy topologyManagerScope hairpinMode podCIDR contentType containerLogMaxSize
        reservedSystemCPUs showHiddenMetricsForVersion systemReservedCgroup kubeReservedCgroup volumePluginDir
        providerID containerRuntimeEndpoint imageServiceEndpoint resolvConf imagePullCredentialsVerificationPolicy
        configMapAndSecretChangeDetectionStrategy memoryReservationPolicy""".split(),
    ),
    (_Duration, [*_DURATIONS, "cpuCFSQuotaPeriod", "containerLogMonitorInterval"]),
    (
        _Int32,
        """port readOnlyPort registryBurst eventBurst nodeLeaseDurationSeconds maxPods kubeAPIBurst
        evictionMaxPodGracePeriod podsPerCore registryPullQPS eventRecordQPS healthzPort oomScoreAdj
        imageGCHighThresholdPercent imageGCLowThresholdPercent nodeStatusMaxImages kubeAPIQPS maxParallelImagePulls
        iptablesMasqueradeBit iptablesDropBit containerLogMaxFiles containerLogMaxWorkers""".split(),
    ),
    (int, ["podPidsLimit", "maxOpenFiles"]),
    (float, ["memoryThrottlingFactor"]),
    (
        list[str | None],
        """tlsCipherSuites preloadedImagesVerificationAllowlist clusterDNS enforceNodeAllocatable
        allowedUnsafeSysctls""".split(),
    ),
    (list[_Int32 | None], ["tlsCurvePreferences"]),
    (
        dict[str, str | None],
        """cpuManagerPolicyOptions topologyManagerPolicyOptions qosReserved evictionHard evictionSoft
        evictionSoftGracePeriod evictionMinimumReclaim systemReserved kubeReserved""".split(),
    ),
    (dict[str, bool | None], ["featureGates"]),
    (dict[str, list[str | None] | None], ["staticPodURLHeader"]),
    (
        dict[str, Any],
        "authentication authorization memorySwap logging crashLoopBackOff tracing userNamespaces".split(),
    ),
    (
        list[dict[str, Any] | None],
        "shutdownGracePeriodByPodPriority reservedMemory registerWithTaints".split(),
    ),
)  # fmt: skip

TYPES: Final[Mapping[str, Any]] = {name: of_go for of_go, names in _NAMES for name in names}

_Written: Final = msgspec.defstruct("_Written", [(name, of_go | None, None) for name, of_go in TYPES.items()])
_FIELD: Final = re.compile(r"`\$\.(\w+)")
_BY_LOWER_CASE: Final = {name.lower(): name for name in TYPES}


def check(fields: Mapping[str, Any], *, source: str) -> None:
    """Raises SourceError with field and value if Go does not decode the fields; null is the zero value of a field."""
    try:
        msgspec.convert(fields, _Written)
    except msgspec.ValidationError as exc:
        match = _FIELD.search(str(exc))
        value = f", its value is {fields.get(match[1])!r:.80}" if match else ""
        raise SourceError(source, f"{exc}{value}; a kubelet does not start with it") from exc


def zeroed(fields: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Returns the fields with the zero value for each null in a map. Raises SourceError for a null duration, which Go
    reads as an empty text."""
    named = dict(fields)
    for name, value in fields.items():
        if value is None and name in _DURATIONS:
            raise SourceError(source, f"{name} is null, expected a duration such as '10s'")
        if isinstance(value, Mapping):
            zero = "" if TYPES.get(name) == dict[str, str | None] else False if name == "featureGates" else None
            if zero is not None:
                named[name] = {key: zero if inner is None else inner for key, inner in value.items()}
    return named


def folded(fields: Mapping[str, Any], defaulted: frozenset[str], *, source: str) -> dict[str, Any]:
    """Returns the fields with Go's names. Raises SourceError if Go does not decode them.

    A kubelet with drop-ins decodes the merged JSON with encoding/json, which ignores case. Its names are sorted, and
    the last of several names of a field counts; maps are merged. The kubelet writes the fields `defaulted` in any case.
    """
    named: dict[str, Any] = {}
    for name in sorted(fields):
        field, value = _BY_LOWER_CASE.get(name.lower(), name), fields[name]
        check({field: value}, source=source)
        if isinstance(value, Mapping) and isinstance(named.get(field), Mapping):
            value = {**named[field], **value}
        if name >= field or field in fields or field not in defaulted:
            named[field] = value
    return named
