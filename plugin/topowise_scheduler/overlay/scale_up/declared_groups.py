"""Node groups that the configuration declares, for groups that have no node yet.

The file of a group is a NodeResourceTopology, saved while the group had a node, or the description of a machine, as for
plans (the output of `topowise-exporter machine`), with the configuration of its kubelet. A reported node
of the group takes precedence over the declaration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from topowise import documents, kubeletconfig
from topowise.errors import ConfigError, TopowiseError
from topowise.pods import Amounts, amount_of
from topowise_scheduler import report
from topowise_scheduler.configuration import NodeGroup
from topowise_scheduler.kubelet import Kubelet, version_of
from topowise_scheduler.overlay.overlay import NodeCopy
from topowise_scheduler.overlay.scale_up.node_groups import GroupLabels, Profile, group_of
from topowise_scheduler.verdicts.kube_scheduler import Node, Taint

_NRT: Final = "NodeResourceTopology"


def profile_of(declared: NodeGroup, files: Mapping[str, bytes], keys: Sequence[str]) -> Profile:
    """Returns the profile of a declared group; `files` are the contents by path. Raises ConfigError."""
    group = group_of(declared.labels, keys)
    path = f"scaleUp.declaredGroups, {declared.file}"
    if not group:
        raise ConfigError(path, f"labels has none of groupLabels ({', '.join(keys)}), expected one: it names the group")
    try:
        kubelet = _kubelet(declared, files)
        stated = {name: amount_of(name, text) for name, text in declared.allocatable.items()}
        used = {"pods": 0, **{name: amount_of(name, text) for name, text in declared.used.items()}}
    except TopowiseError as exc:
        raise ConfigError(path, str(exc)) from exc
    allocatable: Amounts = {**kubelet.allocatable(), **stated}
    taints = tuple([Taint(taint.key, taint.value, taint.effect) for taint in declared.taints])
    node = Node("", allocatable=allocatable, labels=dict(declared.labels), taints=taints)
    return Profile(group, NodeCopy((kubelet,), used, like="", node=node))


def profiles_of(
    declared: Sequence[NodeGroup], files: Mapping[str, bytes], keys: Sequence[str]
) -> dict[GroupLabels, Profile]:
    """Returns the profiles of the declared groups. Raises ConfigError."""
    profiles: dict[GroupLabels, Profile] = {}
    for entry in declared:
        profile = profile_of(entry, files, keys)
        if profile.group in profiles:
            raise ConfigError(f"scaleUp.declaredGroups, {entry.file}", "declares a group that an entry before declares")
        profiles[profile.group] = profile
    return profiles


def _kubelet(declared: NodeGroup, files: Mapping[str, bytes]) -> Kubelet:
    """Returns the kubelet without pods. Raises TopowiseError."""
    text = files[declared.file]
    document = documents.load(text)
    if isinstance(document, dict) and document.get("kind") == _NRT:
        return _of_report(declared, document)
    # Imported on demand: only machine descriptions need the planner.
    from topowise_scheduler.overlay.plan import NodeType, read_machine

    machine = read_machine(text, declared.file)
    if not declared.kubelet_config:
        raise ConfigError(
            declared.file, "describes a machine, expected kubeletConfig, the configuration of its kubelet"
        )
    settings = kubeletconfig.parse(files[declared.kubelet_config], source=declared.kubelet_config)
    configuration = kubeletconfig.with_defaults(settings)
    return NodeType(machine, configuration, version_of(declared.kubelet_version)).kubelet()


def _of_report(declared: NodeGroup, document: dict[str, Any]) -> Kubelet:
    try:
        read = report.read_bytes(msgspec.json.encode(document), lambda _: (declared.kubelet_version, (), None))
    except msgspec.DecodeError as exc:
        raise ConfigError(declared.file, f"is no {_NRT}: {exc}") from exc
    if read.over_budget or not document.get("zones") or (read.precision == "counts" and read.problems):
        problems = "; ".join(read.problems) or "it has no zones"
        raise ConfigError(declared.file, f"{problems}, expected a {_NRT} as an exporter writes it")
    return read.empty
