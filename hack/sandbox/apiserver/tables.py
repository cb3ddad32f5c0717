"""`as=Table`: the server-side half of `kubectl get`, and `as=PartialObjectMetadataList`.

kubectl prints what the server tells it to print, so a CRD's additionalPrinterColumns are only as good as their table.
Faithful to apiextensions' tableconvertor down to what surprises: of a path with several results only the *first* is
shown, whatever the type; a string column spells lists and objects as JSON; a value of another type than the column's is
an empty cell; a date column shows an age.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any, Final

from sandbox.apiserver import jsonpath, printers, strategy
from sandbox.apiserver.errors import Json
from sandbox.apiserver.resources import Column, Resource
from sandbox.apiserver.strategy import Site

META_V1: Final = "meta.k8s.io/v1"


def table(
    site: Site, objects: Iterable[Json], metadata: Json, *, include: str = "Metadata", headers: bool = True
) -> Json:
    """Returns a Table of the objects. `include` is the request's includeObject; `headers` are sent once in a watch."""
    now = datetime.datetime.now(datetime.UTC)
    columns, rows = _columns(site), []
    for item in objects:
        obj = strategy.in_version(site, item)
        row: Json = {"cells": _cells(site, obj, now)}
        if include == "Metadata":
            row["object"] = partial(obj)
        elif include == "Object":
            row["object"] = obj
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": META_V1,
        "metadata": metadata,
        "columnDefinitions": [column.definition() for column in columns] if headers else None,
        "rows": rows,
    }


def partial(obj: Json) -> Json:
    """Returns the object's metadata as an object of its own."""
    return {"kind": "PartialObjectMetadata", "apiVersion": META_V1, "metadata": obj["metadata"]}


def is_printed(resource: Resource) -> bool:
    """Returns whether a kind has a table; kubectl prints name and age of the others by itself."""
    return resource.is_custom or resource.key in printers.PRINTERS


def _columns(site: Site) -> tuple[Column, ...]:
    if site.resource.is_custom:
        return (printers.NAME, *site.resource.version(site.version).columns)
    return printers.PRINTERS[site.resource.key][0]


def _cells(site: Site, obj: Json, now: datetime.datetime) -> list[Any]:
    if not site.resource.is_custom:
        return printers.PRINTERS[site.resource.key][1](obj, now)
    columns = site.resource.version(site.version).columns
    return [obj["metadata"]["name"], *(cell(column, obj, now) for column in columns)]


def cell(column: Column, obj: Json, now: datetime.datetime) -> Any:
    """Returns a cell of a custom resource's column, None without a value."""
    try:
        values = jsonpath.find(column.path, obj)
    except jsonpath.PathError:
        return None
    if not values:
        return None
    value = values[0]
    if column.type == "string":
        return jsonpath.to_text(value)
    return _typed(column.type, value, now)


def _typed(kind: str, value: Any, now: datetime.datetime) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match kind:
        case "integer":
            return int(value) if is_number else None
        case "number":
            return float(value) if is_number else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date":
            return printers.since(value, now) if isinstance(value, str) else None
    return None
