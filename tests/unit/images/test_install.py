"""README's four lines fit together: what is built and loaded is what the chart asks for, and nothing pulls it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from topowise import __version__
from topowise.placement import ENABLED, GATE

REPOSITORY = Path(__file__).resolve().parents[3]


def test_four_lines_install_from_a_checkout_without_a_registry() -> None:
    text = (REPOSITORY / "README.md").read_text()
    (block,) = [part for part in re.findall(r"```console\n(.*?)```", text, re.DOTALL) if "make load" in part]
    images, load, install, label = (shlex.split(line.removeprefix("$ "), comments=True) for line in block.splitlines())
    assert (images, load) == (["make", "images"], ["make", "load"])
    assert label[:3] == ["kubectl", "label", "namespace"] and label[4] == f"{GATE}={ENABLED}"
    assert install[:4] == ["helm", "install", "topowise", "charts/topowise"]
    recipes = (REPOSITORY / "Makefile").read_text()
    assert "-m images build" in recipes and "-m images load" in recipes


def test_the_chart_asks_for_the_name_that_is_loaded() -> None:
    values = yaml.safe_load((REPOSITORY / "charts/topowise/values.yaml").read_text())["image"]
    program = (REPOSITORY / "hack/images/__main__.py").read_text()
    assert re.findall(r'"--repository", default="([^"]+)"', program) == [values["repository"]]
    assert 'f"{args.repository}:{topowise.__version__}"' in program
    about = yaml.safe_load((REPOSITORY / "charts/topowise/Chart.yaml").read_text())
    assert about["appVersion"] == __version__ and not values["tag"] and not values["digest"]
    # With Always a node would ask the registry for what it already has.
    assert values["pullPolicy"] == "IfNotPresent"
