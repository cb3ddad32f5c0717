"""`kubectl topowise node` draws where devices are on the PCI buses, if the object tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topowise.attributes import PCI, places
from topowise.attributes.places import Located
from topowise.pci import Place
from topowise_scheduler.kubectl.console import Answer

Ask = Callable[..., Answer]
Saved = Callable[..., str]

PLACES = places.write(
    {
        "gpu0-0": Located("0000:3b:00.0", Place(("pci0000:3a", "0000:3a:00.0"), 0)),
        "vf0-0": Located("0000:18:00.1", Place(("pci0000:17", "0000:17:00.0"), 0)),
        "vf0-1": Located("0000:18:00.2", Place(("pci0000:17", "0000:17:00.0"), 0)),
    }
).text


def _with(saved: Saved, text: str) -> str:
    """The saved cluster with this attribute on metal-a."""
    documents: list[dict[str, Any]] = json.loads(Path(saved()).read_text())["items"]
    (report,) = [
        one for one in documents if one["kind"] == "NodeResourceTopology" and one["metadata"]["name"] == "metal-a"
    ]
    report["attributes"].append({"name": PCI, "value": text})
    return saved(*documents, name="placed.json")


def test_the_tree_is_drawn_with_who_holds_what(ask: Ask, saved: Saved) -> None:
    shown, _, notes = ask("node", "metal-a", "-f", _with(saved, PLACES), width=80)
    lines = [" ".join(line.strip("│ ").split()) for line in shown[shown.index("╭ PCI") :].splitlines()]
    assert notes == ()
    assert lines[1:6] == [
        "pci0000:17 > 0000:17:00.0 NUMA node 0",
        "intel.com/e810_vf 1 free of 2",
        "B vf0-0 · vf0-1",
        "pci0000:3a > 0000:3a:00.0 NUMA node 0",
        "nvidia.com/gpu 0 free of 1",
    ]
    assert lines[7:9] == ["place not known · 6 devices of intel.com/e810_vf", "1 device of nvidia.com/gpu"]


def test_a_damaged_attribute_is_a_warning_and_the_rest_is_drawn(ask: Ask, saved: Saved) -> None:
    plain, _, _ = ask("node", "metal-a", "-f", saved(), width=80)
    shown, status, notes = ask("node", "metal-a", "-f", _with(saved, '[["eth0"]]'), width=80)
    assert (shown, status) == (plain, 0)
    assert len(notes) == 1
    assert "metal-a: places" in notes[0]
    assert notes[0].endswith("where devices are on the PCI buses is left out")
