"""Which combinations of query parameters are refused, before anything is looked up.

Source: k8s.io/apimachinery/pkg/apis/meta/internalversion/validation, pkg/apis/meta/v1/validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sandbox.apiserver.errors import Json, cause, invalid

_MANAGER_BYTES: Final = 128


def check_list(query: Mapping[str, str], *, watch: bool) -> None:
    """Raises StatusError 422."""
    causes = _watch_causes(query) if watch else _list_causes(query)
    if causes:
        raise invalid("ListOptions.meta.k8s.io", "", causes)


def _list_causes(query: Mapping[str, str]) -> list[Json]:
    match, version = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    causes = []
    if match and not version:
        causes.append(_forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"))
    if match and query.get("continue"):
        causes.append(_forbidden("resourceVersionMatch is forbidden when continue is provided"))
    if match not in ("", "Exact", "NotOlderThan"):
        causes.append(_unsupported(match, '"Exact", "NotOlderThan", ""'))
    if match == "Exact" and version == "0":
        causes.append(_forbidden('resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    if "sendInitialEvents" in query:
        causes.append(_forbidden("sendInitialEvents is forbidden for list", "sendInitialEvents"))
    return causes


def _watch_causes(query: Mapping[str, str]) -> list[Json]:
    match, initial = query.get("resourceVersionMatch", ""), "sendInitialEvents" in query
    causes = []
    if initial and match != "NotOlderThan":
        causes.append(_forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
    if match and not initial:
        causes.append(_forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
    if match not in ("", "NotOlderThan"):
        causes.append(_unsupported(match, '"NotOlderThan"'))
    return causes


def check_manager(query: Mapping[str, str], method: str) -> None:
    """Raises StatusError 422 for a field manager whose name is too long."""
    if len(query.get("fieldManager", "").encode()) > _MANAGER_BYTES:
        kind = {"POST": "CreateOptions", "PUT": "UpdateOptions"}.get(method, "PatchOptions")
        message = f"Too long: may not be more than {_MANAGER_BYTES} bytes"
        raise invalid(f"{kind}.meta.k8s.io", "", [cause("FieldValueTooLong", message, "fieldManager")])


def _forbidden(why: str, field: str = "resourceVersionMatch") -> Json:
    return cause("FieldValueForbidden", f"Forbidden: {why}", field)


def _unsupported(value: str, supported: str) -> Json:
    message = f'Unsupported value: "{value}": supported values: {supported}'
    return cause("FieldValueNotSupported", message, "resourceVersionMatch")
