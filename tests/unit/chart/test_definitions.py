"""The definitions: one source, switchable, kept."""

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


@pytest.mark.parametrize("name", FILES)
def test_a_definition_is_well_formed(chart: Path, name: str) -> None:
    document = yaml.safe_load((chart / f"crds/{name}.yaml").read_text())
    spec = document["spec"]
    assert document["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert [one["name"] for one in spec["versions"] if one["storage"]] == [spec["versions"][-1]["name"]]
    for version in spec["versions"]:
        assert version["schema"]["openAPIV3Schema"]["type"] == "object"


def test_both_versions_of_the_topology_are_served_and_the_newer_is_stored(chart: Path) -> None:
    versions = yaml.safe_load((chart / "crds/noderesourcetopologies.yaml").read_text())["spec"]["versions"]
    assert [(one["name"], one["served"], one["storage"]) for one in versions] == [
        ("v1alpha1", True, False),
        ("v1alpha2", True, True),
    ]


def test_the_topology_is_installed_and_kept(default: Any, chart: Path) -> None:
    (made,) = default.kinds("CustomResourceDefinition")
    assert made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    source = yaml.safe_load((chart / "crds/noderesourcetopologies.yaml").read_text())
    assert made["spec"] == source["spec"]
    assert source["metadata"]["annotations"].items() <= made["metadata"]["annotations"].items()


@pytest.mark.parametrize("topology", [True, False])
@pytest.mark.parametrize("numa", [True, False])
def test_each_can_be_left_out(render: Any, topology: bool, numa: bool) -> None:
    flags = f"crds.nodeResourceTopology={str(topology).lower()}", f"crds.numatopology={str(numa).lower()}"
    made = {one["spec"]["names"]["kind"] for one in render("", *flags).kinds("CustomResourceDefinition")}
    wanted = {"NodeResourceTopology": topology, "Numatopology": numa}
    assert made == {kind for kind, is_wanted in wanted.items() if is_wanted}
