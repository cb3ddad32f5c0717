"""Fields of the configuration files that are gone, and how many fields are left."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest

from topowise.errors import ConfigError
from topowise.runtime import config, config_errors
from topowise.runtime.config import Configuration
from topowise_exporter.configuration import ExporterConfiguration
from topowise_scheduler.configuration import SchedulerConfiguration

DOCS: Final = Path(__file__).parents[3] / "docs"
KINDS: Final[tuple[type[Configuration], ...]] = (ExporterConfiguration, SchedulerConfiguration)
REMOVED: Final = [(kind, path) for kind in KINDS for path in config_errors.REMOVED[kind.__name__]]
MOST_FIELDS: Final = 85


@pytest.mark.parametrize(("kind", "path"), REMOVED, ids=[f"{kind.__name__}.{path}" for kind, path in REMOVED])
def test_a_field_that_is_gone_is_explained(kind: type[Configuration], path: str) -> None:
    document: Any = "1s"
    for name in reversed(path.split(".")):
        document = {name: document}
    text = json.dumps({"apiVersion": config.API_VERSION, "kind": kind.__name__, **document}).encode()
    parent, _, name = path.rpartition(".")
    at = f" - at `$.{parent}`" if parent else ""
    instead = config_errors.instead(kind.__name__, path)
    with pytest.raises(ConfigError) as caught:
        config.parse(kind, text, source="/etc/x.yaml")
    assert instead
    assert str(caught.value) == f"/etc/x.yaml: field {name!r} is gone, instead: {instead}{at}"


def test_the_page_about_upgrades_has_the_table() -> None:
    page = (DOCS / "how-to/upgrade.md").read_text()
    for kind, fields in config_errors.REMOVED.items():
        table = page.partition(f"| field of {kind} |")[2].partition("\n\n")[0]
        rows = dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", table, re.MULTILINE))
        assert rows == fields


def leaves(schema: dict[str, Any], reference: str) -> int:
    """Returns the number of fields of a section and its sections, without apiVersion and kind."""
    properties = schema["$defs"][reference.rpartition("/")[2]]["properties"]
    references = [field.get("$ref", "") for name, field in properties.items() if name not in ("apiVersion", "kind")]
    return sum(leaves(schema, section) if section else 1 for section in references)


def test_there_are_few_fields() -> None:
    """Does a new field have to be one? A constant with a reason, or what the process knows, cannot be wrong."""
    schemas = [json.loads((DOCS / f"reference/{kind.__name__.lower()}.schema.json").read_text()) for kind in KINDS]
    assert sum(leaves(schema, schema["$ref"]) for schema in schemas) <= MOST_FIELDS
