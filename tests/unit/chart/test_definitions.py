"""The CustomResourceDefinitions have a single source, can be left out, and survive an uninstall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

FILES = ("noderesourcetopologies", "numatopologies")


def test_templates_read_the_same_files_as_everybody(chart: Path) -> None:
    for name in FILES:
        assert (chart / f"definitions/{name}.yaml").samefile(chart / f"crds/{name}.yaml")
    # Otherwise Helm would install the folder on its own, all or nothing.
    assert "/crds" in (chart / ".helmignore").read_text().splitlines()


def test_both_versions_of_the_topology_are_served_and_the_newer_is_stored(chart: Path) -> None:
    versions = yaml.safe_load((chart / "crds/noderesourcetopologies.yaml").read_text())["spec"]["versions"]
    assert [(version["name"], version["served"], version["storage"]) for version in versions] == [
        ("v1alpha1", True, False),
        ("v1alpha2", True, True),
    ]


def test_the_topology_is_installed_and_kept(default: Any, chart: Path) -> None:
    (definition,) = default.kinds("CustomResourceDefinition")
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    source = yaml.safe_load((chart / "crds/noderesourcetopologies.yaml").read_text())
    assert definition["spec"] == source["spec"]
    assert source["metadata"]["annotations"].items() <= definition["metadata"]["annotations"].items()


@pytest.mark.parametrize("topology", [True, False])
@pytest.mark.parametrize("numa", [True, False])
def test_each_can_be_left_out(render: Any, topology: bool, numa: bool) -> None:
    flags = f"crds.nodeResourceTopology={str(topology).lower()}", f"crds.numatopology={str(numa).lower()}"
    kinds = {definition["spec"]["names"]["kind"] for definition in render("", *flags).kinds("CustomResourceDefinition")}
    expected = {"NodeResourceTopology": topology, "Numatopology": numa}
    assert kinds == {kind for kind, is_wanted in expected.items() if is_wanted}
