"""The API server's rules for the fields of a pod that a prediction reads, with the texts of its errors.

The API server validates an object before it stores it, so no kubelet ever sees such a pod, and an answer about it would
be about nothing. Fields that predictions do not read (images, volumes, probes) are left to `--server-side`.

Upstream: pkg/apis/core/validation/validation.go (validateContainers, validateResourceRequirements,
validatePodResourceConsistency), pkg/apis/core/helper/helpers.go (1.36).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from topowise import pods, quantity
from topowise.errors import ParseError
from topowise.pods import HUGEPAGES, Amounts, ContainerNeeds, Quantities, Resources

_COMPUTE: Final = ("cpu", "memory")
_STANDARD: Final = (*_COMPUTE, "ephemeral-storage")
_QUALIFIED: Final = re.compile(r"(?:[a-z0-9.-]+/)?(?:[A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]", re.ASCII)
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = ("m", "", "k", "M", "G", "T", "P", "E")

Problems = Iterator[str]


def problems(pod: pods.Pod, path: str) -> Problems:
    """The errors of the API server for a pod whose spec is at `path`. Raises ParseError for an invalid quantity."""
    spec = pod.spec
    if not spec.containers:
        yield f"{path}.containers: Required value"
        return
    names: set[str] = set()
    # The API server validates the names of containers before those of init containers.
    for field, containers in (("containers", spec.containers), ("initContainers", spec.initContainers or ())):
        for at, container in enumerate(containers):
            own = f"{path}.{field}[{at}]"
            if container.name in names:
                yield f'{own}.name: Duplicate value: "{container.name}"'
            names.add(container.name)
            if container.resources is not None:
                yield from _resources(container.resources, f"{own}.resources", _container_name)
    if spec.resources is not None:
        yield from _resources(spec.resources, f"{path}.resources", _pod_level_name)
        yield from _consistency(pod, spec.resources, f"{path}.resources")


def _resources(resources: Resources, path: str, name_problems: Callable[[str, str], Problems]) -> Problems:
    limits = resources.limits or {}
    # SetDefaults_Pod: a request without a value is the limit, for a pod only of resources that it can have.
    is_container = name_problems is _container_name
    defaults = {name: amount for name, amount in limits.items() if is_container or not any(name_problems(name, ""))}
    requests = {**defaults, **(resources.requests or {})}
    for field, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            own = f"{path}.{field}[{name}]"
            yield from name_problems(name, own)
            yield from _amount(name, amount, own)
    for name, amount in requests.items():
        yield from _against_limit(name, amount, limits, path)
    names = {*limits, *requests}
    if any(name.startswith(HUGEPAGES) for name in names) and not names.intersection(_COMPUTE):
        yield f"{path}: Forbidden: HugePages require cpu or memory"


def _amount(name: str, amount: pods.Quantity, path: str) -> Problems:
    text = canonical(amount)
    if _nano(amount) < 0:
        yield f'{path}: Invalid value: "{text}": must be greater than or equal to 0'
    if _is_extended(name) and quantity.milli_value(_text(amount)) % 1000:
        yield f'{path}: Invalid value: "{text}": must be an integer'
    if name.startswith(HUGEPAGES) and not _is_divisible(name, amount):
        yield f'{path}: Invalid value: "{text}": {text} is not positive integer multiple of {name}'


def _against_limit(name: str, amount: pods.Quantity, limits: Quantities, path: str) -> Problems:
    overcommits = _is_native(name) and not name.startswith(HUGEPAGES)
    if name not in limits:
        if not overcommits:
            yield f"{path}.limits: Required value: Limit must be set for non overcommitable resources"
        return
    request, limit = _nano(amount), _nano(limits[name])
    if request > limit or (request != limit and not overcommits):
        relation = "less than or equal to" if overcommits else "equal to"
        yield (
            f'{path}.requests: Invalid value: "{canonical(amount)}": must be {relation} {name} limit of '
            f"{canonical(limits[name])}"
        )


def _consistency(pod: pods.Pod, resources: Resources, path: str) -> Problems:
    """Containers against the resources of the pod."""
    needs = pods.needs(pod)
    level = needs.pod_level
    if level is None:
        return
    requests = pods.aggregate(needs.containers, [container.requests for container in needs.containers])
    yield from _exceeding(requests, level.requests, f"{path}.requests", "requests", resources.requests or {})
    limits = pods.aggregate(needs.containers, [container.limits for container in needs.containers])
    hugepages = {name: amount for name, amount in limits.items() if name.startswith(HUGEPAGES)}
    yield from _exceeding(hugepages, level.limits, f"{path}.limits", "limits", resources.limits or {})
    apps: Iterable[ContainerNeeds] = (container for container in needs.containers if container.kind == "app")
    for at, container in enumerate(apps):
        for name, amount in container.limits.items():
            most = level.limits.get(name)
            if most is not None and amount > most:
                yield (
                    f'{path}.containers[{at}][{name}].limits: Invalid value: "{_of_amount(name, amount)}": must be '
                    f"less than or equal to pod limits of {_of_amount(name, most)}"
                )


def _exceeding(
    sums: Amounts, level: Mapping[str, int], path: str, field: str, written: Mapping[str, pods.Quantity]
) -> Problems:
    for name, amount in sums.items():
        if name in level and amount > level[name]:
            text = canonical(written[name]) if name in written else _of_amount(name, level[name])
            yield (
                f'{path}[{name}]: Invalid value: "{text}": must be greater than or equal to aggregate container '
                f"{field} of {_of_amount(name, amount)}"
            )


def _container_name(name: str, path: str) -> Problems:
    if "/" not in name:
        if name in _STANDARD or name.startswith(HUGEPAGES):
            return
        yield f'{path}: Invalid value: "{name}": must be a standard resource type or fully qualified'
        yield f'{path}: Invalid value: "{name}": must be a standard resource for containers'
    elif not _is_native(name) and not _is_extended(name):
        yield f'{path}: Invalid value: "{name}": doesn\'t follow extended resource name standard'


def _pod_level_name(name: str, path: str) -> Problems:
    if name not in _COMPUTE and not name.startswith(HUGEPAGES):
        if "/" not in name and name not in _STANDARD:
            yield f'{path}: Invalid value: "{name}": must be a standard resource type or fully qualified'
        else:
            yield f'{path}: Unsupported value: "{name}": supported values: "cpu", "hugepages-", "memory"'


def _is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def _is_extended(name: str) -> bool:
    return not _is_native(name) and not name.startswith("requests.") and bool(_QUALIFIED.fullmatch(name))


def _is_divisible(name: str, amount: pods.Quantity) -> bool:
    try:
        size = quantity.value(name.removeprefix(HUGEPAGES))
    except ParseError:
        return False
    return size > 0 and quantity.value(_text(amount)) % size == 0


def _text(amount: pods.Quantity) -> str:
    return "0" if amount is None else repr(amount) if isinstance(amount, float) else str(amount)


def _nano(amount: pods.Quantity) -> int:
    """The amount for comparisons, in thousandths; smaller parts do not exist in the API."""
    return quantity.milli_value(_text(amount))


def canonical(amount: pods.Quantity) -> str:
    """The text of a quantity as the API server formats it: "0.5" is "500m", "1024Mi" is "1Gi"."""
    text = _text(amount)
    if text.endswith("i") and abs(quantity.value(text)) >= 1 << 10:
        return _with_suffix(quantity.value(text), 1 << 10, ("", *_BINARY))
    return _with_suffix(quantity.milli_value(text), 1000, _DECIMAL)


def _of_amount(resource: str, amount: int) -> str:
    """The canonical text of a sum."""
    if resource == "cpu":
        return canonical(f"{amount}m")
    return canonical(f"{amount >> 10}Ki" if amount and not amount % (1 << 10) else amount)


def _with_suffix(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    exponent = 0
    while number and not number % base and exponent < len(suffixes) - 1:
        number, exponent = number // base, exponent + 1
    return f"{number}{suffixes[exponent]}" if number else "0"
