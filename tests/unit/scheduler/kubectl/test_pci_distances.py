"""`kubectl topowise node -o wide` lists the PCI bridges of devices, if the report has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topowise.attributes import PCI, pci_devices
from topowise.attributes.pci_devices import Located
from topowise.pci import Place
from topowise.text import rendered
from topowise_scheduler.kubectl.node import table

from .conftest import Ask

Saved = Callable[..., str]

PLACES = pci_devices.write(
    {
        "gpu0-0": Located("0000:3b:00.0", Place(("pci0000:3a", "0000:3a:00.0"), 0)),
        "vf0-0": Located("0000:18:00.1", Place(("pci0000:17", "0000:17:00.0"), 0)),
        "vf0-1": Located("0000:18:00.2", Place(("pci0000:17", "0000:17:00.0"), 0)),
    }
).text


def _with(saved: Saved, text: str) -> str:
    """The saved cluster with the attribute on metal-a."""
    documents: list[dict[str, Any]] = json.loads(Path(saved()).read_text())["items"]
    (report,) = [
        document
        for document in documents
        if document["kind"] == "NodeResourceTopology" and document["metadata"]["name"] == "metal-a"
    ]
    report["attributes"].append({"name": PCI, "value": text})
    return saved(*documents, name="placed.json")


def test_a_damaged_attribute_is_a_warning_and_the_rest_is_drawn(ask: Ask, saved: Saved) -> None:
    plain, _, _ = ask("node", "metal-a", "-f", saved(), width=80)
    shown, status, notes = ask("node", "metal-a", "-f", _with(saved, '[["eth0"]]'), width=80)
    assert (shown, status) == (plain, 0)
    assert len(notes) == 1
    assert "metal-a: attribute topowise.io/pci: places" in notes[0]
    assert notes[0].endswith("the PCI paths of its devices are unknown")


def test_the_wide_table_has_the_distances_of_places(ask: Ask, saved: Saved) -> None:
    shown, _, _ = ask("node", "metal-a", "-f", _with(saved, PLACES), "-o", "wide")
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    start = lines.index("PLACE NUMA NODE DEVICES P0 P1")
    assert lines[start + 1 : start + 4] == [
        "P0 pci0000:17 > 0000:17:00.0 0 2 intel.com/e810_vf PIX NODE",
        "P1 pci0000:3a > 0000:3a:00.0 0 nvidia.com/gpu gpu0-0 (0000:3b:00.0) NODE PIX",
        "",
    ]


def test_unknown_distances_are_question_marks_and_unprintable_names_are_escaped() -> None:
    far = Located("0000:18:00.1", Place(("pci0000:17",), None))
    shown = {"a\x1b[2J": far, "0000:3b:00.0": Located("0000:3b:00.0", Place(("pci0000:3a",), 1))}
    lines = [" ".join(line.split()) for line in rendered(table(shown, "{}")).splitlines()]
    assert lines[1:] == [
        "P0 pci0000:17 - unknown a\\x1b[2J (0000:18:00.1) PHB ?",
        "P1 pci0000:3a 1 unknown 0000:3b:00.0 ? PHB",
    ]


def test_many_places_have_no_columns() -> None:
    many = {
        f"0000:{bus:02x}:00.0": Located(f"0000:{bus:02x}:00.0", Place((f"pci0000:{bus:02x}",), 0)) for bus in range(17)
    }
    lines = rendered(table(many, "{}")).splitlines()
    assert lines[0].split() == ["PLACE", "NUMA", "NODE", "DEVICES"]
    assert len(lines) == 18
    assert table({}, "{}") == []
