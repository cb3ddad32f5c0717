"""What Helm and Artifact Hub show of the chart is there and true, and its README has everything."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from topowise import __version__

Document = dict[str, Any]
FORGE = "https://github.com/topowise/topowise"
RAW = "https://raw.githubusercontent.com/topowise/topowise/main"


@pytest.fixture(scope="module")
def about(chart: Path) -> Document:
    return yaml.safe_load((chart / "Chart.yaml").read_text())


def behind(address: str, repository: Path) -> Path:
    """The file of this tree that an address of the forge shows."""
    path = re.sub(rf"^({FORGE}/blob/main|{RAW})/", "", address).partition("#")[0]
    assert path != address, address
    return repository / path


def test_the_icon_is_ours_and_an_svg(about: Document, chart: Path, repository: Path) -> None:
    icon = behind(about["icon"], repository)
    assert icon == chart / "icon.svg"
    root = ET.parse(icon).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.get("viewBox") == "0 0 256 256"
    # Any page may embed the icon: no script, no font, no external picture.
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "rect", "path", "g"}


def test_links_of_the_metadata_lead_to_files(about: Document, repository: Path) -> None:
    assert about["home"] == FORGE and about["sources"] == [FORGE]
    assert all(maintainer["name"] and maintainer["url"].startswith("https://") for maintainer in about["maintainers"])
    for link in yaml.safe_load(about["annotations"]["artifacthub.io/links"]):
        assert behind(link["url"], repository).is_file(), link


def test_artifact_hub_lists_the_image_and_the_definitions_of_the_chart(
    about: Document, chart: Path, values: Document
) -> None:
    notes = about["annotations"]
    (image,) = yaml.safe_load(notes["artifacthub.io/images"])
    assert image["image"] == f"{values['image']['repository']}:{__version__}"
    named_crds = {(crd["name"], crd["kind"], crd["version"]) for crd in yaml.safe_load(notes["artifacthub.io/crds"])}
    there = set()
    for path in (chart / "crds").glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())
        (stored,) = (version["name"] for version in crd["spec"]["versions"] if version["storage"])
        there.add((crd["metadata"]["name"], crd["spec"]["names"]["kind"], stored))
    assert named_crds == there
    assert (notes["artifacthub.io/prerelease"] == "true") is (__version__ < "1")


def test_the_readme_leads_to_files_and_names_every_release(chart: Path, repository: Path) -> None:
    """Its table of values is made from values.yaml, and `make check` compares it."""
    text = (chart / "README.md").read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target = behind(link, repository) if link.startswith("https://github.com") else chart / link
        assert target.exists(), link
    _, _, upgrades = text.partition("## Upgrade")
    released = re.findall(r"^## \[(\d[\w.]*)\]", (repository / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(re.findall(r"^\| (\d[\w.]*) \|", upgrades, re.MULTILINE)) >= {*released, __version__}
