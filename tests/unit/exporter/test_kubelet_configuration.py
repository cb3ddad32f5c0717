"""The kubelet's configuration file, with kubelet's defaults and damage named."""

from pathlib import Path

import pytest

from topowise.errors import SourceError
from topowise_exporter.kubelet import configuration


def test_what_the_file_leaves_out_has_the_kubelets_default() -> None:
    read = configuration.parse(b"kind: KubeletConfiguration\nmaxPods: 250\ncpuManagerPolicy:\n")
    assert (read.topology_manager_policy, read.topology_manager_scope) == ("none", "container")
    assert (read.cpu_manager_policy, read.memory_manager_policy) == ("none", "None")
    assert read.reserved_cpus == frozenset()


def test_an_empty_file_is_all_defaults() -> None:
    assert configuration.parse(b"") == configuration.KubeletConfiguration()


def test_names_are_the_files() -> None:
    read = configuration.parse(
        b"""
        topologyManagerPolicy: single-numa-node
        topologyManagerPolicyOptions: {prefer-closest-numa-nodes: "true"}
        reservedSystemCPUs: 0,8
        reservedMemory:
        - {numaNode: 1, limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}
        - {numaNode: 0, limits: {memory: 100Mi}}
        """
    )
    assert read.reserved_cpus == {0, 8}
    assert read.reserved_on(1, "memory") == 1 << 30
    assert read.reserved_on(0, "hugepages-2Mi") == 0
    assert read.topology_manager_policy_options == {"prefer-closest-numa-nodes": "true"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"- a\n- b\n", "list"),
        (b"topologyManagerPolicy: [1]", "topologyManagerPolicy"),
        (b"reservedSystemCPUs: 0-x", "0-x"),
        (b"reservedMemory: [{numaNode: 0, limits: {memory: 1Gb}}]", "1Gb"),
        (b"a: [", "YAML"),
    ],
)
def test_damage_is_named(text: bytes, named: str) -> None:
    with pytest.raises(SourceError, match=named):
        configuration.parse(text)


def test_an_unreadable_file_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        configuration.load(str(tmp_path / "config.yaml"))
