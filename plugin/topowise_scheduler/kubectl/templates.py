"""Pod templates in objects of any kind, found by their schema: a mapping with `spec.containers`, at any depth.

So a Deployment, a PyTorchJob, a RayCluster or a kind of tomorrow needs no entry in a list. The number of pods is the
product of the fields beside the template, or above it, that count copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from topowise.errors import SourceError

MOST: Final = 10_000
"""The most pods of an object."""
_COPIES: Final = ("replicas", "count")
# An object of these groups cannot lack containers: the API server rejects it. Templates of other kinds are not pods.
_GROUPS_OF_PODS: Final = ("v1", "apps", "batch")
# What an object was, and what its controller has seen.
_NOT_DESIRED: Final = ("status", "metadata")

Json = dict[str, Any]


class Template(NamedTuple):
    """A pod template and the number of its pods.

    `path` is its place in the object ("spec.template"), `role` distinguishes the templates of an object.
    """

    document: Json
    path: str
    role: str
    pods: int


def templates(document: Json, where: str) -> list[Template]:
    """The pod templates of an object, none if it makes no pods. Raises SourceError for an invalid number of pods."""
    spec = document.get("spec")
    if document.get("kind") == "Pod" or (document.get("kind") is None and _has_containers(document)):
        return [Template(document, "", "", 1)]
    desired = {name: value for name, value in document.items() if name not in _NOT_DESIRED}
    pod_templates = list(_below(desired, "", "", 1, f"{where}: {document.get('kind')}"))
    group = str(document.get("apiVersion") or "v1").partition("/")[0]
    if (
        not pod_templates
        and group in _GROUPS_OF_PODS
        and isinstance(spec, dict)
        and isinstance(spec.get("template"), dict)
    ):
        return [Template(spec["template"], "spec.template", "", 1)]
    return pod_templates


def _has_containers(value: Mapping[str, Any]) -> bool:
    spec = value.get("spec")
    return isinstance(spec, dict) and isinstance(spec.get("containers"), list)


def _below(value: Any, path: str, role: str, count: int, where: str) -> Iterator[Template]:
    """Depth first, in the order of the document, whose depth `documents` bounds."""
    if isinstance(value, list):
        for at, item in enumerate(value):
            yield from _below(item, f"{path}[{at}]", role, count, where)
    if not isinstance(value, dict):
        return
    if _has_containers(value):
        yield Template(value, path, role.removesuffix("template").lower(), count)
        return
    count *= _copies(value, path, where)
    if count > MOST:
        raise SourceError(where, f"{path or 'object'} asks for {count} pods, expected at most {MOST}")
    name = value.get("name") or value.get("groupName")
    own = name if isinstance(name, str) else role
    for key, inner in value.items():
        # The key "template" says nothing about the role of its pods.
        inner_role = own if key in ("template", "spec") else key.removesuffix("Template")
        copies = count * _of_group(value, key) if key.endswith("Template") else count
        yield from _below(inner, f"{path}.{key}" if path else key, inner_role, copies, where)


def _copies(value: Mapping[str, Any], path: str, where: str) -> int:
    """The copies that a mapping asks for of the templates in it; 1 if it has no such field."""
    numbers = [_number(value[name], f"{path}.{name}", where) for name in _COPIES if value.get(name) is not None]
    if value.get("parallelism") is not None or value.get("completions") is not None:
        both = [value[name] for name in ("parallelism", "completions") if value.get(name) is not None]
        numbers.append(
            min([_number(number, path, where) for number in both] + [1] * (value.get("parallelism") is None))
        )
    product = 1
    for number in numbers:
        product *= number
    return product


def _of_group(value: Mapping[str, Any], key: str) -> int:
    """The pods of a template of a LeaderWorkerSet, whose `size` includes the leader."""
    size = value.get("size")
    if not isinstance(size, int) or "workerTemplate" not in value:
        return 1
    if key == "workerTemplate":
        return max(0, size - ("leaderTemplate" in value))
    return 1


def _number(number: Any, path: str, where: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MOST:
        raise SourceError(where, f"{path} is {number!r:.80}, expected a number of pods from 0 to {MOST}")
    return number
