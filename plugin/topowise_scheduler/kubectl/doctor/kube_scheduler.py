"""Checks kube-scheduler's configuration: the extender's entry, and settings that make it useless.

Sources: k8s.io/kube-scheduler/config/v1, pkg/scheduler/extender.go (1.36); measurements are in docs/adr.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from topowise.errors import SourceError
from topowise_scheduler.kubectl.console import go_seconds
from topowise_scheduler.kubectl.doctor.finding import Finding, Severity
from topowise_scheduler.kubectl.source import documents

_KIND: Final = "KubeSchedulerConfiguration"
_IN_TREE: Final = "NodeResourceTopologyMatch"
_SLOWEST_S: Final = 5.0
_FASTEST_S: Final = 0.1
_HEAVIEST: Final = 50
_LIGHTEST: Final = 2


def read(file: str) -> Mapping[str, Any]:
    """The configuration in a file. Raises SourceError."""
    for document in documents([file]):
        if document.get("kind") == _KIND:
            return dict(document)
    raise SourceError(file, f"has no {_KIND}, expected kube-scheduler's configuration")


def check(config: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks the whole configuration."""
    yield from _whole(config)
    extenders: list[dict[str, Any]] = config.get("extenders") or []
    if not extenders:
        yield _finding(
            "error", "kube-scheduler", "no extender",
            "topowise-scheduler is never asked",
            "add its entry to extenders: urlPrefix, filterVerb, prioritizeVerb, preemptVerb, weight, nodeCacheCapable",
        )  # fmt: skip
    binders = [extender for extender in extenders if extender.get("bindVerb")]
    if len(binders) > 1:
        yield _finding(
            "error", "kube-scheduler", f"{len(binders)} extenders with a bindVerb",
            "only one may bind (kubernetes#109739), so kube-scheduler does not start",
            "set bindVerb for one extender only",
        )  # fmt: skip
    for extender in extenders:
        yield from _extender(extender)


def _finding(severity: Severity, subject: str, value: str, why: str, mend: str) -> Finding:
    return Finding("kube-scheduler", severity, subject, (), value, why, mend)


def _whole(config: Mapping[str, Any]) -> Iterator[Finding]:
    shares = [config.get("percentageOfNodesToScore")]
    profiles: Sequence[Mapping[str, Any]] = config.get("profiles") or []
    own = [profile.get("percentageOfNodesToScore") for profile in profiles]
    shares += [share for share in own if share is not None]
    if (own and all(share == 100 for share in own)) or shares[0] == 100:
        shares = [100]
    if any(share != 100 for share in shares):
        first = next((str(share) for share in shares if share != 100 and share is not None), "not set")
        yield _finding(
            "warning", "kube-scheduler", f"percentageOfNodesToScore {first}, expected 100",
            "of more than 100 nodes only a sample is tried; if that has no NUMA room the pod waits beside nodes that "
            "have (kubernetes#122057)",
            "set percentageOfNodesToScore: 100",
        )  # fmt: skip
    for profile in profiles:
        plugins = profile.get("plugins") or {}
        named = [plugin.get("name") for point in plugins.values() for plugin in (point or {}).get("enabled") or ()]
        if _IN_TREE in named:
            yield _finding(
                "warning", "kube-scheduler", f"{_IN_TREE} in profile {profile.get('schedulerName', '')!r}",
                "two plug-ins count NUMA nodes; the plug-in subtracts a pod from every zone",
                f"use the extender or {_IN_TREE}, not both",
            )  # fmt: skip


def _extender(extender: Mapping[str, Any]) -> Iterator[Finding]:
    url = str(extender.get("urlPrefix") or "")
    subject = f"extender {url or 'without urlPrefix'}"
    if extender.get("nodeCacheCapable") is not True:
        yield _finding(
            "error", subject, f"nodeCacheCapable {extender.get('nodeCacheCapable', 'not set')}, expected true",
            "whole Node objects go over the wire for each pod, and kube-scheduler's own scores see empty nodes "
            "(kubernetes#141781)",
            "set nodeCacheCapable: true",
        )  # fmt: skip
    if not extender.get("filterVerb"):
        yield _finding(
            "error", subject, "no filterVerb",
            "nodes whose kubelet will refuse the pod are not left out",
            "set filterVerb: filter",
        )  # fmt: skip
    if not extender.get("preemptVerb"):
        yield _finding(
            "warning", subject, "no preemptVerb",
            "pods are evicted although the preempting pod does not fit on the freed NUMA nodes",
            "set preemptVerb: preempt",
        )  # fmt: skip
    yield from _weight(subject, extender)
    yield from _timeout(subject, extender)
    yield from _reach(subject, url, extender)
    if extender.get("ignorable"):
        yield _finding(
            "warning", subject, "ignorable",
            "while the service is away pods go to nodes that refuse them",
            "set ignorable: false, and run the service beside kube-scheduler, or in several replicas",
        )  # fmt: skip
    yield from _managed(subject, extender)


def _weight(subject: str, extender: Mapping[str, Any]) -> Iterator[Finding]:
    if not extender.get("prioritizeVerb"):
        yield _finding(
            "warning", subject, "no prioritizeVerb",
            "of the nodes that fit any is taken, and the large holes are broken first",
            "set prioritizeVerb: prioritize and weight: 5",
        )  # fmt: skip
        return
    weight = extender.get("weight", 0)
    if not isinstance(weight, int) or weight <= 0:
        yield _finding(
            "error", subject, f"weight {weight!r}, expected a number above 0",
            "kube-scheduler does not start with a prioritizeVerb and no weight",
            "set weight: 5",
        )  # fmt: skip
    elif not _LIGHTEST <= weight <= _HEAVIEST:
        yield _finding(
            "warning", subject, f"weight {weight}, expected {_LIGHTEST} to {_HEAVIEST}",
            f"scores of 0 to 10 become 0 to {100 * weight}, and all other plug-ins add up to about 1,200: "
            f"{'nothing else counts' if weight > _HEAVIEST else 'they hardly count'}",
            "set weight: 5 (a tenth with extender.scoreScale 100)",
        )  # fmt: skip


def _timeout(subject: str, extender: Mapping[str, Any]) -> Iterator[Finding]:
    text = extender.get("httpTimeout")
    timeout = go_seconds(text)
    if timeout is None:
        yield _finding(
            "note", subject, f"httpTimeout {'not set' if text is None else repr(text)}: 5s",
            "pods are scheduled one at a time, so a call that hangs delays all pods for that time",
            "set httpTimeout: 2s",
        )  # fmt: skip
    elif not _FASTEST_S <= timeout <= _SLOWEST_S:
        yield _finding(
            "warning", subject, f"httpTimeout {text}, expected 100ms to 5s",
            "a call that hangs delays all other pods for that time"
            if timeout > _SLOWEST_S
            else "an answer that takes a moment is a failed attempt, and the pod waits",
            "set httpTimeout: 2s",
        )  # fmt: skip


def _reach(subject: str, url: str, extender: Mapping[str, Any]) -> Iterator[Finding]:
    try:
        parts = urlsplit(url)
    except ValueError:
        yield _finding(
            "error", subject, "urlPrefix is no address, expected http or https, a host and a port",
            "kube-scheduler cannot ask the service, and schedules nothing",
            "set urlPrefix, such as http://127.0.0.1:8080",
        )  # fmt: skip
        return
    tls = extender.get("tlsConfig") or {}
    is_verified = any(tls.get(field) for field in ("caFile", "caData"))
    if parts.scheme == "https" and not is_verified:
        yield _finding(
            "error", subject, "https without a CA",
            "with enableHTTPS and no CA kube-scheduler does not verify the server: any server can decide where pods go",
            "set tlsConfig.caFile, and certFile and keyFile for the service to know who asks",
        )  # fmt: skip
    if tls.get("insecure") and is_verified:
        yield _finding(
            "error", subject, "tlsConfig.insecure with a CA",
            "kube-scheduler does not start",
            "leave insecure out",
        )  # fmt: skip
    if _is_loopback(parts.hostname or ""):
        return
    if parts.scheme != "https":
        yield _finding(
            "warning", subject, "asked over the network without TLS",
            "any host on the network path can read every pod, and decide where it goes",
            "run the service beside kube-scheduler on 127.0.0.1, or use https with tlsConfig",
        )  # fmt: skip
    yield _finding(
        "note", subject, "not on loopback",
        "kube-scheduler keeps connections for 90 s and does not repeat a POST: whatever on the way closes them earlier "
        "makes pods fail with EOF",
        "run the service beside kube-scheduler, or give proxies and load balancers an idle timeout above 90 s",
    )  # fmt: skip


def _managed(subject: str, extender: Mapping[str, Any]) -> Iterator[Finding]:
    names = [str(resource.get("name")) for resource in extender.get("managedResources") or ()]
    native = [name for name in names if "/" not in name]
    if native:
        yield _finding(
            "error", subject, f"managedResources {', '.join(native)}",
            "only extended resources can be managed, so kube-scheduler does not start",
            "leave managedResources out",
        )  # fmt: skip
    elif names:
        yield _finding(
            "warning", subject, f"managedResources {', '.join(names)}",
            "pods that ask for none of these are not sent to it: Guaranteed pods of CPUs and memory alone go anywhere",
            "leave managedResources out, unless only those pods need alignment",
        )  # fmt: skip


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
