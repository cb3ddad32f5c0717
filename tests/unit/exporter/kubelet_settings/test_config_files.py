"""The kubelet's main file and its drop-ins, merged as the kubelet merges them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from topowise.errors import SourceError
from topowise.kubeletconfig import MemoryReservation
from topowise_exporter.kubelet.settings.sources import FileSource, drop_ins, load, merge_patch

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
EVICTION = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}


def write(path: Path, text: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEAD + text)
    return str(path)


@pytest.mark.parametrize(
    ("target", "patch", "expected"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3, "z": 4}}, {"a": {"x": 1, "y": 3, "z": 4}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": None}}, {"a": {"y": 2}}),
        ({}, {"a": {"x": None, "y": 1}}, {"a": {"y": 1}}),
        ({"a": 1}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({"a": {"x": 1}}, {"a": 2}, {"a": 2}),
        ({"a": {"x": 1}}, {"a": {}}, {"a": {"x": 1}}),
    ],
)
def test_a_drop_in_is_a_json_merge_patch(
    target: dict[str, object], patch: dict[str, object], expected: dict[str, object]
) -> None:
    before = repr(target)
    assert merge_patch(target, patch) == expected
    assert repr(target) == before


@pytest.mark.parametrize(
    ("main", "first", "second", "field", "expected"),
    [
        ("topologyManagerPolicy: none", "", "", "topologyManagerPolicy", "none"),
        ("maxPods: 1", "maxPods: 2", "", "maxPods", 2),
        ("maxPods: 1", "maxPods: 2", "maxPods: 3", "maxPods", 3),
        ("maxPods: 1", "maxPods: null", "", "maxPods", 110),
        (
            "kubeReserved: {memory: 70Mi}",
            "kubeReserved: {memory: 150Mi, cpu: 200m}",
            "kubeReserved: {memory: 100Mi}",
            "kubeReserved",
            {"memory": "100Mi", "cpu": "200m"},
        ),
        (
            "featureGates: {A: true, B: true}",
            "featureGates: {B: false}",
            "featureGates: {C: true}",
            "featureGates",
            {"A": True, "B": False, "C": True},
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 1, limits: {memory: 1Gi}}]",
            "reservedMemory: [{numaNode: 1, limits: {memory: 2Gi}}]",
            "",
            "reservedMemory",
            (MemoryReservation(1, {"memory": "2Gi"}),),
        ),
        (
            'cpuManagerPolicyOptions: {full-pcpus-only: "true"}',
            'cpuManagerPolicyOptions: {full-pcpus-only: null, strict-cpu-reservation: "true"}',
            "",
            "cpuManagerPolicyOptions",
            {"strict-cpu-reservation": "true"},
        ),
        ("topologyManagerPolicy: odd", "topologyManagerPolicy: restricted", "", "topologyManagerPolicy", "restricted"),
    ],
    ids=[
        "main-alone",
        "scalar-replaced",
        "last-wins",
        "null-restores-the-default",
        "maps-by-key",
        "gates-by-key",
        "lists-replaced",
        "null-removes-a-key",
        "only-the-result-is-checked",
    ],
)
def test_drop_ins_apply_in_lexical_order(
    tmp_path: Path, main: str, first: str, second: str, field: str, expected: object
) -> None:
    config = write(tmp_path / "config.yaml", main)
    write(tmp_path / "conf.d/20-second.conf", second)
    write(tmp_path / "conf.d/10-first.conf", first)
    assert getattr(load(config, drop_ins(str(tmp_path / "conf.d"))), field) == expected


@pytest.mark.parametrize(
    ("main", "drop_in", "expected"),
    [
        ("", "evictionHard: {memory.available: 1Gi}", EVICTION | {"memory.available": "1Gi"}),
        (
            "evictionHard: {memory.available: 1Gi}",
            "evictionHard: {nodefs.available: 5%}",
            {"memory.available": "1Gi", "nodefs.available": "5%"},
        ),
        (
            "evictionHard: {memory.available: 1Gi}",
            "mergeDefaultEvictionSettings: true",
            {"memory.available": "1Gi"},
        ),
        (
            "evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true",
            "evictionHard: {memory.available: null}",
            {name: text for name, text in EVICTION.items() if name != "memory.available"},
        ),
        ("", "evictionHard: null", {}),
    ],
    ids=["named-in-a-drop-in", "named-in-both", "merging-too-late", "removed", "all-removed"],
)
def test_eviction_thresholds_are_defaulted_before_the_drop_ins(
    tmp_path: Path, main: str, drop_in: str, expected: dict[str, str]
) -> None:
    config = write(tmp_path / "config.yaml", main)
    assert load(config, [write(tmp_path / "1.conf", drop_in)]).evictionHard == expected


def test_without_a_main_file_there_are_no_default_thresholds(tmp_path: Path) -> None:
    config = load("", [write(tmp_path / "1.conf", "topologyManagerPolicy: restricted")])
    assert config.topologyManagerPolicy == "restricted"
    assert config.evictionHard == {}


def test_only_names_in_conf_count_and_subdirectories_are_walked_in_order(tmp_path: Path) -> None:
    for name in ("b.conf", "a/z.conf", "a/y.conf", "c.conf", "a.conf", "d.yaml", "e.conf~", ".conf", "f.CONF"):
        write(tmp_path / name)
    names = [str(Path(path).relative_to(tmp_path)) for path in drop_ins(str(tmp_path))]
    assert names == [".conf", "a/y.conf", "a/z.conf", "a.conf", "b.conf", "c.conf"]


def test_links_to_files_count_and_links_to_directories_do_not(tmp_path: Path) -> None:
    write(tmp_path / "real/1.conf")
    directory = tmp_path / "conf.d"
    directory.mkdir()
    (directory / "..data").symlink_to(tmp_path / "real")
    (directory / "1.conf").symlink_to(tmp_path / "real/1.conf")
    assert drop_ins(str(directory)) == [str(directory / "1.conf")]


@pytest.mark.parametrize(
    ("main", "drop_in", "named"),
    [
        (HEAD + "maxPods: x", HEAD, "config.yaml: .*maxPods"),
        (HEAD + "kind: Config\n", HEAD, "config.yaml: kind is 'Config'"),
        ("", HEAD, "config.yaml: is empty"),
        (HEAD, "", "1.conf: is empty"),
        (HEAD, "maxPods: 5", "1.conf: apiVersion is None"),
        (HEAD, "kind: KubeletConfiguration\nmaxPods: 5", "1.conf: apiVersion is None"),
        (HEAD, HEAD.replace("v1beta1", "v1"), "1.conf: apiVersion is 'kubelet.config.k8s.io/v1'"),
        (HEAD, HEAD + "maxPods: x", "1.conf: .*maxPods"),
        (HEAD, HEAD + "topologyManagerPolicy: odd", "config.yaml with drop-ins: topologyManagerPolicy 'odd'"),
        (HEAD, "a: [", "1.conf: is not YAML"),
    ],
)
def test_a_file_the_kubelet_would_refuse_is_named(tmp_path: Path, main: str, drop_in: str, named: str) -> None:
    (tmp_path / "config.yaml").write_text(main)
    (tmp_path / "1.conf").write_text(drop_in)
    with pytest.raises(SourceError, match=named):
        load(str(tmp_path / "config.yaml"), [str(tmp_path / "1.conf")])


@pytest.mark.parametrize(
    ("name", "policy"),
    [("cpumanagerpolicy", "static"), ("CPUMANAGERPOLICY", "none"), ("CpuManagerPolicy", "none")],
)
def test_names_in_drop_ins_count_in_any_case(tmp_path: Path, name: str, policy: str) -> None:
    """encoding/json takes the last name by its bytes; the kubelet itself writes cpuManagerPolicy (kubelet 1.36.2)."""
    (tmp_path / "config.yaml").write_text(HEAD)
    reserved = "KubeReserved: {cpu: '1'}\nkubeReserved: {memory: 1Gi}\n"
    (tmp_path / "1.conf").write_text(f"{HEAD}{name}: static\n{reserved}")
    read = load(str(tmp_path / "config.yaml"), [str(tmp_path / "1.conf")])
    assert read.cpuManagerPolicy == policy
    assert read.kubeReserved == {"cpu": "1", "memory": "1Gi"}
    (tmp_path / "1.conf").write_text(HEAD + "EVICTIONHARD: 5\n")
    with pytest.raises(SourceError, match="evictionHard"):
        load(str(tmp_path / "config.yaml"), [str(tmp_path / "1.conf")])


async def test_missing_files_and_directories_are_named_with_the_reason(tmp_path: Path) -> None:
    config = write(tmp_path / "config.yaml")
    for source in (FileSource(str(tmp_path / "no")), FileSource(config, str(tmp_path / "no"))):
        with pytest.raises(SourceError, match=r"no: cannot be .*: No such file"):
            await source.read(None)


async def test_a_file_is_parsed_again_only_when_it_changed(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    source = FileSource(write(path, "maxPods: 1"))
    first = await source.read(None)
    assert await source.read(None) is first
    write(path, "maxPods: 22")
    assert (await source.read(None)).maxPods == 22


async def test_a_file_replaced_by_a_similar_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    source = FileSource(write(path, "maxPods: 1"))
    await source.read(None)
    before = path.stat()
    other_file = Path(write(tmp_path / "other", "maxPods: 2"))
    os.utime(other_file, ns=(before.st_atime_ns, before.st_mtime_ns))
    other_file.rename(path)
    assert (await source.read(None)).maxPods == 2


async def test_drop_ins_that_come_change_and_go_are_seen(tmp_path: Path) -> None:
    drop_in = tmp_path / "conf.d/1.conf"
    drop_in.parent.mkdir()
    source = FileSource(write(tmp_path / "config.yaml", "maxPods: 1"), str(drop_in.parent))
    assert (await source.read(None)).maxPods == 1
    write(drop_in, "maxPods: 2")
    assert (await source.read(None)).maxPods == 2
    write(drop_in, "maxPods: 33")
    assert (await source.read(None)).maxPods == 33
    drop_in.unlink()
    assert (await source.read(None)).maxPods == 1


async def test_a_new_version_of_the_kubelet_is_a_reason_to_look_again(tmp_path: Path) -> None:
    source = FileSource(write(tmp_path / "config.yaml"))
    assert "imagefs.inodesFree" not in ((await source.read("v1.29.0")).evictionHard or {})
    assert (await source.read("v1.30.0")).evictionHard == EVICTION


class Started:
    """A main file with `maxPods: 1` and a directory of drop-ins, both older than the kubelet's socket."""

    def __init__(self, root: Path, drop_in: str | None = None) -> None:
        self.main, self.drop_in, self.socket = root / "config.yaml", root / "conf.d/1.conf", root / "kubelet.sock"
        write(self.main, "maxPods: 1")
        self.drop_in.parent.mkdir()
        if drop_in is not None:
            write(self.drop_in, drop_in)
        self.start()
        self.source = FileSource(str(self.main), str(self.drop_in.parent), socket=str(self.socket))

    def start(self) -> None:
        """A kubelet makes its socket anew; a file does for what is looked at."""
        self.socket.unlink(missing_ok=True)
        time.sleep(0.02)
        self.socket.touch()
        time.sleep(0.02)

    async def most_pods(self, version: str | None = None) -> int:
        return (await self.source.read(version)).maxPods


async def test_what_was_written_after_the_kubelet_started_is_not_what_it_goes_by(tmp_path: Path) -> None:
    node = Started(tmp_path)
    assert await node.most_pods() == 1
    # A file that says the same in another way is no news.
    write(node.main, "# by hand\nmaxPods: 1")
    assert await node.most_pods() == 1
    write(node.main, "maxPods: 22")
    with pytest.raises(SourceError, match=r"config\.yaml: has changed since the kubelet started"):
        await node.most_pods()
    # Without a kubelet it waits for a kubelet.
    node.socket.unlink()
    with pytest.raises(SourceError, match="has changed since the kubelet started"):
        await node.most_pods()
    node.start()
    assert await node.most_pods() == 22


async def test_a_drop_in_that_goes_while_the_kubelet_runs_is_still_what_it_goes_by(tmp_path: Path) -> None:
    node = Started(tmp_path, "maxPods: 2")
    assert await node.most_pods() == 2
    node.drop_in.unlink()
    with pytest.raises(SourceError, match=r"conf\.d: has changed since the kubelet started"):
        await node.most_pods()
    node.start()
    assert await node.most_pods() == 1


async def test_before_the_first_reading_the_kubelets_settings_are_unknown(tmp_path: Path) -> None:
    node = Started(tmp_path)
    write(node.main, "maxPods: 3")
    assert await node.most_pods() == 3
    # The Node now has a version; the file is unchanged.
    assert await node.most_pods("v1.36.2") == 3
