"""Makes charts/topowise/README.md from hack/chart-readme.md, with tables of recipes and values.

Descriptions are the comments above the keys of values.yaml, as in helm-docs, so that each is written once. A map is a
row of its own if it has a comment.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

REPOSITORY: Final = Path(__file__).resolve().parent.parent
CHART: Final = REPOSITORY / "charts/topowise"
TEMPLATE: Final = REPOSITORY / "hack/chart-readme.md"
FORGE: Final = "https://github.com/topowise/topowise/blob/main"
MADE: Final = (
    "<!-- Made from Chart.yaml, values.yaml, recipes and hack/chart-readme.md by hack/gen-chart. Do not edit. -->\n"
)

# The steps of an upgrade to a version, newest first; "nothing" is a line too. A test requires a line per release.
UPGRADES: Final = {
    "0.1.0": "the first release. From an earlier checkout: if Helm only renders (`helm template`, Argo CD), and in a "
    "kustomization, set kube-scheduler's version (`scheduler.kubeScheduler.image.tag`). From a checkout "
    "with the Secret `topowise-scheduler-token`: delete it when the pods are replaced, or the next upgrade does.",
}


def readme() -> str:
    """Returns the contents of the file."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    substitutions = {
        "description": about["description"],
        "version": about["version"],
        "kubernetes": about["kubeVersion"].removeprefix(">=").removesuffix(".0-0") + " and later",
        "recipes": "\n".join(_recipes()),
        "values": "\n".join(_values()),
        "upgrades": "\n".join(f"| {version} | {text} |" for version, text in UPGRADES.items()),
        "forge": FORGE,
    }
    return MADE + re.sub(r"\{\{(\w+)\}\}", lambda found: substitutions[found[1]], TEMPLATE.read_text())


def _recipes() -> Iterator[str]:
    for path in sorted((CHART / "recipes").glob("*.yaml")) + sorted((CHART / "recipes/on").glob("*.yaml")):
        name = path.relative_to(CHART)
        first = " ".join(_comment(path.read_text().splitlines(), -1, downwards=True).split())
        yield f"| [{name}]({name}) | {_cell(re.split(r'(?<=[.:]) ', first)[0].rstrip(':.'))} |"


def _values() -> Iterator[str]:
    text = (CHART / "values.yaml").read_text()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    yield "| key | default | what it is |"
    yield "|---|---|---|"
    yield from _rows(root, "", text.splitlines())


def _rows(node: yaml.MappingNode, above: str, lines: list[str]) -> Iterator[str]:
    for key, value in node.value:
        path = f"{above}{key.value}"
        description = _cell(_comment(lines, key.start_mark.line))
        # A map on a single line is a value; a map over several lines is a section.
        is_place = isinstance(value, yaml.MappingNode) and value.value and not value.flow_style
        if is_place:
            if description:
                yield f"| `{path}` | | {description} |"
            yield from _rows(value, f"{path}.", lines)
        else:
            yield f"| `{path}` | `{_default(value)}` | {description} |"


def _default(node: yaml.Node) -> str:
    value: Any = yaml.safe_load(yaml.serialize(node))
    return json.dumps(value).replace("|", "\\|")


def _comment(lines: list[str], line: int, *, downwards: bool = False) -> str:
    """Returns the comment above a line, or `downwards` the comment below it."""
    comments: list[str] = []
    step = 1 if downwards else -1
    at = line + step
    while 0 <= at < len(lines) and lines[at].lstrip().startswith("#"):
        comments.append(lines[at].lstrip().removeprefix("#").strip())
        at += step
    return " ".join(comments if downwards else reversed(comments))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
