"""Grafana would import the dashboard and lose nothing of it, by the schema that Grafana makes its own types from.

The types (grafana-foundation-sdk) read a document leniently: what the schema does not know is left out. So what is read
is written again, and has to be all that was given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

Document = dict[str, Any]

dashboards = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="no grafana-foundation-sdk")


@pytest.fixture(scope="module")
def imported() -> Callable[[Document], Document]:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    return lambda document: json.loads(json.dumps(dashboards.Dashboard.from_json(document), cls=JSONEncoder))


def lost(original: Any, kept_value: Any, path: str = "$") -> Iterator[str]:
    if isinstance(original, dict) and isinstance(kept_value, dict):
        for name, value in original.items():
            if name in kept_value:
                yield from lost(value, kept_value[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(original, list) and isinstance(kept_value, list) and len(original) == len(kept_value):
        for number, (value, loaded) in enumerate(zip(original, kept_value, strict=True)):
            yield from lost(value, loaded, f"{path}[{number}]")
    elif original != kept_value:
        yield path


def test_the_dashboard_is_imported_whole(imported: Callable[[Document], Document], dashboard: Document) -> None:
    assert list(lost(dashboard, imported(dashboard))) == []
    # What an import asks for beside that: an id of its own here, and none of the instance it was drawn in.
    assert dashboard["uid"] == "topowise" and "id" not in dashboard
    assert all(target["datasource"]["uid"] == "${datasource}" for target in targets(dashboard))


def targets(dashboard: Document) -> Iterator[Document]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield {"datasource": panel["datasource"], **target}
