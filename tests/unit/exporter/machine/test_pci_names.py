"""What drivers call PCI functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from topowise_exporter.machine import Machine, pci_functions

Read = Callable[[Path], Machine]
NIC = "0000:98:00.0"
UUID = "GPU-8f1b2c3d-0a1b-2c3d-4e5f-0123456789ab"


def _class(root: Path, kind: str, name: str, below: str) -> None:
    folder = root / "sys/class" / kind
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(f"../../devices/{below}/{kind}/{name}")


def test_links_of_classes_lead_by_the_nearest_function(small: Path, read: Read) -> None:
    place = f"pci0000:97/0000:97:00.0/{NIC}"
    _class(small, "net", "ens1f0", place)
    _class(small, "net", "eth0", "pci0000:97/0000:97:00.0/virtio0")
    _class(small, "infiniband", "mlx5_0", place)
    _class(small, "nvme", "nvme0", "pci0000:00/0000:00:1f.0")
    _class(small, "net", "veth1", "virtual")
    (small / "sys/class/net/bonding_masters").write_text("\n")
    assert read(small).pci_names == (
        ("ens1f0", NIC),
        ("eth0", "0000:97:00.0"),
        ("mlx5_0", NIC),
        ("nvme0", "0000:00:1f.0"),
    )


def test_a_name_of_two_functions_is_left_out(small: Path, read: Read) -> None:
    _class(small, "net", "card0", f"pci0000:97/0000:97:00.0/{NIC}")
    _class(small, "drm", "card0", "pci0000:00/0000:00:1f.0")
    assert read(small).pci_names == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Model: \t\t NVIDIA H100\nGPU UUID: \t {UUID}\nBus Type: \t PCIe\n", ((UUID, NIC),)),
        ("GPU UUID: \t GPU-????????-????-????-????-????????????\n", ()),
        ("", ()),
    ],
)
def test_nvidias_driver_lists_uuids(small: Path, read: Read, text: str, expected: object) -> None:
    folder = small / "proc/driver/nvidia/gpus" / NIC
    folder.mkdir(parents=True)
    (folder / "information").write_text(text)
    assert read(small).pci_names == expected


def test_a_class_with_too_many_names_is_a_problem_and_not_used(
    small: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pci_functions, "MOST_NAMES", 1)
    _class(small, "net", "ens1f0", f"pci0000:97/0000:97:00.0/{NIC}")
    _class(small, "net", "ens1f1", f"pci0000:97/0000:97:00.0/{NIC}")
    machine = read(small)
    assert machine.pci_names == ()
    assert machine.problems == (f"{small}/sys/class/net: 2 names, expected at most 1; no name is used",)
