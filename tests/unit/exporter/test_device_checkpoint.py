"""The device manager's checkpoint: every format, and nothing of a file that no kubelet wrote.

Kubelets wrote the two complete texts (2020 without pods, and 2026); both are public.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from topowise.errors import SourceError
from topowise_exporter.kubelet import device_checkpoint, entry_owners
from topowise_exporter.kubelet.allocations import ContainerAllocation, Device, PodAllocation
from topowise_exporter.kubelet.state_files import StateFile

REAL = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3","ContainerName":"check",'
    b'"ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},'
    b'"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],'
    b'"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},"Checksum":3660592824}'
)
REAL_EMPTY = (
    b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":'
    b'["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}},"Checksum":3952659280}'
)
UID = "bf52b2cd-b611-4e79-86b1-280b283185c3"


def written(*entries: dict[str, Any], registered: dict[str, list[str] | None] | None = None) -> bytes:
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": registered or {}}
    return json.dumps({"Data": data, "Checksum": 0}).encode()


def entry(uid: str, container: str, resource: str, ids: Any) -> dict[str, Any]:
    return {"PodUID": uid, "ContainerName": container, "ResourceName": resource, "DeviceIDs": ids, "AllocResp": ""}


def test_what_real_kubelets_wrote_is_read() -> None:
    state = device_checkpoint.parse(REAL, "x")
    assert state.holders == {UID: {"check": (Device("nvidia.com/gpu", "tegra", ()),)}}
    assert state.registered == {"nvidia.com/gpu": {"tegra"}}
    assert device_checkpoint.parse(REAL_EMPTY, "x").holders == {}


def test_a_device_near_two_nodes_is_one_device() -> None:
    state = device_checkpoint.parse(written(entry("u", "c", "gpu", {"0": ["a", "b"], "1": ["b"], "-1": ["c"]})), "x")
    devices = (Device("gpu", "a", (0,)), Device("gpu", "b", (0, 1)), Device("gpu", "c", ()))
    assert state.holders == {"u": {"c": devices}}


def test_a_list_of_ids_is_the_format_of_old_kubelets() -> None:
    state = device_checkpoint.parse(written(entry("u", "c", "gpu", ["a"]), entry("u", "c", "nic", None)), "x")
    assert state.holders == {"u": {"c": (Device("gpu", "a", ()),)}}


def test_a_resource_without_devices_is_none_that_plug_ins_have_shown() -> None:
    state = device_checkpoint.parse(written(registered={"gpu": ["a"], "roce": [], "nic": None}), "x")
    assert state.registered == {"gpu": {"a"}}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "is not a checkpoint"),
        (REAL[:100], "is not a checkpoint"),
        (b'{"policyName":"static","defaultCpuSet":"","checksum":1}', "is not a checkpoint"),
        (REAL.replace(b'"-1"', b'" 1"'), "has NUMA node ' 1', expected an integer"),
        (REAL.replace(b'"-1"', b'"1_0"'), "has NUMA node"),
        (REAL.replace(b'"-1"', b'"one"'), "has NUMA node"),
        (REAL.replace(b"tegra", b"\xff\xfe", 1), "is not a checkpoint"),
        (b'{"Data":' * 5000, "is not a checkpoint"),
    ],
)
def test_a_file_that_no_kubelet_wrote_is_named(text: bytes, problem: str) -> None:
    with pytest.raises(SourceError, match=f"/state: {problem}"):
        device_checkpoint.parse(text, "/state")


def test_more_devices_than_a_machine_can_have_are_refused() -> None:
    text = json.dumps(
        {
            "Data": {
                "PodDeviceEntries": [entry("u", "c", "gpu", {"0": [str(number) for number in range(70_000)]})],
                "RegisteredDevices": None,
            },
            "Checksum": 0,
        }
    )
    with pytest.raises(SourceError, match="more than 65536 devices"):
        device_checkpoint.parse(text.encode(), "/state")


def put_fifo(path: Path) -> None:
    os.mkfifo(path)


def put_directory(path: Path) -> None:
    path.mkdir()


def put_loop(path: Path) -> None:
    path.symlink_to(path)


def put_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(device_checkpoint.MOST_BYTES + 1)


def put_half(path: Path) -> None:
    path.write_bytes(REAL[:-20])


@pytest.mark.parametrize("put", [put_fifo, put_directory, put_loop, put_large, put_half])
def test_what_stands_in_its_place_is_named_and_what_was_read_before_is_kept(put: Any, tmp_path: Path) -> None:
    path = tmp_path / "kubelet_internal_checkpoint"
    path.write_bytes(REAL)
    file = StateFile(path, device_checkpoint.parse, device_checkpoint.MOST_BYTES)
    state = file.read()
    path.unlink()
    put(path)
    for _ in range(2):
        with pytest.raises(SourceError, match="kubelet_internal_checkpoint"):
            file.read()
        assert not file.is_readable
        assert file.state is state
    path.rmdir() if path.is_dir() else path.unlink()
    path.write_bytes(REAL)
    assert file.read() is not None
    assert file.is_readable


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(REAL)
    parsed = []

    def parse(text: bytes, source: str) -> int:
        parsed.append(text)
        return len(parsed)

    file = StateFile(path, parse)
    os.utime(path, (1, 1))
    assert [file.read() for _ in range(3)] == [1, 1, 1]
    path.write_bytes(REAL_EMPTY)
    assert file.read() == 2


LISTED = PodAllocation("ns", "p", (ContainerAllocation("app", devices=(Device("gpu", "a", (0,)),)),))
STATE = device_checkpoint.DeviceState(
    {
        "live": {"setup": (Device("gpu", "a", (0,)), Device("gpu", "b", (1,))), "app": (Device("gpu", "a", (0,)),)},
        "gone": {"app": (Device("gpu", "c", (0,)),)},
    },
    frozenset({"gpu"}),
)


def test_what_a_finished_init_container_had_beyond_list_is_found() -> None:
    unlisted = entry_owners.unlisted_devices(STATE, [LISTED], frozenset({"live"}))
    assert unlisted == {"live": (Device("gpu", "b", (1,)),)}


def test_a_pod_listed_without_allocations_keeps_its_init_containers_devices_while_it_is_listed() -> None:
    left, idle = entry_owners.Leftovers(), PodAllocation("ns", "idle")
    assert left.living(frozenset(), [LISTED]) == frozenset()
    assert left.living(frozenset({"gone"}), [LISTED, idle]) == {"gone"}
    # Another pod without allocations does not keep it.
    assert left.living(frozenset({"gone"}), [LISTED, PodAllocation("ns", "other")]) == frozenset()


def test_of_earlier_pods_only_pods_that_the_last_object_named_are_alive() -> None:
    # The checkpoint has pods that ended long ago, and their directories stay as long as their objects.
    idle = [PodAllocation("ns", "idle")]
    both = frozenset({"ended", "named"})
    left = entry_owners.Leftovers(frozenset({"named"}))
    assert left.living(both, idle) == {"named"}
    assert left.living(both, idle) == {"named"}
